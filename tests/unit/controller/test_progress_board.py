"""When the operator writes progress, and how often."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pstraining.controller.informer_cache import InformerCache
from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.progress import board as boards
from pstraining.controller.progress.board import ProgressBoard
from pstraining.core.progress import TrainerStatus
from pstraining.kube.errors import Transient
from pstraining.progress import PERIOD_SECONDS
from tests.support.builders import job
from tests.support.fakekube import FakeKube

pytestmark = pytest.mark.asyncio
KEY = ("default", "digits")


class Rig:
    """A board on the fake API server with one job, and a clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.kube, self.cache, self.now = FakeKube(), InformerCache(), 1000.0
        self.uid = str(self.kube.put(job())["metadata"]["uid"])
        self.kube.deliver(self.cache)
        self.enqueued: list[Any] = []
        self.board = ProgressBoard(
            self.kube,
            self.cache,
            OperatorMetrics(lambda: 0, lambda: 0),
            self.enqueued.append,
            clock=lambda: self.now,
        )

    def report(self, uid: str = "", **fields: Any) -> None:
        self.board.note(KEY, uid or self.uid, TrainerStatus(**fields))

    async def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.board._changed.set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    @property
    def written(self) -> list[str]:
        return [verb for verb, _, _ in self.kube.requests if verb == "patch_progress"]

    @property
    def training(self) -> Any:
        """What the status has; None without any."""
        return (self.kube.objects["PSTrainingJob", *KEY].get("status") or {}).get("training")


@asynccontextmanager
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(boards, "WRITES_PER_SECOND", float("inf"))
    rig = Rig()
    task = asyncio.create_task(rig.board.run())
    try:
        yield rig
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_job_is_written_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as rig:
        for step in range(60):
            rig.report(step=step, loss="0.5")
            await rig.pass_time(1)
        assert rig.training == {"step": 59, "loss": "0.5", "metrics": []}
        assert len(rig.written) == 2


async def test_without_a_change_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as rig:
        for second in range(10):
            rig.report(step=7, last_updated_time=f"2030-01-01T00:00:0{second}Z")
            await rig.pass_time(PERIOD_SECONDS)
        assert len(rig.written) == 1


async def test_a_field_that_is_not_reported_any_more_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as rig:
        rig.report(step=1, loss="0.5")
        await rig.settle()
        rig.report(step=2)
        await rig.pass_time(PERIOD_SECONDS)
        assert rig.training == {"step": 2, "metrics": []}


async def test_a_failed_write_is_repeated_later_with_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as rig:
        rig.kube.failures = lambda *_: Transient("away")
        rig.report(step=1)
        await rig.settle()
        rig.report(step=2)
        rig.kube.failures = lambda *_: None
        await rig.settle()
        assert not rig.training
        await rig.pass_time(boards.RETRY_SECONDS)
        assert rig.training == {"step": 2, "metrics": []}
        assert len(rig.written) == 2


async def test_a_job_that_has_changed_is_written_with_its_new_version(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as rig:
        rig.kube.objects["PSTrainingJob", *KEY]["metadata"]["resourceVersion"] = "999"
        rig.report(step=1)
        await rig.settle()
        assert not rig.training
        rig.cache.observed(rig.kube.objects["PSTrainingJob", *KEY])
        await rig.pass_time(boards.CONFLICT_SECONDS)
        assert rig.training == {"step": 1, "metrics": []}


async def test_progress_never_reaches_the_next_job_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as rig:
        rig.report("uid of a former job", step=1)
        await rig.settle()
        assert rig.written == []
        rig.report(step=2)
        await rig.settle()
        assert rig.training == {"step": 2, "metrics": []}


async def test_all_jobs_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    real = asyncio.sleep

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        await real(0)

    async with running(monkeypatch) as rig:
        monkeypatch.setattr(boards, "WRITES_PER_SECOND", 17.0)
        monkeypatch.setattr(asyncio, "sleep", rest)
        rig.report(step=1)
        for _ in range(20):
            await real(0)
        monkeypatch.setattr(asyncio, "sleep", real)
        assert rests == [1 / 17]


async def test_the_cached_job_has_no_progress_so_that_a_report_causes_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as rig:
        rig.report(step=1)
        await rig.settle()
        (_, event) = rig.kube.changes[-1]
        assert event["status"]["training"]["step"] == 1
        assert rig.cache.observed({**event, "kind": "PSTrainingJob"}) is None
        assert "training" not in (rig.cache.view(KEY).job or {}).get("status", {})


async def test_a_stall_that_begins_or_ends_causes_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first report, too: the stored condition may be of an operator before this one."""
    async with running(monkeypatch) as rig:
        assert rig.board.stall(KEY, rig.uid) is None
        for stall, passes in (("", 1), ("", 1), ("No step for 40 s.", 2), ("No step for 40 s.", 2), ("", 3)):
            rig.report(step=1, stalled=stall)
            assert rig.board.stall(KEY, rig.uid) == stall
            assert rig.enqueued == [KEY] * passes
        assert rig.board.stall(KEY, "uid of the next job") is None
        assert "stalled" not in (rig.training or {})
