"""Failover of Warm standbys, and losses without one."""

from datetime import timedelta
from typing import Any

import pytest

from pstraining.api import names
from pstraining.core.actions import Apply, Create, Delete, Kind
from pstraining.core.observe import observe
from pstraining.core.policies.failover import START_GRACE, LossCause, lost
from pstraining.core.snapshot import Pod
from tests.support.builders import NOW, UID, job, pod, terminated
from tests.support.simulation import World, phase, running

WARM = {"ps": {"standby": {"mode": "Warm"}}}
STARTED = {"running": {"startedAt": "2030-01-01T12:00:05Z"}}


def warm(**spec: Any) -> World:
    return running(**{**WARM, **spec})


def service(world: World, index: int = 0) -> dict[str, Any]:
    return world.children["Service", f"digits-ps-{index}"]


def primary(world: World, index: int = 0) -> tuple[str, str]:
    """Return the pod and the epoch that a shard's Service names."""
    found = service(world, index)
    return found["spec"]["selector"][names.LABEL_STS_POD], found["metadata"]["annotations"][names.ANNOTATION_EPOCH]


def fail(world: World, member: int = 0, *, ready: bool = False, index: int = 0, **status: Any) -> None:
    """Let a member's pod become not ready, or ready again."""
    name = f"digits-ps-{index}" if not member else f"digits-standby-{index}"
    found = world.pods[name]["status"]
    found["conditions"] = [{"type": "Ready", "status": str(ready)}]
    found["containerStatuses"][0] |= {"ready": ready, **status}


def seen(**how: Any) -> Pod:
    return observe(job(), (), [pod("ps", **how)]).pods[0]


