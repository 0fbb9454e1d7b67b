"""Rules of spec.failurePolicy do not apply to pods that the operator itself deletes."""

from typing import Any

import pytest

from pstraining.api import names
from pstraining.core.actions import Apply, Delete, Kind
from tests.support.builders import NOW, TEMPLATE, deep_merge, job, stamp
from tests.support.simulation import World, phase

ACTIONS = ["FailJob", "RestartJob", "RestartReplica"]
WARM = {"ps": {"standby": {"mode": "Warm"}}}
HOT = {"ps": {"template": TEMPLATE, "standby": {"mode": "Hot"}}, "training": {"mode": "Sync"}}
UNREADY = {"type": "Ready", "status": "False", "lastTransitionTime": stamp(NOW)}


class SlowlyEndingWorld(World):
    """A world whose deleted pods stay for a while, without the end of their last run."""

    def _delete(self, action: Delete, key: tuple[str, str]) -> None:
        if action.kind is not Kind.POD:
            super()._delete(action, key)
            return
        found = self.pods[action.name]
        found["metadata"] |= {"deletionTimestamp": stamp(NOW), "deletionGracePeriodSeconds": 0}
        found["status"]["containerStatuses"][0]["lastState"] = {}


def with_rule(action: str, spec: dict[str, Any], **rule: Any) -> SlowlyEndingWorld:
    """Return a running job with a rule about deleted pods, or about the failures that `rule` names."""
    own = {**(rule or {"reasons": ["Deleted"]}), "action": action}
    rules = [{"reasons": ["Error"], "action": "RestartReplica"}, own]
    world = SlowlyEndingWorld(job(spec=deep_merge(spec, {"failurePolicy": {"rules": rules}})))
    world.settle()
    assert phase(world) == "Running"
    return world


def counters(world: World) -> list[tuple[str, int, int]]:
    """Return the failures and restarts of each replica after some passes."""
    for _ in range(5):
        world.reconcile()
    assert world.job is not None
    status = world.job["status"]
    assert (status["phase"], status["jobRestarts"]) == ("Running", 0)
    return [(r["role"], r["failures"], r["restarts"]) for r in status["replicaRecords"]]


def lose_primary(world: World) -> None:
    """Let the primary of a shard fail its probe."""
    found = world.pods["digits-ps-0"]["status"]
    found["conditions"] = [UNREADY]
    found["containerStatuses"][0] |= {"ready": False, "state": {"running": {"startedAt": "2030-01-01T11:00:00Z"}}}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("rule", [{}, {"role": "ps"}])
def test_a_former_primary_that_still_runs_does_not_fail(action: str, rule: dict[str, str]) -> None:
    world = with_rule(action, WARM, **rule)
    lose_primary(world)
    assert counters(world) == [("ps", 0, 1)]
    assert [kind for _, kind, name in world.writes if name == "digits-ps-0"][-2:] == ["Pod", "Pod"]


@pytest.mark.parametrize("action", ACTIONS)
def test_a_server_that_gets_another_template_does_not_fail(action: str) -> None:
    world = with_rule(action, HOT)
    container = {**TEMPLATE["spec"]["containers"][0], "image": "img:2"}
    world.edit({"ps": {"template": {"spec": {"containers": [container]}}}})
    assert counters(world) == [("ps", 0, 1)]


@pytest.mark.parametrize("action", ACTIONS)
def test_a_launcher_that_idles_fails_only_once(action: str) -> None:
    world = with_rule(action, {"worker": {"restartPolicy": "Never"}})
    world.end(names.WORKER, 1, 1)
    assert counters(world) == [("worker", 1, 2)]


def test_a_worker_is_annotated_before_its_deployment_replaces_it() -> None:
    world = with_rule("FailJob", {"worker": {"resources": {"limits": {"memory": "1Gi"}}}})
    (pod,) = (name for name in world.pods if name.startswith("digits-worker-0-"))
    world.edit({"worker": {"resources": {"limits": {"memory": "2Gi"}}}})
    world.reconcile()
    assert world.writes[-2:] == [("Apply", Kind.POD, pod), ("Replace", Kind.DEPLOYMENT, "digits-worker-0")]


@pytest.mark.parametrize("action", ["FailJob", "RestartJob"])
@pytest.mark.parametrize(
    ("change", "withdrawn"),
    [
        ({"worker": {"replicas": 1}}, {"worker": {"replicas": 2}}),
        ({"runPolicy": {"suspend": True}}, {"runPolicy": {"suspend": False}}),
    ],
)
def test_pods_that_still_end_after_a_withdrawn_change_do_not_fail(
    action: str, change: dict[str, Any], withdrawn: dict[str, Any]
) -> None:
    world = with_rule(action, {})
    ending = [name for name in world.pods if "-worker-1-" in name or "-chief-" in name]
    world.edit(change)
    world.reconcile()
    for name in ending:
        if world.pods[name]["metadata"]["annotations"].get(names.ANNOTATION_REPLACED):
            world.pods[name]["metadata"]["deletionTimestamp"] = stamp(NOW)
    assert [name for name in ending if world.pods[name]["metadata"].get("deletionTimestamp")]
    world.edit(withdrawn)
    for _ in range(5):
        world.reconcile()
    assert world.job is not None
    status = world.job["status"]
    assert (status["phase"] != "Failed", status["jobRestarts"]) == (True, 0)
    assert not any(record["failures"] for record in status["replicaRecords"])


def test_a_pod_stays_annotated_when_its_cluster_map_changes() -> None:
    world = with_rule("FailJob", {})
    annotations = next(iter(world.pods.values()))["metadata"]["annotations"]
    annotations |= {names.ANNOTATION_CLUSTER_HASH: "former", names.ANNOTATION_REPLACED: "true"}
    (written,) = (action for action in world.plan().actions if isinstance(action, Apply))
    assert written.body["metadata"]["annotations"][names.ANNOTATION_REPLACED] == "true"
    assert written.body["metadata"]["annotations"][names.ANNOTATION_CLUSTER_HASH] != "former"


def test_jobs_without_rules_need_no_annotation() -> None:
    world = SlowlyEndingWorld(job(spec=WARM))
    world.settle()
    lose_primary(world)
    assert counters(world) == [("ps", 0, 1)]
    assert ("Apply", Kind.POD, "digits-ps-0") not in world.writes


@pytest.mark.parametrize(("action", "failed"), [("FailJob", "Failed"), ("RestartJob", "Running")])
def test_a_pod_that_a_user_deletes_fails_by_the_rule(action: str, failed: str) -> None:
    world = with_rule(action, {})
    world.delete_pod(names.WORKER, 1)
    world.settle()
    assert world.job is not None
    assert (phase(world), world.job["status"]["jobRestarts"]) == (failed, int(action == "RestartJob"))
