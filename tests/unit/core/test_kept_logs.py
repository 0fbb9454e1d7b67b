"""The pods of workers that have succeeded stay until the chief has read their logs for the job's history."""

from datetime import timedelta
from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.summary import LOGS_KEPT_SECONDS
from pstraining.core.policies.retired_workers import LOGS_KEPT
from pstraining.launcher.launch import IDLE_SECONDS
from pstraining.resources.installation import STANDARD, Installation, ProgressEndpoint
from pstraining.runtime.history.recorder import LEAVING_SECONDS, WORKERS_SECONDS
from tests.support.builders import NOW, job
from tests.support.simulation import World

REPORTS = Installation(progress=ProgressEndpoint("https://operator", "authority"))
CHECKPOINT: dict[str, Any] = {"volume": {"persistentVolumeClaim": {"claimName": "kept"}}}
WORKER = ("Deployment", "digits-worker-1")


def succeeded(installation: Installation = REPORTS, **spec: Any) -> World:
    """Return a job that trains, and whose worker 1 has just succeeded."""
    world = World(job(spec=spec), installation=installation)
    world.settle()
    world.end("worker", 1)
    world.settle()
    return world


def retired(world: World) -> tuple[int, str | None]:
    """Return the replicas of worker 1, and the annotation that records its success."""
    child = world.children[WORKER]
    return child["spec"]["replicas"], (child["metadata"].get("annotations") or {}).get(names.ANNOTATION_SUCCEEDED)


def pods(world: World) -> list[str]:
    return [name for name in world.pods if "worker-1" in name]


def test_the_pod_stays_while_the_chief_may_read_its_log() -> None:
    world = succeeded(checkpoint=CHECKPOINT)
    assert retired(world) == (1, "true"), "the success is recorded at once"
    assert len(pods(world)) == 1
    assert world.job is not None
    assert world.job["status"]["worker"]["succeeded"] == 1
    writes = len(world.writes)
    world.now = NOW + LOGS_KEPT - timedelta(seconds=1)
    world.settle()
    assert len(world.writes) == writes
    assert world.plan().requeue_at == NOW + LOGS_KEPT
    world.now = NOW + LOGS_KEPT
    world.settle()
    assert (retired(world), pods(world)) == ((0, "true"), [])


@pytest.mark.parametrize(
    ("installation", "spec"),
    [
        (REPORTS, {}),
        (REPORTS, {"checkpoint": CHECKPOINT | {"history": "None"}}),
        (STANDARD, {"checkpoint": CHECKPOINT}),
    ],
    ids=["no checkpoint", "no history", "no endpoint"],
)
def test_without_a_history_the_pod_is_deleted_at_once(installation: Installation, spec: dict[str, Any]) -> None:
    world = succeeded(installation, **spec)
    assert (retired(world), pods(world)) == ((0, "true"), [])
    assert [name for _, _, name in world.writes].count(WORKER[1]) == 2, "it is created, and scaled to 0"


def test_a_pod_that_is_deleted_meanwhile_is_not_replaced() -> None:
    """A new pod would train again."""
    world = succeeded(checkpoint=CHECKPOINT)
    world.delete_pod("worker", 1)
    world.settle()
    assert (retired(world), pods(world)) == ((0, "true"), [])


def launcher(world: World) -> dict[str, Any]:
    """Return the state of the idle launcher of worker 1, which is never ready."""
    found: dict[str, Any] = world.pods[pods(world)[0]]["status"]["containerStatuses"][0]
    return found | {"ready": False}


def idle(world: World, **state: Any) -> None:
    world.pods[pods(world)[0]]["status"]["containerStatuses"][0] = launcher(world) | state
    world.settle()


def test_a_new_size_does_not_replace_the_pod_that_stays() -> None:
    """A new pod would train again."""
    small, large = ({"resources": {"requests": {"memory": memory}}} for memory in ("1Gi", "4Gi"))
    world = succeeded(checkpoint=CHECKPOINT, worker=small)
    before = pods(world)
    idle(world)
    world.edit({"worker": large})
    world.settle()
    assert pods(world) == before
    assert ("Replace", "Deployment", "digits-worker-0") in world.writes, "the other worker gets its size"
    assert world.condition("Resizing")["reason"] == "Resized"


def test_an_idle_launcher_that_is_killed_is_no_failure() -> None:
    rules = {"rules": [{"role": "worker", "action": "FailJob"}]}
    world = succeeded(checkpoint=CHECKPOINT, failurePolicy=rules)
    world.end("worker", 1, 137)
    world.settle()
    assert world.job is not None
    assert (world.job["status"]["phase"], world.job["status"]["worker"]["restarts"]) == ("Running", 0)
    assert retired(world) == (0, "true")


def test_a_pod_that_stays_is_not_reported_as_one_that_fails() -> None:
    world = succeeded(checkpoint=CHECKPOINT)
    idle(world, state={"waiting": {"reason": "CrashLoopBackOff"}})
    assert world.condition("Running")["reason"] == "Training"


def test_the_pod_stays_while_the_chief_reads_and_is_deleted_before_its_program_ends_once_more() -> None:
    """The second end of an idle pod would be taken for the first, and the pod would stay on."""
    assert LEAVING_SECONDS + WORKERS_SECONDS < LOGS_KEPT_SECONDS < IDLE_SECONDS
