"""Status writes about a job's start wait for the children of other jobs, and proceed one at a time."""

import asyncio
from typing import Any

import pytest

from pstraining.controller.clocks import ReconcilerClocks
from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.rate_limit import STARTUP_DELAY_SECONDS, STARTUP_DELAY_SECONDS_MIN, is_startup_only
from pstraining.controller.reconciler import Reconciler
from pstraining.controller.status_queue import HUNG_SECONDS, RECHECK_SECONDS, WAIT_SECONDS_MAX, StatusQueue
from pstraining.controller.watch_state import WatchState
from pstraining.core.actions import Kind, Manifest
from pstraining.kube.port import Object
from tests.support.builders import NOW
from tests.support.fakekube import FakeKube
from tests.support.fakekube_decisions import DECISIONS, LAUNCHER

A, B, C = ("ns", "a"), ("ns", "b"), ("ns", "c")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_no_write_waits_while_nothing_is_created() -> None:
    queue = StatusQueue(lambda key: None)
    assert all(queue.may_write(key) for key in (A, B, C, A))


def test_status_writes_proceed_one_at_a_time_in_order() -> None:
    enqueued: list[Any] = []
    queue = StatusQueue(enqueued.append)
    with queue.creating():
        assert [queue.may_write(key) for key in (A, B, C)] == [True, False, False]
        queue.done(C)
        assert enqueued == []
        queue.done(A)
        assert enqueued == [B]
        assert [queue.may_write(key) for key in (A, C, B)] == [False, False, True]
        queue.done(B)
        assert enqueued == [B, C]


def test_all_status_writes_proceed_after_the_last_creation() -> None:
    enqueued: list[Any] = []
    queue = StatusQueue(enqueued.append)
    with queue.creating():
        with queue.creating():
            assert [queue.may_write(key) for key in (A, B, C)] == [True, False, False]
        assert enqueued == []
    assert enqueued == [B, C]
    assert queue.may_write(B)
    assert queue.may_write(C)


def test_a_deleted_job_gives_up_its_turn() -> None:
    enqueued: list[Any] = []
    queue = StatusQueue(enqueued.append)
    with queue.creating():
        assert [queue.may_write(key) for key in (A, B, C)] == [True, False, False]
        queue.forget(B)
        queue.forget(A)
        assert enqueued == [C]


def test_hung_creations_do_not_block_status_writes_forever() -> None:
    clock = Clock()
    queue = StatusQueue(lambda key: None, clock)
    with queue.creating():
        assert [queue.may_write(key) for key in (A, B)] == [True, False]
        clock.now = HUNG_SECONDS
        assert queue.may_write(B)
        with queue.creating():
            assert not queue.may_write(C)
            clock.now += WAIT_SECONDS_MAX
            with queue.creating():
                assert queue.may_write(C)


def status(phase: str = "Pending", running: str = "False", why: str = "WaitingForPods", **fields: Any) -> Manifest:
    conditions = [
        {"type": "Created", "status": "True", "reason": "ChildrenCreated"},
        {"type": "Running", "status": running, "reason": why},
        {"type": "Failed", "status": "False", "reason": "NotFinished"},
    ]
    return {"phase": phase, "conditions": conditions, "restarts": 0, "term": 1, "observedGeneration": 1, **fields}


RUNS = status("Running", "True", "Training")


@pytest.mark.parametrize(
    ("old", "new", "waits"),
    [
        ({}, status(), True),
        ({}, RUNS, True),
        (status(), RUNS, True),
        (RUNS, status(), False),
        (status(), status(why="Unschedulable"), False),
        (RUNS, status("Failed", "False", "JobFinished"), False),
        (status("Restarting"), RUNS, False),
        (RUNS, status("Running", "True", "Training", restarts=1), False),
        (RUNS, status("Running", "True", "Training", term=2), False),
        (RUNS, status("Running", "True", "Training", observedGeneration=2), False),
        ({}, {**status(), "conditions": [{"type": "NameConflict", "status": "True"}]}, False),
        ({}, {**status(), "conditions": [{"type": "CheckpointNotDurable", "status": "True"}]}, True),
    ],
)
def test_only_informational_changes_wait(old: Manifest, new: Manifest, waits: bool) -> None:
    assert is_startup_only(old, new) is waits


class SlowKube(FakeKube):
    """Holds creations of one job and status writes of another until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def create(self, kind: Kind, namespace: str, body: Manifest) -> Object:
        if body["metadata"]["name"].startswith("slow"):
            await self.go.wait()
        return await super().create(kind, namespace, body)

    async def patch_status(self, namespace: str, name: str, body: Manifest) -> Object:
        if name == "first":
            await self.go.wait()
        return await super().patch_status(namespace, name, body)


@pytest.mark.asyncio
async def test_children_of_many_jobs_are_created_before_their_status_writes() -> None:
    kube, watch_state, enqueued = SlowKube(), WatchState(), list[Any]()
    reconciler = Reconciler(
        watch_state=watch_state,
        port=kube,
        decisions=DECISIONS,
        launcher=LAUNCHER,
        metrics=OperatorMetrics(lambda: 0, lambda: 0),
        instance="op-0",
        clocks=ReconcilerClocks(lambda: NOW),
        enqueue=enqueued.append,
    )
    for name in ("slow", "first", "second"):
        body: dict[str, Any] = {"kind": "PSTrainingJob", "metadata": {"name": name}, "spec": {"a": 1}}
        kube.put({"apiVersion": "pstraining.dev/v1alpha1", **body})
    kube.deliver(watch_state.cache)
    kube.writes()
    slow = asyncio.create_task(reconciler.reconcile(("default", "slow")))
    first = asyncio.create_task(reconciler.reconcile(("default", "first")))
    await asyncio.sleep(0)
    assert await reconciler.reconcile(("default", "second")) == 0.0
    assert {verb for verb, _, name in kube.writes() if name.startswith("second")} == {"create"}
    assert await reconciler.reconcile(("default", "second")) == RECHECK_SECONDS
    assert kube.writes() == []
    assert reconciler.startup_delay(("default", "second")) == STARTUP_DELAY_SECONDS, (
        "the start of its pods could not be reported"
    )
    kube.go.set()
    await asyncio.gather(slow, first)
    assert reconciler.startup_delay(("default", "second")) == STARTUP_DELAY_SECONDS_MIN
    assert ("default", "second") in enqueued
    kube.writes()
    await reconciler.reconcile(("default", "second"))
    assert "patch_status" in {verb for verb, *_ in kube.writes()}
