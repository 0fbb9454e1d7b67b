"""A pod's problem is reported with the pod's name, in a message that stays the same while it lasts."""

from datetime import timedelta
from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.controller.transform import transform
from pstraining.core.actions import Outcomes
from pstraining.core.facts import gather
from pstraining.core.observe import observe
from pstraining.core.policies.diagnosis import (
    UNEXPLAINED_GRACE,
    UNSCHEDULABLE_GRACE,
    Diagnosis,
    diagnose,
    requeue_at,
    unexplained,
)
from pstraining.core.status import next_status
from tests.support.builders import NOW, UID, job, pod, stamp, terminated
from tests.support.simulation import World, running

LATER = NOW + timedelta(minutes=1)


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


CASES = [
    (pod("ps", phase="Pending", state={}, unschedulable="0/2 nodes are available"), Reason.UNSCHEDULABLE),
    (pod("ps", state=waiting("ErrImagePull", "rpc error 1")), Reason.IMAGE_PULL_FAILED),
    (pod("ps", state=waiting("ImagePullBackOff", "Back-off 10s")), Reason.IMAGE_PULL_FAILED),
    (pod("ps", state=waiting("SignatureValidationFailed", "rejected")), Reason.IMAGE_PULL_FAILED),
    (pod("ps", state=waiting("RegistryUnavailable", "no such host")), Reason.IMAGE_PULL_FAILED),
    (pod("ps", state=waiting("InvalidImageName")), Reason.IMAGE_PULL_FAILED),
    (pod("ps", state=waiting("CreateContainerConfigError", "no such key")), Reason.CONTAINER_CONFIG_INVALID),
    (pod("ps", state=waiting("CrashLoopBackOff"), last=terminated(7, "boom")), Reason.CRASH_LOOP),
]


@pytest.mark.parametrize(("seen", "reason"), CASES)
def test_the_pod_is_named(seen: dict[str, Any], reason: Reason) -> None:
    found = diagnose(observe(job(), (), (seen,)), LATER)
    assert found is not None
    assert found.reason is reason
    assert "digits-ps-0" in found.message


def test_all_reports_of_a_failing_pull_have_the_same_message() -> None:
    """The kubelet alternates between the back-off and the failure of each attempt."""
    faces = [diagnose(observe(job(), (), (c,)), LATER) for c, _ in CASES[1:5]]
    assert len({face and face.message for face in faces}) == 1


def test_a_healthy_starting_or_stopping_pod_is_not_a_problem() -> None:
    pods = (pod("ps"), pod("worker", state=waiting("ContainerCreating")), pod("worker", 1, deleting=True))
    assert diagnose(observe(job(), (), pods), LATER) is None


def test_a_mount_failure_is_reported_with_kubernetes_message() -> None:
    waits = pod("ps", phase="Pending", state=waiting("ContainerCreating"), ready=False)
    late = NOW + UNEXPLAINED_GRACE + timedelta(seconds=2)
    seen = observe(job(), (), (waits,))
    assert [p.name for p in unexplained(seen, late)] == ["digits-ps-0"]
    assert unexplained(seen, NOW + timedelta(seconds=2)) == [], "it may be about to run"
    words = 'MountVolume.SetUp failed for volume "keys" : secret "absent" not found'
    seen = observe(job(), (), (waits,), mount_failures={waits["metadata"]["uid"]: words})
    found = diagnose(seen, late)
    assert found is not None
    assert found.reason is Reason.VOLUME_NOT_MOUNTED
    assert words in found.message
    assert [p.name for p in unexplained(seen, late)] == ["digits-ps-0"], "it is read again, as it may change"


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": [{"type": "PodReadyToStartContainers", "status": "True"}]},
        {"initContainerStatuses": [{"name": "fetch", "state": {"running": {}}}]},
        {"initContainerStatuses": [{"name": "fetch", "state": {"terminated": {"exitCode": 0}}}]},
    ],
    ids=["its sandbox exists", "an init container runs", "one has ended"],
)
def test_a_recovered_mount_failure_is_not_reported(status: dict[str, Any]) -> None:
    waits = pod("ps", phase="Pending", state=waiting("PodInitializing"), ready=False)
    waits["spec"]["initContainers"] = [{"name": "fetch"}]
    waits["status"] |= status
    late = NOW + UNEXPLAINED_GRACE + timedelta(seconds=2)
    seen = observe(
        job(), (), (transform({**waits, "kind": "Pod"}),), mount_failures={waits["metadata"]["uid"]: "timed out"}
    )
    found = diagnose(seen, late)
    assert found is not None
    assert found.reason is Reason.STILL_WAITING
    assert unexplained(seen, late) == []


@pytest.mark.parametrize("seen", [c for c, _ in CASES])
def test_a_known_cause_needs_no_events(seen: dict[str, Any]) -> None:
    assert unexplained(observe(job(), (), (seen,)), NOW + timedelta(minutes=5)) == []


