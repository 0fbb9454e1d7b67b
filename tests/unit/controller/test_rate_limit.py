"""The delays of passes and statuses, and the changes that are never delayed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pstraining.api import names
from pstraining.controller.rate_limit import (
    BURST,
    IDLE_REST_SECONDS,
    LARGE_JOB_OBJECT_COUNT,
    PROGRESS_DELAY_SECONDS,
    PROGRESS_DELAY_SECONDS_MAX,
    STARTUP_DELAY_SECONDS,
    STARTUP_DELAY_SECONDS_MIN,
    RateLimit,
    is_progress_only,
    is_starting,
)
from pstraining.controller.registration import receiver
from pstraining.controller.watch_state import WatchState
from pstraining.controller.workqueue import WorkQueue
from tests.support import builders

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def status(ready: int = 1, **fields: Any) -> dict[str, Any]:
    condition = {"type": "Running", "status": "True", "reason": "Training", "message": f"{ready} of 3"}
    role = {"desired": 3, "ready": ready, "replicas": 3, "summary": f"{ready}/3", "restarts": 0}
    return {"phase": "Running", "conditions": [condition], "worker": role, "ps": dict(role), **fields}


@pytest.mark.parametrize(
    ("new", "held"),
    [
        (status(2), True),
        (status(0), False),
        (status(2, phase="Restarting"), False),
        (status(2, restarts=1), False),
        (status(2, replicaRecords=[{"role": "worker", "index": 0, "failures": 1}]), False),
        (status(2, worker={**status(2)["worker"], "lastFailure": {"pod": "p"}}), False),
        (status(2, worker={**status(2)["worker"], "succeeded": 1}), False),
        (status(2, worker={**status(2)["worker"], "desired": 4}), False),
        (status(2, conditions=[{"type": "Running", "status": "False", "reason": "WaitingForPods"}]), False),
        (status(2, conditions=[*status()["conditions"], {"type": "Degraded", "status": "True", "reason": "R"}]), False),
        (status(1, shards=[{"index": 0, "readyStandbys": 1, "members": 2, "primary": "a"}]), True),
        (status(1, shards=[{"index": 0, "readyStandbys": 0, "members": 2, "primary": "a"}]), True),
        (status(1, shards=[{"index": 0, "readyStandbys": 0, "members": 2, "primary": "b"}]), False),
        (status(1, shards=[]), False),
    ],
)
def test_only_progress_is_delayed(new: dict[str, Any], held: bool) -> None:
    shards = [{"index": 0, "readyStandbys": 0, "members": 1, "primary": "a"}]
    old = status(1, shards=shards) if "shards" in new else status(1)
    assert is_progress_only(old, new) is held
    assert (RateLimit(NOW).progress_delay(old, new, NOW) > 0) is held


def test_a_lost_standby_is_reported_at_once() -> None:
    two, one = ([{"index": 0, "readyStandbys": n}] for n in (2, 1))
    assert not is_progress_only(status(shards=two), status(shards=one))


def test_the_first_status_is_written_at_once() -> None:
    assert RateLimit(NOW).progress_delay({}, status(), NOW) == 0


def test_progress_is_reported_after_a_growing_delay() -> None:
    rate_limit, clock, waits = RateLimit(NOW), 0.0, []
    for number in range(8):
        old, new = status(number), status(number + 1)
        wait = rate_limit.progress_delay(old, new, at(clock))
        waits.append(wait)
        assert rate_limit.progress_delay(old, new, at(clock + wait / 2)) == pytest.approx(wait / 2)
        clock += wait
        assert rate_limit.progress_delay(old, new, at(clock)) == 0
    assert waits[:3] == [pytest.approx(PROGRESS_DELAY_SECONDS * 2**n) for n in range(3)]
    assert max(waits) == pytest.approx(PROGRESS_DELAY_SECONDS_MAX)
    assert rate_limit.progress_delay(status(1), status(2), at(clock + 60)) == pytest.approx(PROGRESS_DELAY_SECONDS)


def test_a_clock_set_back_does_not_prolong_the_delay() -> None:
    rate_limit = RateLimit(NOW)
    rate_limit.progress_delay(status(1), status(2), NOW)
    assert rate_limit.progress_delay(status(1), status(2), at(-3600)) == pytest.approx(PROGRESS_DELAY_SECONDS)


def test_a_large_job_rests_after_an_idle_pass() -> None:
    rate_limit = RateLimit(NOW)
    rate_limit.record_idle_pass(LARGE_JOB_OBJECT_COUNT - 1, NOW)
    assert rate_limit.wait(NOW) == 0
    rate_limit.record_idle_pass(LARGE_JOB_OBJECT_COUNT, NOW)
    assert rate_limit.wait(NOW) == pytest.approx(IDLE_REST_SECONDS)
    assert not rate_limit.is_exhausted
    assert rate_limit.wait(at(IDLE_REST_SECONDS)) == 0
    assert rate_limit.wait(at(-3600)) == 0


def test_events_of_starting_pods_wait_and_longer_in_a_large_job() -> None:
    rate_limit = RateLimit(NOW)
    assert rate_limit.startup_delay(NOW) == STARTUP_DELAY_SECONDS_MIN, "before the first pass the load is unknown"
    rate_limit.record_idle_pass(LARGE_JOB_OBJECT_COUNT, NOW)
    assert rate_limit.startup_delay(at(IDLE_REST_SECONDS)) == pytest.approx(STARTUP_DELAY_SECONDS - IDLE_REST_SECONDS)
    for moment in (STARTUP_DELAY_SECONDS, -3600):
        assert rate_limit.startup_delay(at(moment)) == STARTUP_DELAY_SECONDS_MIN
    rate_limit.record_idle_pass(LARGE_JOB_OBJECT_COUNT - 1, NOW)
    assert rate_limit.startup_delay(NOW) == STARTUP_DELAY_SECONDS_MIN


READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
BEGINS: dict[str, Any] = {"state": {"waiting": {"reason": "ContainerCreating"}}, "restartCount": 0}


@pytest.mark.parametrize(
    ("pod", "calm"),
    [
        ({"status": {}}, True),
        ({"status": {"phase": "Pending", "containerStatuses": [BEGINS]}}, True),
        ({"status": {"phase": "Pending", "initContainerStatuses": [{"state": {"terminated": {"exitCode": 0}}}]}}, True),
        ({"status": READY}, True),
        ({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}}, False),
        ({"status": {"phase": "Failed"}}, False),
        ({"status": {"phase": "Succeeded"}}, False),
        ({"status": {"phase": "Pending"}, "metadata": {"deletionTimestamp": "2030-01-01T12:00:00Z"}}, False),
        ({"status": {**READY, "containerStatuses": [{**BEGINS, "state": {"running": {}}, "restartCount": 1}]}}, False),
        ({"status": {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]}}, False),
        ({"status": {"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}}, False),
        ({"status": {"initContainerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]}}, False),
        ({"status": {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}}, False),
    ],
)
def test_only_pods_without_ended_containers_may_wait(pod: dict[str, Any], calm: bool) -> None:
    assert is_starting({"metadata": {}, **pod}) is calm


@pytest.mark.asyncio
async def test_deferrable_changes_are_reported_later_and_others_at_once() -> None:
    watch_state, queue = WatchState(), WorkQueue()
    receive = receiver(watch_state, queue, lambda key: 60.0)
    labels = {names.LABEL_JOB: "digits", names.LABEL_JOB_UID: builders.UID}
    watch_state.receive(builders.job(), "ADDED")

    def pod(name: str, **status: Any) -> dict[str, Any]:
        controller, own = "digits-worker-0-6f9d7c-", {"namespace": "default", "uid": name, "labels": labels}
        metadata = {"name": controller + name, "generateName": controller, "resourceVersion": "1", **own}
        return {"kind": "Pod", "metadata": metadata, "status": status}

    receive({"type": "ADDED", "object": pod("up")})
    assert queue.depth == 0, "the pod comes up"
    receive({"type": "ADDED", "object": pod("down", phase="Failed")})
    assert queue.depth == 1


def test_a_budget_of_writing_passes() -> None:
    rate_limit = RateLimit(NOW)
    rate_limit.tokens -= BURST
    assert rate_limit.wait(NOW) == pytest.approx(0.5)
    assert rate_limit.is_exhausted
    assert rate_limit.wait(at(0.5)) == 0
