"""Changed resources of running pods: applied in place, by replacement, or only to later pods."""

from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.core.actions import Create, Delete, Kind, Replace, Resize
from pstraining.core.facts import Facts, gather
from pstraining.core.policies import resizing
from pstraining.resources.installation import Installation
from tests.support.builders import deep_merge
from tests.support.simulation import World, phase, running
from tests.unit.core.test_hot_standby import hot, turn

RESIZES = Installation(resizes_pods=True)


def size(memory: str) -> dict[str, Any]:
    return {"requests": {"memory": memory}, "limits": {"memory": memory}}


SMALL, LARGE = size("1Gi"), size("4Gi")
ROLES = ("ps", "worker", "chief")


def sized(*, in_place: bool = True, **spec: Any) -> World:
    """Return a running job whose roles have a size."""
    sizes: dict[str, Any] = {role: {"resources": size("1Gi")} for role in ROLES}
    world = running(**deep_merge({**sizes, "ps": {"replicas": 2, "resources": size("1Gi")}}, spec))
    world.installation = RESIZES if in_place else Installation()
    return world


def pods_of(world: World, role: str) -> list[dict[str, Any]]:
    return [p for p in world.pods.values() if p["metadata"]["labels"][names.LABEL_ROLE] == role]


def memory(world: World, role: str) -> list[str]:
    """Return the limits to which pods have been resized."""
    return [
        (p["spec"]["containers"][0].get("resources") or {}).get("limits", {}).get("memory")
        for p in pods_of(world, role)
    ]


def resized(world: World) -> list[str]:
    """Return the pods that the next pass resizes."""
    return [a.name for a in world.plan().actions if isinstance(a, Resize)]


def report(world: World) -> tuple[str, str]:
    found = world.condition("Resizing")
    return found["status"], found["reason"]


def kubelet(
    world: World, pod: dict[str, Any], reason: str = "", message: str = "", *, kind: str = "PodResizePending"
) -> None:
    """Report a resize as a kubelet does; without a reason it is complete."""
    pod["status"]["conditions"] = [c for c in pod["status"]["conditions"] if not c["type"].startswith("PodResize")]
    if reason:
        condition = {"type": kind, "status": "True", "reason": reason, "message": message}
        pod["status"]["conditions"].append(condition)


@pytest.mark.parametrize("role", ROLES)
def test_running_pods_are_resized_in_place(role: str) -> None:
    world = sized()
    before = {n: p["metadata"]["uid"] for n, p in world.pods.items()}
    world.edit({role: {"resources": LARGE}})
    world.reconcile()
    assert set(memory(world, role)) == {"4Gi"}
    assert report(world) == ("True", "ResizeInProgress")
    world.settle()
    assert report(world) == ("False", "Resized")
    assert {n: p["metadata"]["uid"] for n, p in world.pods.items()} == before, "no pod was replaced"
    others = [r for r in ROLES if r != role]
    assert all(set(memory(world, r)) == {None} for r in others), "other roles keep their size"
    reported = [e.reason for e in world.reported if e.reason in ("ResizeInProgress", "Resized")]
    assert reported == ["ResizeInProgress", "Resized"]


def test_a_server_that_comes_back_has_the_new_size() -> None:
    world = sized()
    world.edit({"ps": {"resources": LARGE}})
    world.settle()
    template = world.children["StatefulSet", "digits-ps"]["spec"]["template"]
    assert template["spec"]["containers"][0]["resources"] == LARGE


def test_a_worker_that_comes_back_is_resized_again() -> None:
    """A returning worker is resized again, because another template would replace the pods of its Deployment."""
    world = sized()
    before = {n: c for (k, n), c in world.children.items() if k == "Deployment"}
    world.edit({"worker": {"resources": LARGE}})
    world.settle()
    templates = [c["spec"]["template"]["spec"]["containers"][0]["resources"] for c in before.values()]
    assert templates == [SMALL, SMALL]
    world.delete_pod("worker", 1)
    world.controllers()
    world.controllers()
    assert sorted(map(str, memory(world, "worker"))) == ["4Gi", "None"]
    world.settle()
    assert memory(world, "worker") == ["4Gi", "4Gi"]


def test_the_next_attempt_of_the_chief_has_the_new_size() -> None:
    world = sized(in_place=False)
    world.edit({"chief": {"resources": LARGE}})
    world.settle()
    world.end("chief", code=1)
    world.settle()
    (chief,) = [p for p in pods_of(world, "chief") if p["status"]["phase"] == "Running"]
    assert '"4Gi"' in chief["metadata"]["annotations"][names.ANNOTATION_SIZE]
    assert report(world) == ("False", "Resized")


