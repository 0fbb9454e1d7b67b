"""That a job comes up is told after the children of other jobs are there, and one job's after the other's before."""

import asyncio
from typing import Any

import pytest

from pstraining.controller.known import Known
from pstraining.controller.metrics import Metrics
from pstraining.controller.pace import CALM, only_comes_up
from pstraining.controller.reconciler import Reconciler
from pstraining.controller.turns import HANGING, LOOK_AGAIN, MAX_WAIT, Turns
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


def test_nobody_waits_while_nothing_is_created() -> None:
    turns = Turns(lambda key: None)
    assert all(turns.may_tell(key) for key in (A, B, C, A))


def test_one_tells_at_a_time_in_the_order_in_which_they_came() -> None:
    looked: list[Any] = []
    turns = Turns(looked.append)
    with turns.creating():
        assert [turns.may_tell(key) for key in (A, B, C)] == [True, False, False]
        turns.done(C)
        assert looked == []
        turns.done(A)
        assert looked == [B]
        assert [turns.may_tell(key) for key in (A, C, B)] == [False, False, True]
        turns.done(B)
        assert looked == [B, C]


def test_all_tell_when_the_last_creation_has_ended() -> None:
    looked: list[Any] = []
    turns = Turns(looked.append)
    with turns.creating():
        with turns.creating():
            assert [turns.may_tell(key) for key in (A, B, C)] == [True, False, False]
        assert looked == []
    assert looked == [B, C]
    assert turns.may_tell(B)
    assert turns.may_tell(C)


def test_a_job_that_is_gone_gives_its_turn_away() -> None:
    looked: list[Any] = []
    turns = Turns(looked.append)
    with turns.creating():
        assert [turns.may_tell(key) for key in (A, B, C)] == [True, False, False]
        turns.forget(B)
        turns.forget(A)
        assert looked == [C]


def test_creations_that_hang_hold_nobody_up_and_nothing_waits_for_ever() -> None:
    clock = Clock()
    turns = Turns(lambda key: None, clock)
    with turns.creating():
        assert [turns.may_tell(key) for key in (A, B)] == [True, False]
        clock.now = HANGING
        assert turns.may_tell(B)
        with turns.creating():
            assert not turns.may_tell(C)
            clock.now += MAX_WAIT
            with turns.creating():
                assert turns.may_tell(C)


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
def test_only_what_nobody_acts_on_waits(old: Manifest, new: Manifest, waits: bool) -> None:
    assert only_comes_up(old, new) is waits


class SlowKube(FakeKube):
    """Creations of one job, and what is told of another, wait until they are let go."""

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
async def test_children_of_many_jobs_come_before_what_is_told_of_them() -> None:
    kube, known, looked = SlowKube(), Known(), list[Any]()
    reconciler = Reconciler(
        known=known,
        port=kube,
        decisions=DECISIONS,
        launcher=LAUNCHER,
        metrics=Metrics(lambda: 0, lambda: 0),
        instance="op-0",
        clock=lambda: NOW,
        look=looked.append,
    )
    for name in ("slow", "first", "second"):
        body: dict[str, Any] = {"kind": "PSTrainingJob", "metadata": {"name": name}, "spec": {"a": 1}}
        kube.put({"apiVersion": "pstraining.dev/v1alpha1", **body})
    kube.deliver(known.cache)
    kube.writes()
    slow = asyncio.create_task(reconciler.reconcile(("default", "slow")))
    first = asyncio.create_task(reconciler.reconcile(("default", "first")))
    await asyncio.sleep(0)
    assert await reconciler.reconcile(("default", "second")) == 0.0
    assert {verb for verb, _, name in kube.writes() if name.startswith("second")} == {"create"}
    assert await reconciler.reconcile(("default", "second")) == LOOK_AGAIN
    assert kube.writes() == []
    assert reconciler.patience(("default", "second")) == CALM, "that its pods come up could not be told"
    kube.go.set()
    await asyncio.gather(slow, first)
    assert reconciler.patience(("default", "second")) == 0
    assert ("default", "second") in looked
    kube.writes()
    await reconciler.reconcile(("default", "second"))
    assert "patch_status" in {verb for verb, *_ in kube.writes()}