LOSSES: dict[str, tuple[Pod | None, LossCause | None, bool]] = {
    "ready": (seen(), None, False),
    "gone": (None, LossCause.GONE, False),
    "going": (seen(deleting=True), LossCause.DELETED, False),
    "evicted": (seen(phase="Failed", ready=False), LossCause.ENDED, False),
    "its container ended": (seen(ready=False, state=terminated(137)), LossCause.ENDED, False),
    "its container is on its way back": (
        seen(ready=False, state=STARTED, last=terminated(137), restarts=1, changed=NOW + timedelta(seconds=4)),
        LossCause.ENDED,
        False,
    ),
    "starting": (seen(ready=False, state=STARTED, changed=NOW + timedelta(seconds=2)), None, False),
    "not created yet": (seen(ready=False, state={"waiting": {"reason": "ContainerCreating"}}), None, False),
    "hung": (seen(ready=False, state=STARTED, changed=NOW + timedelta(seconds=9)), LossCause.NOT_READY, True),
    "hung after a restart": (
        seen(ready=False, state=STARTED, last=terminated(1), restarts=1, changed=NOW + timedelta(seconds=9)),
        LossCause.NOT_READY,
        True,
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_a_primary(name: str) -> None:
    found, cause, alive = LOSSES[name]
    loss = lost(found, NOW + timedelta(seconds=10))
    assert (loss and loss.cause) == cause
    assert (loss is not None and loss.alive) is alive


def test_a_primary_has_a_limited_time_to_start() -> None:
    slow = seen(ready=False, state={"waiting": {"reason": "ContainerCreating"}})
    assert lost(slow, slow.created + START_GRACE - timedelta(seconds=1)) is None
    loss = lost(slow, slow.created + START_GRACE)
    assert loss is not None
    assert loss.cause is LossCause.NOT_STARTED


def test_servers_that_restart_for_a_new_chief_are_waited_for() -> None:
    """Servers that restart for a new chief are waited for. The launcher restarts them in place, and the order of their
    readiness shows no loss.
    """
    term = NOW + timedelta(seconds=60)
    changed = term + timedelta(seconds=5)
    found = seen(ready=False, state=STARTED, changed=changed)
    assert lost(found, changed, None) is not None
    assert lost(found, changed, term) is None
    assert lost(found, changed + START_GRACE, term) is not None
    assert lost(found, changed, term - START_GRACE) is not None, "that has nothing to do with it"


def test_the_time_of_a_deletion_is_that_of_the_request() -> None:
    going = pod("ps", deleting=True)
    going["metadata"]["deletionGracePeriodSeconds"] = 30
    loss = lost(observe(job(), (), [going]).pods[0], NOW)
    assert loss is not None
    assert loss.since == NOW - timedelta(seconds=30)


def test_a_job_without_standbys_has_no_fields_of_them() -> None:
    world = running()
    assert world.names_of("StatefulSet") == ["digits-ps"]
    assert world.names_of("PodDisruptionBudget") == []
    assert "annotations" not in service(world)["metadata"]
    template = world.children["StatefulSet", "digits-ps"]["spec"]["template"]
    assert "affinity" not in template["spec"]
    assert "PSTRAINING_MEMBER" not in {e["name"] for e in template["spec"]["containers"][0]["env"]}
    fail(world)
    assert not world.plan().actions


def test_objects_created_for_standbys() -> None:
    world = warm(ps={"replicas": 2, "standby": {"mode": "Warm", "replicasPerShard": 2}})
    assert world.names_of("StatefulSet") == ["digits-ps", "digits-standby", "digits-standby-2"]
    assert world.names_of("PodDisruptionBudget") == ["digits-ps-0", "digits-ps-1"]
    budget = world.children["PodDisruptionBudget", "digits-ps-1"]["spec"]
    own = {names.LABEL_JOB_UID: UID, names.LABEL_ROLE: "ps"}
    assert budget == {"minAvailable": 1, "selector": {"matchLabels": own | {names.LABEL_POD_INDEX: "1"}}}
    for member, name in enumerate(world.names_of("StatefulSet")):
        spec = world.children["StatefulSet", name]["spec"]
        assert spec["replicas"] == 2
        assert spec["selector"]["matchLabels"] == own | {names.LABEL_MEMBER: str(member)}
        assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
        (apart,) = spec["template"]["spec"]["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert apart["labelSelector"]["matchLabels"] == own
        assert apart["matchLabelKeys"] == [names.LABEL_POD_INDEX]
        env = {e["name"]: e.get("value") for e in spec["template"]["spec"]["containers"][0]["env"]}
        assert env["PSTRAINING_MEMBER"] == str(member)
    assert primary(world, 1) == ("digits-ps-1", "0")


def test_a_failover_comes_before_any_other_action() -> None:
    world = warm()
    service(world)["metadata"]["resourceVersion"] = "77"
    world.children["Service", "digits-hs"]["spec"]["selector"] = {}
    fail(world, state=terminated(137))
    first, *rest = world.plan().actions
    assert isinstance(first, Apply)
    assert (first.kind, first.name) == (Kind.SERVICE, "digits-ps-0")
    assert first.body["metadata"]["resourceVersion"] == "77"
    assert first.since is not None
    assert (Kind.SERVICE, "digits-hs") in [(a.kind, a.name) for a in rest]
    world.reconcile()
    assert primary(world) == ("digits-standby-0", "1")
    assert service(world)["metadata"]["annotations"][names.ANNOTATION_CAUSE] == "container ended with code 137"
    world.reconcile()
    assert not world.plan().actions, "no write reverts it"
    assert phase(world) == "Running"


def test_a_failover_and_corrections_are_one_write() -> None:
    world = warm()
    service(world)["spec"]["ports"] = []
    fail(world, state=terminated(1))
    written = [a for a in world.plan().actions if a.name == "digits-ps-0"]
    assert len(written) == 1
    world.settle()
    assert primary(world) == ("digits-standby-0", "1")
    assert service(world)["spec"]["ports"]


def test_a_correction_keeps_the_primary_and_requires_the_observed_version() -> None:
    world = warm()
    fail(world, state=terminated(1))
    world.settle()
    service(world)["metadata"]["resourceVersion"] = "78"
    service(world)["spec"]["ports"] = []
    (action,) = world.plan().actions
    assert isinstance(action, Apply)
    assert action.body["metadata"]["resourceVersion"] == "78"
    world.settle()
    assert primary(world) == ("digits-standby-0", "1")


def test_a_standby_that_is_not_ready_is_never_promoted() -> None:
    world = warm()
    fail(world, 1, state=terminated(1))
    fail(world, state=terminated(1))
    assert not world.plan().actions
    fail(world, 1, ready=True, state=STARTED)
    world.reconcile()
    assert primary(world) == ("digits-standby-0", "1")


def test_the_former_primary_is_promoted_when_the_standby_is_lost() -> None:
    world = warm()
    world.delete_pod("ps")
    world.settle()
    assert primary(world) == ("digits-standby-0", "1")
    world.delete_pod("ps", member=1)
    world.settle()
    assert primary(world) == ("digits-ps-0", "2")


def test_a_running_former_primary_is_deleted() -> None:
    world = warm()
    fail(world, state=STARTED)
    world.pods["digits-ps-0"]["status"]["conditions"][0]["lastTransitionTime"] = "2030-01-01T12:01:00Z"
    hung = world.pods["digits-ps-0"]["metadata"]["uid"]
    flip, *rest = world.plan().actions
    assert isinstance(flip, Apply)
    assert [(type(a), a.kind, a.name) for a in rest] == [(Delete, Kind.POD, "digits-ps-0")]
    world.reconcile(stop_after=1)
    assert primary(world) == ("digits-standby-0", "1")
    assert hung in {p["metadata"]["uid"] for p in world.pods.values()}
    fail(world, ready=True)
    fail(world, 1, state=terminated(1))
    world.reconcile()
    (action,) = world.plan().actions
    assert isinstance(action, Delete), "it is no successor of its successor"
    assert action.uid == hung
    world.settle()
    assert hung not in {p["metadata"]["uid"] for p in world.pods.values()}


def test_a_switchover_happens_once() -> None:
    world = warm()
    assert world.job is not None
    world.job["metadata"]["annotations"] = {names.ANNOTATION_TAKEOVER: "0@0"}
    old = world.pods["digits-ps-0"]["metadata"]["uid"]
    world.settle()
    assert primary(world) == ("digits-standby-0", "1")
    assert service(world)["metadata"]["annotations"][names.ANNOTATION_CAUSE] == "requested"
    assert world.pods["digits-ps-0"]["metadata"]["uid"] != old, "its clients must not continue with it"
    world.delete_pod("ps", member=1)
    world.settle()
    assert primary(world) == ("digits-ps-0", "2")


@pytest.mark.parametrize("text", ["0@1", "1@0", "x", "0@", "@0", ""])
def test_a_switchover_names_the_shard_and_the_epoch(text: str) -> None:
    world = warm()
    assert world.job is not None
    world.job["metadata"]["annotations"] = {names.ANNOTATION_TAKEOVER: text}
    assert not world.plan().actions


def test_a_suspension_keeps_the_pointer_and_less_redundancy_corrects_it() -> None:
    world = warm()
    world.delete_pod("ps")
    world.settle()
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    assert not world.pods
    world.edit({"runPolicy": {"suspend": False}})
    world.settle()
    assert primary(world) == ("digits-standby-0", "1")
    for spec in (
        {"runPolicy": {"suspend": True}, "ps": {"standby": {"mode": "None"}}},
        {"runPolicy": {"suspend": False}},
    ):
        world.edit(spec)
        world.settle()
    assert primary(world) == ("digits-ps-0", "2")
    assert world.names_of("StatefulSet") == ["digits-ps"]
    assert world.names_of("PodDisruptionBudget") == []


def test_a_finished_job_frees_standbys_and_budgets() -> None:
    world = warm()
    world.end("chief")
    world.settle()
    assert {k for k, _ in world.children} == {"Job"}


def test_a_lost_service_is_recreated_for_the_last_primary() -> None:
    world = warm()
    world.delete_pod("ps")
    world.settle()
    del world.children["Service", "digits-ps-0"]
    (action,) = world.plan().actions
    assert isinstance(action, Create)
    world.settle()
    assert primary(world) == ("digits-standby-0", "1")


def test_members_of_a_shard_are_counted_apart_and_share_a_budget() -> None:
    world = warm(runPolicy={"backoffLimit": 3})
    world.end("ps", code=1)
    world.end("ps", code=1, member=1)
    world.reconcile()
    world.end("ps", code=1)
    world.reconcile()
    assert world.job is not None
    records = {(r["role"], r["member"]): r["failures"] for r in world.job["status"]["replicaRecords"]}
    assert records == {("ps", 0): 2, ("ps", 1): 1}
    assert phase(world) == "Running"
    world.end("ps", code=1, member=1)
    world.reconcile()
    assert phase(world) == "Failed"
    assert "ps 0 failed 4 times" in world.condition("Failed")["message"]


def test_the_state_of_the_shards_is_reported() -> None:
    world = warm(ps={"replicas": 2, "standby": {"mode": "Warm"}})
    assert world.job is not None
    status = world.job["status"]
    assert status["shards"][1] == {
        "index": 1,
        "members": 2,
        "primary": "digits-ps-1",
        "readyStandbys": 1,
        "takeovers": 0,
        "lastCause": "",
    }
    assert status["standbySummary"] == "2/2"
    assert status["ps"]["summary"] == "2/2", "shards are counted, not members"
    assert "Degraded" not in {c["type"] for c in status["conditions"]}
    fail(world, index=1, state=terminated(137), restarts=1)
    world.settle()
    status = world.job["status"]
    assert status["takeovers"] == 1
    assert status["standbySummary"] == "1/2"
    assert status["ps"]["summary"] == "2/2"
    assert status["shards"][1]["primary"] == "digits-standby-1"
    assert status["shards"][1]["lastCause"] == "container ended with code 137"
    degraded = world.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "StandbyMissing")
    assert degraded["message"] == "Shard 1: pod digits-ps-1 is not ready yet"
    fail(world, index=1, ready=True, state=STARTED, last=terminated(137))
    world.settle()
    assert (world.condition("Degraded")["status"], world.condition("Degraded")["reason"]) == ("False", "StandbysReady")
    reported = [e for e in world.reported if e.reason == "TookOver"]
    assert [e.message for e in reported] == [
        "Shard 1: digits-standby-1 is now the primary (container ended with code 137)."
    ], "once"
    assert [e.reason for e in world.reported].count("Degraded") == 1


def test_an_unschedulable_standby_is_reported_and_the_job_runs() -> None:
    world = World(job(spec=WARM))
    world.reconcile()
    world.controllers()
    found = world.pods["digits-standby-0"]
    found["status"]["phase"] = "Pending"
    found["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}
    ]
    found["status"]["containerStatuses"] = []
    world.settle()
    assert "Degraded" not in {c["type"] for c in (world.job or {})["status"]["conditions"]}, "it was created just now"
    due = world.plan().requeue_at
    assert due is not None
    world.now = due
    world.settle()
    assert world.condition("Degraded")["message"] == (
        "Shard 0: Pod digits-standby-0 cannot be scheduled: 0/1 nodes are available"
    )
    assert phase(world) == "Running"
    assert world.condition("Running")["reason"] == "Training"


def test_a_standby_without_a_pod_is_missing_only_after_a_delay() -> None:
    world = World(job(spec=WARM))
    world.reconcile()
    world.controllers()
    late = world.pods.pop("digits-standby-0")
    for found in world.pods.values():
        found["metadata"]["creationTimestamp"] = world.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    fail(world, ready=True, state=STARTED)
    world.reconcile()
    assert "Degraded" not in {c["type"] for c in (world.job or {})["status"]["conditions"]}, "the other was faster"
    due = world.plan().requeue_at
    assert due is not None
    world.now = due
    world.reconcile()
    assert world.condition("Degraded")["message"] == f"Shard 0: there is no pod {late['metadata']['name']} yet"


def test_a_deleted_pod_gets_no_other_write() -> None:
    world = warm()
    assert world.job is not None
    world.job["metadata"]["annotations"] = {names.ANNOTATION_TAKEOVER: "0@0"}
    world.pods["digits-ps-0"]["metadata"]["annotations"][names.ANNOTATION_CLUSTER_HASH] = "older"
    assert [type(a) for a in world.plan().actions if a.name == "digits-ps-0" and a.kind is Kind.POD] == [Delete]