@pytest.mark.parametrize("stop_after", range(4))
def test_a_resize_that_was_not_recorded_is_sent_again(stop_after: int) -> None:
    world = sized()
    world.edit({"ps": {"resources": LARGE}})
    world.reconcile(stop_after=stop_after)
    world.settle()
    assert memory(world, "ps") == ["4Gi", "4Gi"]
    assert not resized(world)


def test_a_size_that_is_taken_back_is_resized_back() -> None:
    world = sized()
    for size in (LARGE, SMALL):
        world.edit({"worker": {"resources": size}})
        world.settle()
    assert memory(world, "worker") == ["1Gi", "1Gi"]


def test_pods_of_older_operators_and_changes_at_admission_are_left_alone() -> None:
    world = sized()
    for pod in pods_of(world, "ps"):
        del pod["metadata"]["annotations"][names.ANNOTATION_SIZE]
    for pod in pods_of(world, "worker"):
        pod["spec"]["containers"][0]["resources"] = {"limits": {"memory": "7Gi"}}
    assert not world.plan().actions
    world.edit({"ps": {"resources": LARGE}})
    assert not resized(world)


def test_a_node_without_room_is_waited_for() -> None:
    world = sized()
    world.edit({"chief": {"resources": LARGE}})
    world.reconcile()
    (chief,) = pods_of(world, "chief")
    kubelet(world, chief, "Deferred", "Node didn't have enough resource: memory")
    world.settle()
    assert report(world) == ("True", "ResizeDeferred")
    assert "Node didn't have enough resource" in world.condition("Resizing")["message"]
    kubelet(world, chief)
    world.settle()
    assert report(world) == ("False", "Resized")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"limits": {"memory": "4Gi", "nvidia.com/gpu": 1}}, "nvidia.com/gpu changes"),
        ({"requests": {"memory": "2Gi"}, "limits": {"memory": None}}, "limits.memory is removed"),
        ({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}, "from Burstable to Guaranteed"),
    ],
)
def test_a_change_that_kubernetes_does_not_allow_is_not_sent(change: dict[str, Any], words: str) -> None:
    world = sized()
    world.edit({"chief": {"resources": change}})
    resources = world.job["spec"]["chief"]["resources"]  # type: ignore[index]
    resources["limits"] = {k: v for k, v in resources["limits"].items() if v is not None}
    world.settle()
    assert memory(world, "chief") == [None]
    assert report(world) == ("False", "ResizeInfeasible")
    message = world.condition("Resizing")["message"]
    assert words in message
    assert "spec.runPolicy.suspend" in message, "the way out"


def test_an_older_cluster_keeps_servers_and_replaces_workers_one_at_a_time() -> None:
    world = sized(in_place=False)
    servers = {p["metadata"]["uid"] for p in pods_of(world, "ps")}
    workers = {p["metadata"]["uid"] for p in pods_of(world, "worker")}
    world.edit({"ps": {"resources": LARGE}, "worker": {"resources": LARGE}})
    world.reconcile()
    assert report(world) == ("True", "ReplacingPods")
    assert len(workers & {p["metadata"]["uid"] for p in pods_of(world, "worker")}) == 1
    assert not [a for a in world.plan().actions if isinstance(a, Replace)], "the other waits for this one"
    world.settle()
    assert not workers & {p["metadata"]["uid"] for p in pods_of(world, "worker")}
    assert {p["metadata"]["uid"] for p in pods_of(world, "ps")} == servers
    assert report(world) == ("False", "ResizeInfeasible")
    assert resizing.NOT_SERVED in world.condition("Resizing")["message"]
    assert world.condition("Resizing")["message"].endswith("from the beginning (spec.checkpoint is not set).")
    assert phase(world) == "Running"


def test_a_worker_with_the_chiefs_duties_is_not_replaced() -> None:
    world = sized(in_place=False, chief={"enabled": False})
    (first,) = [
        p["metadata"]["uid"] for p in pods_of(world, "worker") if p["metadata"]["labels"][names.LABEL_INDEX] == "0"
    ]
    world.edit({"worker": {"resources": LARGE}})
    world.settle()
    assert first in {p["metadata"]["uid"] for p in pods_of(world, "worker")}
    assert "digits-worker-0" in world.condition("Resizing")["message"]


def test_a_worker_is_not_replaced_while_its_former_pod_is_on_a_lost_node() -> None:
    """The Deployment would delete the present pod, and create no other before the former one has ended."""
    world = sized(in_place=False)
    present = next(p for p in pods_of(world, "worker") if p["metadata"]["labels"][names.LABEL_INDEX] == "0")
    gone = {"name": "digits-worker-0-lost", "uid": "lost", "deletionTimestamp": "2030-01-01T12:00:00Z"}
    world.pods["lost"] = deep_merge(present, {"metadata": gone})
    world.edit({"worker": {"resources": LARGE}})
    assert [a.name for a in world.plan().actions if a.kind is Kind.DEPLOYMENT] == ["digits-worker-1"]
    del world.pods["lost"]
    assert [a.name for a in world.plan().actions if a.kind is Kind.DEPLOYMENT] == ["digits-worker-0"]


