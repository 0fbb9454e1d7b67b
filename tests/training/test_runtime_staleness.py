"""Asynchronous workers at different speeds: their distance, its bound, and updates whose replies are lost."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest

from pstraining.runtime.ps import worker_registry
from tests.support.kube import wait_for
from tests.support.servers import SESSION, Rig, batches, small
from tests.support.soak_marks import ALL, in_all, some
from tests.training.test_runtime_silence import sgd, stopped

pytestmark = [pytest.mark.training, pytest.mark.silence, pytest.mark.timeout(480)]
BOUND = 3
PS = 2 if ALL else 1
"""Number of servers of most tests: the first server counts every worker's updates."""


class Runner:
    """A worker that steps as fast as it can."""

    def __init__(self, updates: Any, batch: Any) -> None:
        self.replies: list[Any] = []
        self.errors: list[BaseException] = []
        self._updates, self._batch = updates, batch
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def made(self) -> int:
        """The number of updates so far."""
        assert not self.errors, self.errors
        return len(self.replies)

    def end(self) -> None:
        self._ended.set()
        self._thread.join(10)

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self.replies.append(self._updates.step([self._batch]))
        except BaseException as error:  # noqa: BLE001 - raised again by `made`
            self.errors.append(error)


@contextmanager
def running(updates: Any) -> Iterator[Runner]:
    runner = Runner(updates, batches(1)[0])
    try:
        yield runner
    finally:
        runner.end()


@contextmanager
def beating(rig: Rig, worker: int) -> Iterator[None]:
    """Send the worker's heartbeats during the block, as its process does."""
    ended = threading.Event()

    def send_heartbeats() -> None:
        while not ended.wait(0.2):
            rig.store.heartbeat(worker, 1)

    thread = threading.Thread(target=send_heartbeats, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(10)


def started(client: Any, ps: int = PS, **training: Any) -> Rig:
    rig = Rig(client, sgd, ps=ps, build=small, workers=2, **training)
    rig.start()
    return rig


def at_least(runner: Runner, number: int) -> bool:
    return runner.made >= number


def furthest(rig: Rig, steps: int) -> int:
    """Return the largest lead of the fast worker, observed at every step of the slow one."""
    slow, (batch,) = rig.workers[1], batches(1)
    found = 0
    with beating(rig, 1), running(rig.workers[0]) as fast:
        for number in range(steps):
            wait_for(partial(at_least, fast, number + BOUND), "the fast one's steps", every=0.01)
            found = max(found, fast.made - number)
            settled = fast.made
            time.sleep(0.1)  # time to exceed the bound
            found = max(found, fast.made - number)
            assert settled <= fast.made
            assert slow.step([batch]).session_valid
        assert max(reply.ahead for reply in fast.replies) <= BOUND
    return found


def test_no_worker_is_further_ahead_of_the_slowest_than_the_bound(client: Any) -> None:
    assert furthest(started(client, max_staleness=BOUND), 8) == BOUND


@in_all(
    "tests/training/test_runtime_staleness.py::test_no_worker_is_further_ahead_of_the_slowest_than_the_bound"
)  # shows the reason for the bound
def test_without_a_bound_no_worker_waits(client: Any) -> None:
    assert furthest(started(client), 2) > BOUND


def test_no_worker_waits_for_a_crashed_one_which_need_not_catch_up(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_registry, "LAPSE_SECONDS", 1.0)
    rig = started(client, max_staleness=BOUND)
    assert rig.step(batches(1)[0]).session_valid
    # A fast worker that waits counts as alive by its heartbeats.
    with beating(rig, 0), running(rig.workers[0]) as fast:
        wait_for(lambda: fast.made > 20, "steps after the other one was given up", every=0.01)
        back = rig.workers[1].step(batches(1))
        assert back.session_valid
        with beating(rig, 1):
            assert back.ahead == 0
            settled = wait_for(lambda: fast.made, "where the fast one is")
            for _ in range(5):  # the slow worker catches up at once, however many steps it has missed
                assert rig.workers[1].step(batches(1)).session_valid
            wait_for(lambda: fast.made >= settled + 2, "steps of both", every=0.01)


def test_a_new_worker_starts_at_the_slowest_workers_step(client: Any) -> None:
    from pstraining.runtime.updates.base import Identity

    rig = started(client, max_staleness=BOUND)
    for _ in range(5):
        assert all(updates.step(batches(1)).session_valid for updates in rig.workers)
    assert rig.store.register(1, 2)
    newcomer = rig.mode.make(rig.store, Identity(1, 2))
    newcomer.start_session(SESSION)
    replies = [rig.workers[0].step(batches(1)) for _ in range(BOUND)]
    assert [reply.ahead for reply in replies] == [1, 2, 3], "it counts from where the other one was"
    assert newcomer.step(batches(1)).session_valid
    assert rig.workers[0].step(batches(1)).ahead == BOUND


@pytest.mark.parametrize(
    "others",
    some(
        [0, 3],
        lambda others: others,
        in_all(
            "tests/training/test_runtime_staleness.py::test_updates_report_the_staleness_of_their_parameters"
        ),  # no other worker
    ),
)
def test_updates_report_the_staleness_of_their_parameters(
    client: Any, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = started(client, accumulation_steps=2)
    assert rig.workers[0].step(batches(2)).staleness == 0
    between(rig.workers[0], lambda: [rig.workers[1].step(batches(2)) for _ in range(others)], monkeypatch)
    assert rig.workers[0].step(batches(2)).staleness == others


def between(updates: Any, what: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a function between a worker's next pull and its push."""
    over = updates._computer.compute

    def computed(found: Any) -> Any:
        contribution = over(found)
        monkeypatch.undo()
        what()
        return contribution

    monkeypatch.setattr(updates._computer, "compute", computed)


def test_an_update_with_a_lost_reply_counts_once_on_every_server(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pstraining.runtime.transport.client import ShardLostError

    rig = started(client, 2, accumulation_steps=2)
    updates = rig.workers[0]
    assert updates.step(batches(2)).applied
    again, server = batches(2), client.servers[1]
    with ExitStack() as stops:
        between(updates, lambda: stops.enter_context(stopped(server)), monkeypatch)
        with pytest.raises(ShardLostError) as lost:
            updates.step(again)
    client.recover(lost.value)
    assert rig.store.read()[0].step == 2, "the server that was there has it"
    for _ in range(2):
        updates.start_session(SESSION)
        assert updates.step(again).applied
        assert [shard.step for shard in rig.store.read()] == [2, 2]
    assert updates.step(batches(2)).step == 3


def test_a_batch_reassigned_to_another_worker_is_rejected(client: Any) -> None:
    from pstraining.runtime.ps.data_ledger import SplitPosition

    rig = started(client, with_ledger=True)
    pieces = itertools.count()
    assert rig.store.assign_split(SESSION, (0, 1), 9)[1] == next(pieces)
    (batch,) = batches(1)
    assert rig.workers[0].step([batch], SplitPosition(0, 1, finished=True)).applied
    assert not rig.workers[0].step([batch], SplitPosition(0, 1, finished=True)).session_valid, "its piece is over"
    assert rig.store.assign_split(SESSION, (0, 1), 9)[1] == next(pieces)
    assert rig.workers[0].step([batch], SplitPosition(1, 1, finished=True)).applied
