"""What keeps a pod from running is told with the pod's name, and in words that do not change while it lasts."""

from datetime import timedelta
from typing import Any

import pytest

from pstraining.api.conditions import Reason
from pstraining.core.policies.diagnosis import UNSCHEDULABLE_GRACE, diagnose, look_again_at
from pstraining.core.snapshot import observe
from tests.support.builders import NOW, job, pod, terminated

LATER = NOW + timedelta(minutes=1)


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


CASES = [
    (pod("ps", phase="Pending", state={}, unschedulable="0/2 nodes are available"), Reason.UNSCHEDULABLE),
    (pod("ps", state=waiting("ErrImagePull", "rpc error 1")), Reason.IMAGE_PULL_FAILED),
    (pod("ps", state=waiting("ImagePullBackOff", "Back-off 10s")), Reason.IMAGE_PULL_FAILED),
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


def test_the_two_faces_of_a_failing_pull_read_the_same() -> None:
    faces = [diagnose(observe(job(), (), (c,)), LATER) for c, _ in CASES[1:3]]
    assert faces[0] is not None
    assert faces[1] is not None
    assert faces[0].message == faces[1].message


def test_a_healthy_starting_or_leaving_pod_is_no_trouble() -> None:
    pods = (pod("ps"), pod("worker", state=waiting("ContainerCreating")), pod("worker", 1, deleting=True))
    assert diagnose(observe(job(), (), pods), LATER) is None


def test_parameter_servers_come_first() -> None:
    pods = (pod("worker", state=waiting("ErrImagePull")), pod("ps", state=waiting("ErrImagePull")))
    found = diagnose(observe(job(), (), pods), LATER)
    assert found is not None
    assert found.pod.role == "ps"


def test_an_init_container_that_fails_is_told() -> None:
    seen = pod("worker", phase="Pending", state=waiting("PodInitializing"))
    seen["status"]["initContainerStatuses"] = [
        {"name": "fetch", "image": "fetch:1", "state": waiting("ImagePullBackOff"), "restartCount": 0}
    ]
    found = diagnose(observe(job(), (), (seen,)), LATER)
    assert found is not None
    assert "fetch:1" in found.message


def test_a_pod_that_has_just_been_made_gets_a_moment_to_be_scheduled() -> None:
    made = timedelta(seconds=1)
    seen = observe(job(), (), (pod("ps", created=made, phase="Pending", state={}, unschedulable="no"),))
    due = NOW + made + UNSCHEDULABLE_GRACE
    assert diagnose(seen, due - timedelta(seconds=1)) is None
    assert look_again_at(seen, due - timedelta(seconds=1)) == due
    assert diagnose(seen, due) is not None
    assert look_again_at(seen, due) is None