def test_a_worker_whose_node_can_never_grant_it_is_replaced_once() -> None:
    world = sized()
    world.edit({"worker": {"resources": LARGE}})
    world.settle()
    stuck = pods_of(world, "worker")[0]
    kubelet(world, stuck, "Infeasible", "Node didn't have enough capacity: memory")
    world.reconcile()
    assert world.condition("Resizing")["reason"] == "ReplacingPods"
    world.settle()
    assert stuck["metadata"]["uid"] not in {p["metadata"]["uid"] for p in pods_of(world, "worker")}
    assert report(world) == ("False", "Resized")
    again = next(p for p in pods_of(world, "worker") if '"4Gi"' in p["metadata"]["annotations"][names.ANNOTATION_SIZE])
    kubelet(world, again, "Infeasible")
    gone = [a for a in world.plan().actions if isinstance(a, Delete | Replace)]
    assert len(gone) == 1, "its Deployment has the size by now: the pod is deleted, or its template is replaced"


def test_a_server_that_never_started_is_recreated() -> None:
    world = sized(in_place=False)
    (server, other) = pods_of(world, "ps")
    server["status"] |= {"phase": "Pending", "containerStatuses": []}
    world.edit({"ps": {"resources": LARGE}})
    assert [a.name for a in world.plan().actions if isinstance(a, Delete)] == [], "it would come back as it was"
    world.reconcile()
    assert [a.name for a in world.plan().actions if isinstance(a, Delete)] == [server["metadata"]["name"]]
    assert other["status"]["phase"] == "Running"