@pytest.mark.parametrize("role", ["chief", "worker", "evaluator"])
def test_a_waiting_launcher_is_not_a_running_program(role: str) -> None:
    waits = pod(role, ready=False, state={"running": {"startedAt": stamp(NOW)}})
    found = diagnose(observe(job(), (), (waits,)), NOW + UNEXPLAINED_GRACE + timedelta(seconds=2))
    assert found is not None
    assert found.reason is Reason.STILL_WAITING
    assert "its launcher waits, or its readiness probe fails" in found.message
    assert "kubectl logs" in found.message


def test_parameter_servers_come_first() -> None:
    pods = (pod("worker", state=waiting("ErrImagePull")), pod("ps", state=waiting("ErrImagePull")))
    found = diagnose(observe(job(), (), pods), LATER)
    assert found is not None
    assert found.pod is not None
    assert found.pod.role == "ps"


def test_a_failing_init_container_is_reported() -> None:
    seen = pod("worker", phase="Pending", state=waiting("PodInitializing"))
    seen["status"]["initContainerStatuses"] = [
        {"name": "fetch", "image": "fetch:1", "state": waiting("ImagePullBackOff"), "restartCount": 0}
    ]
    found = diagnose(observe(job(), (), (seen,)), LATER)
    assert found is not None
    assert "fetch:1" in found.message


def test_a_new_pod_gets_time_to_be_scheduled() -> None:
    made = timedelta(seconds=1)
    seen = observe(job(), (), (pod("ps", created=made, phase="Pending", state={}, unschedulable="no"),))
    due = NOW + made + UNSCHEDULABLE_GRACE
    assert diagnose(seen, due - timedelta(seconds=1)) is None
    assert requeue_at(seen, due - timedelta(seconds=1)) == due
    assert diagnose(seen, due) is not None
    assert requeue_at(seen, due) is None


