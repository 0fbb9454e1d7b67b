"""When the operator writes progress, and how often."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pstraining.controller.informer_cache import InformerCache
from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.progress import board as boards
from pstraining.controller.progress.authentication import AcceptedPod
from pstraining.controller.progress.board import ProgressBoard
from pstraining.controller.watch_state import WatchState
from pstraining.core.progress import TrainerStatus
from pstraining.kube.errors import Transient
from pstraining.progress import PERIOD_SECONDS
from tests.support.builders import job, pod
from tests.support.fakekube import FakeKube

pytestmark = pytest.mark.asyncio
KEY = ("default", "digits")


class Rig:
    """A board on the fake API server with one job, and a clock that the test moves."""

    def __init__(self) -> None:
        self.kube, self.cache, self.now = FakeKube(), InformerCache(), 1000.0
        self.uid = str(self.kube.put(job())["metadata"]["uid"])
        self.kube.deliver(self.cache)
        self.enqueued: list[Any] = []
        self.pod = "uid of chief 1"
        self.board = ProgressBoard(
            self.kube,
            self.cache,
            OperatorMetrics(lambda: 0, lambda: 0),
            self.enqueued.append,
            clock=lambda: self.now,
        )

    def report(self, uid: str = "", **fields: Any) -> None:
        self.board.note(KEY, AcceptedPod(uid or self.uid, self.pod), TrainerStatus(**fields))

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
        assert rig.training == {"step": 58, "loss": "0.5", "metrics": []}
        assert len(rig.written) == 2


async def test_without_a_change_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as rig:
        for second in range(10):
            rig.report(step=7, last_updated_time=f"2030-01-01T00:00:0{second}Z")
            await rig.pass_time(PERIOD_SECONDS)
        assert len(rig.written) == 1


async def test_a_field_that_is_no_longer_reported_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as rig:
        rig.report(step=1, loss="0.5")
        await rig.settle()
        rig.report(step=2)
        await rig.pass_time(PERIOD_SECONDS)
        assert rig.training == {"step": 2, "metrics": []}


async def test_a_failed_write_is_retried_with_the_newest_report(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_progress_never_reaches_a_recreated_job(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as rig:
        rig.report("uid of a former job", step=1)
        await rig.settle()
        assert rig.written == []
        rig.report(step=2)
        await rig.settle()
        assert rig.training == {"step": 2, "metrics": []}


async def test_a_report_is_written_on_arrival_despite_slow_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A status is never older than a period and one write, however long the job runs."""
    async with running(monkeypatch) as rig:
        patch = rig.kube.patch_progress

        async def slowly(*args: Any) -> Any:
            rig.now += 0.4
            return await patch(*args)

        monkeypatch.setattr(rig.kube, "patch_progress", slowly)
        start = rig.now
        for period in range(200):
            rig.report(step=period)
            await rig.settle()
            assert rig.training["step"] == period
            await rig.pass_time(start + (period + 1) * PERIOD_SECONDS - rig.now)


