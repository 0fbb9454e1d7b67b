"""Containers beside the training container that never end: a job ends, continues and frees resources as without
them.
"""

from datetime import timedelta
from typing import Any

import pytest

from pstraining.core.observe import observe
from pstraining.core.policies.failure_counts import FailureCounts, count_failures
from pstraining.core.snapshot import Pod
from tests.support.builders import job, pod, stamp, terminated, typed
from tests.support.simulation import World, phase
from tests.unit.core.test_attempts import STARTED

EVALUATED = {"evaluator": {"enabled": True}}
ALL = {"successPolicy": "AllWorkers"}
STORIES: dict[str, tuple[dict[str, Any], list[tuple[str, int, str]]]] = {
    "the chief fails": ({}, [("chief", 3, "")]),
    "the chief fails, then succeeds": ({}, [("chief", 3, ""), ("chief", 0, "")]),
    "the chief succeeds": ({}, [("chief", 0, "")]),
    "the chief succeeds, and everything stays": ({"runPolicy": {"cleanPodPolicy": {"onSuccess": "None"}}}, [
        ("chief", 0, ""),
    ]),
    "the chief succeeds, and everything goes": ({"runPolicy": {"cleanPodPolicy": {"onSuccess": "All"}}}, [
        ("chief", 0, ""),
    ]),
    "the chief is killed for want of memory": ({}, [("chief", 137, "OOMKilled")]),
    "the chief may not fail": ({"runPolicy": {"backoffLimit": 0}}, [("chief", 3, "")]),
    "the chief never runs again": ({"chief": {"restartPolicy": "Never"}}, [("chief", 3, "")]),
    "the chief ends by its own exit code": ({"chief": {"restartPolicy": "ExitCode"}}, [("chief", 3, "")]),
    "the chief ends by a signal": ({"chief": {"restartPolicy": "ExitCode"}}, [("chief", 137, "")]),
    "the evaluator fails": (EVALUATED, [("evaluator", 3, "")]),
    "the evaluator succeeds": (EVALUATED, [("evaluator", 0, "")]),
    "the evaluator succeeds, then the chief": (EVALUATED, [("evaluator", 0, ""), ("chief", 0, "")]),
    "the evaluator may not fail": (EVALUATED | {"runPolicy": {"backoffLimit": 0}}, [("evaluator", 3, "")]),
    "a worker fails": ({}, [("worker", 3, "")]),
    "a worker succeeds": ({}, [("worker", 0, "")]),
    "the chief ends before the workers": (ALL, [("chief", 0, "")]),
    "a rule restarts the job": ({"failurePolicy": {"rules": [{"role": "chief", "action": "RestartJob"}]}}, [
        ("chief", 3, ""),
    ]),
}  # fmt: skip


def played(story: str, *, beside: bool, suspend: bool = False) -> dict[str, Any]:
    spec, ends = STORIES[story]
    world = World(job(spec=spec), beside=beside)
    world.settle()
    for role, code, reason in ends:
        world.end(role, 0, code, reason=reason)
        world.reconcile()
        world.controllers()
        world.settle()
    if suspend:
        world.edit({"runPolicy": {"suspend": True}})
        world.settle()
        stopped = phase(world)
        world.edit({"runPolicy": {"suspend": False}})
        world.settle()
        return {"stopped": stopped, **_seen(world)}
    return _seen(world)


def _seen(world: World) -> dict[str, Any]:
    """Return the remaining objects of a job, without times and names that differ from run to run."""
    assert world.job is not None
    status = world.job["status"]
    pods = [
        (p["metadata"]["labels"]["pstraining.dev/role"], p["status"]["phase"] == "Running")
        for p in world.pods.values()
    ]  # fmt: skip
    return {
        "phase": status["phase"],
        "conditions": {(c["type"], c["status"], c["reason"]) for c in status["conditions"]},
        "term": status["term"],
        "evaluator": status.get("evaluatorAttempt"),
        "restarts": status["restarts"],
        "job restarts": status.get("jobRestarts"),
        "children": sorted(world.children),
        "pods, and whether they use quota": sorted(pods),
    }


@pytest.mark.parametrize("story", STORIES)
def test_a_job_ends_as_it_does_without_them(story: str) -> None:
    assert played(story, beside=True) == played(story, beside=False)


@pytest.mark.parametrize("story", STORIES)
def test_a_job_stops_and_resumes_as_it_does_without_them(story: str) -> None:
    assert played(story, beside=True, suspend=True) == played(story, beside=False, suspend=True)


def test_the_next_attempt_does_not_wait_for_them() -> None:
    world = World(job(), beside=True)
    world.settle()
    world.end("chief", code=3)
    world.reconcile()
    assert ("Job", "digits-chief-2") in world.children