def test_a_gated_pod_is_reported_with_its_gate_after_a_delay() -> None:
    made = timedelta(seconds=1)
    waits = pod("ps", created=made, phase="Pending", state={})
    waits["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    seen = observe(job(), (), (transform({**waits, "kind": "Pod"}),))
    due = NOW + made + UNSCHEDULABLE_GRACE
    assert diagnose(seen, due - timedelta(seconds=1)) is None
    assert requeue_at(seen, due - timedelta(seconds=1)) == due
    found = diagnose(seen, due)
    assert found is not None
    assert found.reason is Reason.SCHEDULING_GATED
    assert "digits-ps-0" in found.message
    assert "kueue.x-k8s.io/admission" in found.message


def test_a_failed_init_container_is_reported_with_its_name_and_message() -> None:
    seen = pod("worker", phase="Pending", state=waiting("PodInitializing"))
    ended = {"state": waiting("CrashLoopBackOff"), "lastState": terminated(4, "no such bucket")}
    seen["status"]["initContainerStatuses"] = [{"name": "fetch", "image": "i", "restartCount": 3, **ended}]
    found = diagnose(observe(job(), (), (seen,)), LATER)
    assert found is not None
    assert found.reason is Reason.INIT_CONTAINER_FAILED
    assert "init container fetch keeps failing with exit code 4: no such bucket" in found.message
    assert "-c fetch" in found.message


def workload(kind: str, name: str, labels: dict[str, str], **status: Any) -> dict[str, Any]:
    owner = {"controller": True, "uid": UID}
    metadata = {
        "name": name,
        "uid": name,
        "labels": labels,
        "ownerReferences": [owner],
        "creationTimestamp": stamp(NOW),
    }
    return {"kind": kind, "metadata": metadata, "spec": {"replicas": 1}, "status": status}


STATEFUL_SET = workload("StatefulSet", "digits-ps", {names.LABEL_ROLE: "ps", names.LABEL_MEMBER: "0"})
CHIEF = workload("Job", "digits-chief-1", {names.LABEL_ROLE: "chief", names.LABEL_TERM: "1"})
WORKER_LABELS = {names.LABEL_ROLE: "worker", names.LABEL_INDEX: "0"}
QUOTA = (
    'create Pod digits-ps-0 in StatefulSet digits-ps failed error: pods "digits-ps-0" is forbidden: exceeded quota: '
    "small, requested: cpu=2, used: cpu={}, limited: cpu=4"
)
WEBHOOK = (
    'Error creating: pods "digits-chief-1-{}" is forbidden: violates PodSecurity "restricted:latest": seccompProfile.'
)


def refused(child: dict[str, Any], words: str, *pods: dict[str, Any]) -> Diagnosis | None:
    return diagnose(observe(job(), (child,), pods, None, {child["metadata"]["uid"]: words}), NOW)


def test_an_exceeded_quota_is_reported_without_its_usage() -> None:
    found = [refused(STATEFUL_SET, QUOTA.format(used)) for used in (3, 4)]
    assert found[0] is not None
    assert found[0] == found[1]
    assert found[0].reason is Reason.QUOTA_EXCEEDED
    assert "StatefulSet digits-ps can have no pod: exceeded quota: small, requested: cpu=2;" in found[0].message


def test_the_rejecting_webhook_is_reported_without_the_pods_generated_name() -> None:
    found = [refused(CHIEF, WEBHOOK.format(name)) for name in ("abcde", "fghij")]
    assert found[0] is not None
    assert found[0] == found[1]
    assert found[0].reason is Reason.PODS_REFUSED
    assert 'violates PodSecurity "restricted:latest": seccompProfile; see `kubectl describe job' in found[0].message


def test_a_deployment_reports_its_own_failure() -> None:
    failing = {"type": "ReplicaFailure", "status": "True", "message": QUOTA.format(1)}
    child = workload("Deployment", "digits-worker-0", WORKER_LABELS, conditions=[failing])
    found = refused(child, "")
    assert found is not None
    assert found.reason is Reason.QUOTA_EXCEEDED


def test_a_workload_with_its_pod_has_no_creation_failure() -> None:
    assert refused(STATEFUL_SET, QUOTA, pod("ps")) is None
    assert refused(CHIEF, WEBHOOK, pod("chief", term=1)) is None
    found = refused(CHIEF, WEBHOOK, pod("chief", term=2))
    assert found is not None, "another attempt's pod is not its own"


SLOW = [
    (pod("worker", state=waiting("ContainerCreating")), "(ContainerCreating); see `kubectl describe pod"),
    (pod("ps", ready=False), "(it runs, but is not ready); see `kubectl logs"),
    (pod("chief", term=1, phase="Pending", state={}), "(Pending)"),
]


@pytest.mark.parametrize(("seen", "words"), SLOW)
def test_an_unexplained_wait_is_reported_after_a_minute(seen: dict[str, Any], words: str) -> None:
    due = NOW + timedelta(seconds=1) + UNEXPLAINED_GRACE
    snapshot = observe(job(), (), (seen,))
    assert diagnose(snapshot, due - timedelta(seconds=1)) is None
    assert requeue_at(snapshot, due - timedelta(seconds=1)) == due, "without asking again and again"
    found = diagnose(snapshot, due)
    assert found is not None
    assert (found.reason, words in found.message) == (Reason.STILL_WAITING, True)
    assert diagnose(snapshot, due + timedelta(hours=1)) == found, "in words that do not change"


def test_a_workload_without_a_pod_is_reported() -> None:
    snapshot = observe(job(), (STATEFUL_SET,), ())
    assert diagnose(snapshot, NOW) is None
    assert requeue_at(snapshot, NOW) == NOW + UNEXPLAINED_GRACE
    found = diagnose(snapshot, NOW + UNEXPLAINED_GRACE)
    assert found is not None
    assert found.message.startswith("StatefulSet digits-ps has lacked a pod for a minute")


def test_a_pod_in_replacement_is_not_reported_as_missing() -> None:
    """A pod that is being replaced is not reported as missing, however old its StatefulSet is."""
    world = World(job())
    world.settle()
    for child in world.children.values():
        child["metadata"]["creationTimestamp"] = stamp(world.now)
    world.now += timedelta(minutes=10)
    world.delete_pod("ps")
    world.reconcile()
    assert world.condition("Running")["reason"] == Reason.WAITING_FOR_PODS
    world.pods = {n: p for n, p in world.pods.items() if n != "digits-ps-0"}
    made = world.reconcile()
    assert made.requeue_at == world.now + UNEXPLAINED_GRACE
    world.now += UNEXPLAINED_GRACE
    world.reconcile()
    assert world.condition("Running")["reason"] == Reason.STILL_WAITING


def test_a_quota_without_room_for_new_servers_is_reported() -> None:
    world = running(ps={"replicas": 1})
    world.edit({"ps": {"replicas": 2}})
    world.reconcile()  # the StatefulSet is scaled, and its controller can create no pod
    servers = world.children["StatefulSet", "digits-ps"]
    refusals = {servers["metadata"]["uid"]: QUOTA.format(3)}
    snapshot = observe(world.job or {}, world.children.values(), world.pods.values(), None, refusals)
    status = next_status(gather(snapshot, world.now + timedelta(seconds=90)), Outcomes(()))
    (condition,) = [c for c in status["conditions"] if c["type"] == "Rescaling"]
    assert (condition["status"], condition["reason"]) == ("True", "StartingServers")
    assert "StatefulSet digits-ps can have no pod: exceeded quota: small" in condition["message"]


def test_the_status_reports_the_diagnosis() -> None:
    world = World(job())
    world.settle()
    world.pods["digits-ps-0"]["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    due = world.plan().requeue_at
    assert due is not None
    world.now = due
    world.settle()
    reported = world.condition("Running")
    assert (reported["status"], reported["reason"]) == ("False", "StillWaiting")