WAITING: dict[str, dict[str, Any]] = {
    "no node has room for it": {"phase": "Pending", "containerStatuses": []},
    "its memory does not suffice": {
        "containerStatuses": [{"name": "tensorflow", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    },
}


@pytest.mark.parametrize("why", WAITING)
def test_workers_that_do_not_run_are_replaced_at_once(why: str) -> None:
    """Their former size may be the cause, so none of them would ever run."""
    world = sized(in_place=False, worker={"replicas": 3})
    runs, *waiting = sorted(pods_of(world, "worker"), key=lambda p: p["metadata"]["labels"][names.LABEL_INDEX])
    for pod in waiting:
        pod["status"] |= WAITING[why]
    world.edit({"worker": {"resources": LARGE}})
    replaced = [a.name for a in world.plan().actions if isinstance(a, Replace) and a.kind is Kind.DEPLOYMENT]
    assert replaced == ["digits-worker-1", "digits-worker-2"]
    world.reconcile()
    assert runs["metadata"]["name"] in world.pods, "it is replaced once the others run"
    world.settle()
    assert {p["metadata"]["uid"] for p in (runs, *waiting)}.isdisjoint(
        p["metadata"]["uid"] for p in pods_of(world, "worker")
    )


def test_a_rejected_size_is_reported_and_not_sent_again() -> None:
    world = sized()
    world.refuse = lambda action: "exceeded quota: q" if isinstance(action, Resize) else ""
    world.edit({"chief": {"resources": LARGE}})
    world.settle()
    assert report(world) == ("False", "ResizeRefused")
    assert "exceeded quota: q" in world.condition("Resizing")["message"]
    assert world.condition("Created")["status"] == "True"
    assert phase(world) == "Running"
    assert not resized(world)
    world.refuse = None
    world.edit({"chief": {"resources": {**LARGE, "limits": {"memory": "5Gi"}}}})
    world.settle()
    assert memory(world, "chief") == ["5Gi"]
    assert report(world) == ("False", "Resized")


@pytest.mark.parametrize(
    ("refused", "in_place"), [("StatefulSet", True), ("StatefulSet", False), ("Deployment", False)]
)
def test_a_template_that_the_api_server_rejects_changes_nothing(refused: str, in_place: bool) -> None:
    world = sized(in_place=in_place)
    uids = {p["metadata"]["uid"] for p in world.pods.values()}
    world.refuse = lambda action: "limits: Invalid value" if action.kind == refused else ""
    world.edit({"ps": {"resources": LARGE}} if refused == "StatefulSet" else {"worker": {"resources": LARGE}})
    world.settle()
    found = world.condition("Updating" if refused == "StatefulSet" else "Resizing")
    assert (found["status"], found["reason"]) == ("False", "UpdateRefused")
    assert {p["metadata"]["uid"] for p in world.pods.values()} == uids
    assert phase(world) == "Running"
    assert not world.plan().actions
    assert not [e for e in world.reported if e.reason in ("ResizeInProgress", "ResizeInfeasible")]


def test_hot_standbys_are_resized_in_place_one_of_a_shard_at_a_time() -> None:
    world = hot(ps={"replicas": 2, "standby": {"mode": "Hot"}, "resources": SMALL})
    world.installation = RESIZES
    before = {n: p["metadata"]["uid"] for n, p in world.pods.items()}
    world.edit({"ps": {"resources": LARGE}})
    assert sorted(resized(world)) == ["digits-standby-0", "digits-standby-1"]
    world.reconcile()
    for name in ("digits-standby-0", "digits-standby-1"):
        kubelet(world, world.pods[name], "InProgress", kind="PodResizeInProgress")
    assert not resized(world), "its other member is being resized"
    kubelet(world, world.pods["digits-standby-1"])
    assert resized(world) == ["digits-ps-1"]
    kubelet(world, world.pods["digits-standby-0"])
    world.settle()
    assert set(memory(world, "ps")) == {"4Gi"}
    assert {n: p["metadata"]["uid"] for n, p in world.pods.items()} == before
    assert not [c for c in world.job["status"]["conditions"] if c["type"] == "Updating"]  # type: ignore[index]
    assert report(world) == ("False", "Resized")
    world.edit({"ps": {"resources": SMALL}})
    world.settle()
    assert set(memory(world, "ps")) == {"1Gi"}
    assert {n: p["metadata"]["uid"] for n, p in world.pods.items()} == before


def test_a_hot_standby_whose_node_can_never_grant_it_is_replaced_beside_the_others() -> None:
    world = hot(ps={"replicas": 1, "standby": {"mode": "Hot"}, "resources": SMALL})
    world.installation = RESIZES
    world.edit({"ps": {"resources": LARGE}})
    world.settle()
    kubelet(world, world.pods["digits-standby-0"], "Infeasible")
    assert [a.name for a in world.plan().actions if isinstance(a, Delete)] == ["digits-standby-0"]
    world.reconcile()
    world.controllers()
    turn(world, "digits-standby-0", ready=True)
    world.settle()
    assert not [a for a in world.plan().actions if isinstance(a, Delete)]


def test_another_template_and_another_size_replace_hot_standbys() -> None:
    world = hot(ps={"replicas": 1, "standby": {"mode": "Hot"}, "resources": SMALL})
    world.installation = RESIZES
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "img:2", "command": ["python"]}]}}
    world.edit({"ps": {"resources": LARGE, "template": template}})
    world.reconcile()
    assert not resized(world)
    assert [a.name for a in world.plan().actions if isinstance(a, Delete)] == ["digits-standby-0"]


def test_the_plan_describes_how_running_pods_are_resized_by_role() -> None:
    world = sized()
    world.edit({"worker": {"resources": LARGE}, "chief": {"resources": {"limits": {"nvidia.com/gpu": 1}}}})
    facts = gather(world.snapshot(), world.now)
    assert isinstance(facts, Facts)
    chief, workers = sorted(resizing.ways(facts))
    assert chief.startswith("digits-chief-")
    assert "limits.nvidia.com/gpu none -> 1: kept until the pod is replaced: nvidia.com/gpu changes" in chief
    assert "limits.memory 1Gi -> 4Gi: resized in place, without a restart." in workers


def test_a_job_that_is_suspended_or_over_is_not_resized() -> None:
    world = sized()
    world.edit({"ps": {"resources": LARGE}})
    world.settle()
    world.end("chief")
    world.settle()
    assert report(world) == ("False", str(Reason.JOB_FINISHED))
    world.edit({"worker": {"resources": LARGE}})
    assert not resized(world)


def test_new_pods_have_the_size_at_once() -> None:
    world = sized()
    world.edit({"worker": {"replicas": 3, "resources": LARGE}})
    (made,) = [a for a in world.plan().actions if isinstance(a, Create) and a.kind is Kind.DEPLOYMENT]
    assert made.body["spec"]["template"]["spec"]["containers"][0]["resources"] == LARGE


def test_a_server_that_is_replaced_is_not_resized_as_well() -> None:
    world = sized(ps={"replicas": 1})
    world.end("ps", code=1)
    (server,) = pods_of(world, "ps")
    server["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    world.reconcile()
    world.edit({"ps": {"resources": LARGE}})
    written = [(type(a), a.name) for a in world.plan().actions if a.kind is Kind.POD]
    assert written == [(Delete, "digits-ps-0")]
