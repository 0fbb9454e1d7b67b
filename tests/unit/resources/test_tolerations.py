"""The time that a pod waits for its lost node: the job sets it, and the template may override it."""

from typing import Any

import pytest

from pstraining.resources import pods
from pstraining.resources.launcher import LauncherMap
from pstraining.resources.pods import PodTask
from tests.support.builders import TEMPLATE, deep_merge, job, typed

NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
ALL = [PodTask("ps"), PodTask("ps", member=1), PodTask("worker", 0), PodTask("chief", term=1)]


def tolerations(task: PodTask, spec: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pods.build(typed(job(spec=spec)), task, LauncherMap("l"))["spec"]["tolerations"]
    return found


def bound(taint: str, seconds: int) -> dict[str, Any]:
    return {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}


def with_own(*own: dict[str, Any]) -> dict[str, Any]:
    return {"worker": {"template": deep_merge(TEMPLATE, {"spec": {"tolerations": list(own)}})}}


@pytest.mark.parametrize("task", ALL)
def test_every_pod_waits_two_seconds(task: PodTask) -> None:
    assert tolerations(task) == [bound(NOT_READY, 2), bound(UNREACHABLE, 2)]


@pytest.mark.parametrize("task", ALL)
@pytest.mark.parametrize("seconds", [0, 30])
def test_the_job_sets_the_toleration_time(task: PodTask, seconds: int) -> None:
    policy = {"runPolicy": {"nodeLossSeconds": seconds}}
    assert tolerations(task, policy) == [bound(NOT_READY, seconds), bound(UNREACHABLE, seconds)]


def test_a_templates_toleration_of_one_taint_keeps_the_other() -> None:
    own = bound(UNREACHABLE, 600)
    assert tolerations(PodTask("worker", 0), with_own(own)) == [own, bound(NOT_READY, 2)]


@pytest.mark.parametrize("own", [{"operator": "Exists"}, {"operator": "Exists", "effect": "NoExecute"}])
def test_a_template_that_tolerates_everything_is_left_alone(own: dict[str, Any]) -> None:
    assert tolerations(PodTask("worker", 0), with_own(own)) == [own]


@pytest.mark.parametrize(
    "own",
    [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": UNREACHABLE, "operator": "Exists", "effect": "NoSchedule"},
        {"operator": "Exists", "effect": "NoSchedule"},
    ],
)
def test_tolerations_of_other_taints_are_kept(own: dict[str, Any]) -> None:
    found = tolerations(PodTask("worker", 0), with_own(own))
    assert found == [own, bound(NOT_READY, 2), bound(UNREACHABLE, 2)]