async def test_a_late_write_makes_no_later_one_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program reports once a period: what it reports after a failed write is written on arrival, as before."""
    async with running(monkeypatch) as rig:
        rig.kube.failures = lambda *_: Transient("away")
        rig.report(step=0)
        await rig.settle()
        rig.kube.failures = lambda *_: None
        await rig.pass_time(boards.RETRY_SECONDS)
        assert rig.training["step"] == 0
        for period in range(1, 3):
            await rig.pass_time(PERIOD_SECONDS - (boards.RETRY_SECONDS if period == 1 else 0))
            rig.report(step=period)
            await rig.settle()
            assert rig.training["step"] == period


async def test_two_writes_are_half_a_period_apart_after_a_very_late_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as rig:
        for step in range(2):
            rig.report(step=step)
            await rig.settle()
        await rig.pass_time(PERIOD_SECONDS + boards.LATE_SECONDS + 20)
        rig.report(step=2)
        await rig.pass_time(PERIOD_SECONDS - boards.LATE_SECONDS - 0.1)
        assert rig.training["step"] == 1
        await rig.pass_time(0.2)
        assert rig.training["step"] == 2


async def test_a_program_that_reports_irregularly_is_written_once_a_period(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as rig:
        for step in range(600):
            if step % 60 < 2:
                rig.report(step=step)
            await rig.pass_time(1)
        assert len(rig.written) == 11, "the first report, and once a period"


async def test_all_jobs_share_a_long_run_limit() -> None:
    rig, pauses = Rig(), []
    for _ in range(3 * boards.BURST):
        pauses.append(rig.board._pause())
        rig.now += pauses[-1]
    assert not any(pauses[: boards.BURST - 1])
    assert sum(pauses) == pytest.approx(2 * boards.BURST / boards.WRITES_PER_SECOND)
    rig.now += boards.BURST / boards.WRITES_PER_SECOND
    assert not any(rig.board._pause() for _ in range(boards.BURST)), "after a quiet time, as many at once"
    rig.now += 0.01
    assert rig.board._pause() == pytest.approx(1 / boards.WRITES_PER_SECOND - 0.01), "a late wake-up is made up for"


async def test_the_writes_have_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as rig:
        monkeypatch.setattr(rig.board, "_pause", lambda: 3600.0)
        for step in range(2):
            rig.report(step=step)
            await rig.pass_time(PERIOD_SECONDS)
        assert rig.training["step"] == 0


async def test_a_job_deleted_during_other_writes_cancels_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "IN_FLIGHT", 1)
    async with running(monkeypatch) as rig:
        other = str(rig.kube.put(job(name="other"))["metadata"]["uid"])
        rig.kube.deliver(rig.cache)
        answer, patch = asyncio.Event(), rig.kube.patch_progress

        async def hanging(*args: Any) -> Any:
            await answer.wait()
            return await patch(*args)

        monkeypatch.setattr(rig.kube, "patch_progress", hanging)
        rig.report(step=1)
        await rig.settle()
        rig.board.note(("default", "other"), AcceptedPod(other, "uid of a pod"), TrainerStatus(step=1))
        await rig.settle()
        rig.board.forget(("default", "other"))
        answer.set()
        await rig.settle()
        rig.report(step=2)
        await rig.pass_time(PERIOD_SECONDS)
        assert rig.training["step"] == 2


async def test_the_cached_job_has_no_progress_so_that_a_report_causes_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as rig:
        rig.report(step=1)
        await rig.settle()
        (_, event) = rig.kube.changes[-1]
        assert event["status"]["training"]["step"] == 1
        assert rig.cache.observed({**event, "kind": "PSTrainingJob"}) is None
        assert "training" not in (rig.cache.view(KEY).job or {}).get("status", {})


async def test_a_late_report_of_a_job_that_no_longer_runs_causes_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass removes the rate and the estimate."""
    async with running(monkeypatch) as rig:
        rig.report(step=1)
        await rig.settle()
        before = len(rig.enqueued)
        rig.kube.objects["PSTrainingJob", *KEY]["status"]["phase"] = "Failed"
        rig.report(step=2, samples_per_second="12.5")
        await rig.pass_time(PERIOD_SECONDS)
        assert rig.enqueued[before:] == [KEY]
        assert (rig.cache.view(KEY).job or {})["status"]["training"] == {"samplesPerSecond": "12.5"}


async def test_a_stall_that_begins_or_ends_causes_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first report, too: the stored condition may be of an operator before this one."""
    async with running(monkeypatch) as rig:
        pods = [rig.pod]
        assert rig.board.stall(KEY, rig.uid, pods) is None
        for stall, passes in (("", 1), ("", 1), ("No step for 40 s.", 2), ("No step for 40 s.", 2), ("", 3)):
            rig.report(step=1, stalled=stall)
            assert rig.board.stall(KEY, rig.uid, pods) == stall
            assert rig.enqueued == [KEY] * passes
        assert rig.board.stall(KEY, "uid of the next job", pods) is None
        assert "stalled" not in (rig.training or {})


async def test_a_stall_ends_with_the_pod_that_has_reported_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was suspended while it stalled has just been resumed: its next chief has reported nothing yet."""
    async with running(monkeypatch) as rig:
        state = WatchState(cache=rig.cache, stall=rig.board.stall)
        first, second = (
            {**pod("chief", term=n, uid=f"uid of chief {n}", job_uid=rig.uid), "kind": "Pod"} for n in (1, 2)
        )
        rig.cache.observed(first)
        rig.report(step=1, stalled="No step for 40 s.")
        assert state.snapshot(KEY).stall == "No step for 40 s."
        rig.cache.vanished(first)
        rig.cache.observed(second)
        assert state.snapshot(KEY).stall is None
        rig.pod, passes = "uid of chief 2", len(rig.enqueued)
        rig.report(step=1, stalled="No step for 40 s.")
        assert state.snapshot(KEY).stall == "No step for 40 s."
        assert len(rig.enqueued) == passes + 1


async def test_a_report_of_another_layout_causes_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as rig:
        rig.report(step=1, layout=1, term=3)
        await rig.settle()
        before = len(rig.enqueued)
        rig.report(step=2, layout=2, term=3)
        await rig.pass_time(PERIOD_SECONDS)
        assert rig.enqueued[before:] == [KEY]
        assert (rig.cache.view(KEY).job or {})["status"]["training"] == {"layout": 2, "term": 3}
        rig.report(step=3, layout=2, term=3)
        await rig.pass_time(PERIOD_SECONDS)
        assert rig.enqueued[before:] == [KEY]