def test_a_success_outlives_its_pod() -> None:
    world = World(job(spec=ALL), beside=True)
    world.settle()
    world.end("chief")
    world.settle()
    chief = next(n for n, p in world.pods.items() if p["metadata"]["labels"]["pstraining.dev/role"] == "chief")
    del world.pods[chief]
    world.children["Job", "digits-chief-1"]["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    world.reconcile()
    assert ("Job", "digits-chief-2") not in world.children


def test_a_program_that_ended_before_its_pods_deletion_is_not_taken_for_deleted() -> None:
    """A program that failed before its pod's deletion counts as failed, even if the node was drained while the operator
    was away.
    """
    drained = pod("chief", term=1, state=terminated(3), deleting=True)
    drained["metadata"]["deletionTimestamp"] = "2030-01-01T12:05:00Z"
    assert [(r.failures, r.restarts) for r in _counted(drained).records] == [(1, 1)]


def _native(main: dict[str, Any], proxy: dict[str, Any], phase: str) -> dict[str, Any]:
    found = pod("chief", term=1, state=main, phase=phase)
    found["spec"]["initContainers"] = [{"name": "proxy", "restartPolicy": "Always"}]
    found["status"]["initContainerStatuses"] = [{"name": "proxy", "restartCount": 0, "state": proxy}]
    return found


def _counted(found: dict[str, Any]) -> FailureCounts:
    manifest = job(spec={"chief": {"restartPolicy": "ExitCode"}})
    return count_failures(typed(manifest), observe(manifest, (), [found]), STARTED)


def test_the_end_of_a_native_sidecar_is_not_that_of_the_program() -> None:
    ended = _native(terminated(137), terminated(143), "Failed")
    counts = _counted(ended)
    assert [(r.failures, r.restarts) for r in counts.records] == [(1, 1)]
    assert counts.failures[0].decision.cause == "Error"
    assert counts.failures[0].last_failure.exit_code == 137


def test_a_restarting_native_sidecar_is_not_a_failure() -> None:
    restarted = _native({"running": {}}, terminated(1), "Running")
    assert _counted(restarted).records == ()
    assert _observed(restarted).blocked_init is None


def test_a_native_sidecar_that_does_not_start_is_reported() -> None:
    waits = {"waiting": {"reason": "ImagePullBackOff"}}
    blocked = _observed(_native({"waiting": {"reason": "PodInitializing"}}, waits, "Pending")).blocked_init
    assert blocked is not None
    assert blocked.name == "proxy"


def _observed(found: dict[str, Any]) -> Pod:
    return observe(job(), (), [found]).pods[0]


def _break_beside(found: dict[str, Any], since: str, *, reason: str = "ContainersNotReady") -> None:
    """Let a container beside the training container fail, so that the pod is not ready."""
    found["spec"]["containers"].append({"name": "shipper"})
    crashes = {
        "name": "shipper",
        "restartCount": 3,
        "ready": False,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    }
    found["status"]["containerStatuses"].append(crashes)
    (ready,) = (c for c in found["status"]["conditions"] if c["type"] == "Ready")
    ready |= {"status": "False", "reason": reason, "lastTransitionTime": since}


def _with_standbys() -> World:
    world = World(job(spec={"ps": {"standby": {"mode": "Warm"}}}))
    world.settle()
    world.pods["digits-ps-0"]["status"]["containerStatuses"][0]["state"]["running"] = {"startedAt": stamp(world.now)}
    world.now += timedelta(minutes=5)
    return world


def test_a_server_beside_a_container_that_fails_keeps_its_state() -> None:
    """Another container's failure must cost no training since the last checkpoint: the server itself serves."""
    world = _with_standbys()
    _break_beside(world.pods["digits-ps-0"], stamp(world.now))
    world.settle()
    assert world.job is not None
    assert (world.job["status"]["takeovers"], world.job["status"]["phase"]) == (0, "Running")
    assert "digits-ps-0" in world.pods


def test_a_server_that_does_not_serve_is_replaced_beside_a_container_that_fails_as_well() -> None:
    world = _with_standbys()
    _break_beside(world.pods["digits-ps-0"], stamp(world.now))
    world.pods["digits-ps-0"]["status"]["containerStatuses"][0]["ready"] = False
    world.settle()
    assert world.job is not None
    assert world.job["status"]["takeovers"] == 1


@pytest.mark.parametrize("silent", ["its node was given up", "its node was given up after the container had failed"])
def test_a_server_on_a_node_that_does_not_answer_is_replaced(silent: str) -> None:
    world = _with_standbys()
    world.nodes = {"node-1": "Unknown", "node-2": "True"}
    world.pods["digits-standby-0"]["spec"]["nodeName"] = "node-2"
    # The node controller changes the condition's status alone.
    _break_beside(world.pods["digits-ps-0"], stamp(world.now), reason="ContainersNotReady" if "after" in silent else "")
    for _ in range(2):
        world.reconcile()
    assert world.job is not None
    assert world.job["status"]["shards"][0]["lastCause"] == "node lost"


def test_a_job_whose_servers_run_beside_a_container_that_never_starts_trains() -> None:
    world = World(job())
    world.settle()
    _break_beside(world.pods["digits-ps-0"], stamp(world.now))
    world.now += timedelta(minutes=5)
    world.settle()
    assert phase(world) == "Running"
