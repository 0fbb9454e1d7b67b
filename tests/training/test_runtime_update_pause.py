"""A pause of asynchronous updates: workers complete the update that they have sent, and send no new one."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from pstraining.runtime.chief import layout_transfer, live_layout
from pstraining.runtime.chief.shutdown import StoppedError
from pstraining.runtime.replication.view import Ballot, LayoutPostponedError
from pstraining.runtime.transport import http2_probe
from tests.support.kube import wait_for
from tests.support.servers import SESSION, Rig, batches
from tests.support.soak_marks import in_all
from tests.training.test_runtime_async_pairs import PRIMARIES, bind, started, steps
from tests.training.test_runtime_staleness import Runner, beating, running

pytestmark = [pytest.mark.training, pytest.mark.timeout(400)]


def transfer(rig: Rig) -> Any:
    return layout_transfer.LayoutTransfer(rig.control, rig.control, SESSION.fence)


@contextmanager
def everyone_runs(rig: Rig) -> Iterator[list[Runner]]:
    """Let all workers step as fast as they can."""
    with ExitStack() as stack:
        for worker, updates in enumerate(rig.workers):
            assert updates.step(batches(1)).session_valid  # traced
            stack.enter_context(beating(rig, worker))
        yield [stack.enter_context(running(updates)) for updates in rig.workers]


def pause(rig: Rig, pausing: Any) -> None:
    pausing.complete_updates(rig.control, SESSION.fence, lambda: None)


def all_step_on(runners: list[Runner]) -> None:
    before = [runner.made for runner in runners]
    for runner, made in zip(runners, before, strict=True):
        wait_for(lambda: runner.made > made + 1, "more steps", 15, every=0.01)  # noqa: B023 - less than a pause


def test_no_update_is_sent_in_a_pause_until_it_ends(client: Any) -> None:
    rig = started(client, workers=2)
    with everyone_runs(rig) as runners:
        all_step_on(runners)
        pausing = transfer(rig)
        pause(rig, pausing)
        before = steps(rig)
        asked = rig.store.read()[0].step
        for _ in range(20):  # both workers ask again meanwhile
            assert rig.store.read()[0].step == asked
        assert steps(rig) == before
        assert len(set(before)) == 1, "every update is on all members"
        assert pausing._partly_applied(pausing._pause, rig.control) == []
        pausing.end()
        all_step_on(runners)


@in_all("tests/training/test_runtime_update_pause.py::test_no_update_is_sent_in_a_pause_until_it_ends")
def test_a_pause_ends_under_another_fence(client: Any) -> None:
    rig = started(client, workers=2)
    with everyone_runs(rig) as runners:
        pause(rig, transfer(rig))
    rig.control.raise_fence(rig.store.read(), 2)
    for updates in rig.workers:
        updates.start_session(type(SESSION)(2, SESSION.generation))
    with everyone_runs(rig) as runners:
        all_step_on(runners)


def test_a_worker_without_a_step_postpones_the_change(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_transfer, "PAUSE_SECONDS", 0.5)
    rig = started(client, workers=2)
    assert rig.workers[1].step(batches(1)).session_valid
    with beating(rig, 0), beating(rig, 1), running(rig.workers[0]) as other:
        all_step_on([other])
        pausing = transfer(rig)
        with pytest.raises(LayoutPostponedError, match="worker-1 completed no step"):
            pause(rig, pausing)
        pausing.end()
        all_step_on([other])


def test_a_chief_that_is_stopped_gives_the_pause_up_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """It has 30 s by default, in which it also saves the state."""
    transfer = Mock()
    transfer.complete_updates = lambda admin, fence, hold: [hold() for _ in range(9)]  # a worker is slow
    store = Mock(model=Mock(tables=[]), shards=[])
    changer = live_layout.LayoutChanger(Mock(), store, make=Mock(), restore=Mock(), hold=(hold := Mock()))
    changer._next = live_layout._Next(Mock(), Mock(), Mock(), Mock(fence=0), 0.0, transfer)
    with pytest.raises(StoppedError):
        changer.lead(Mock(), Mock(), Mock(), SESSION.fence, Mock(side_effect=[None, None, StoppedError]))
    assert hold.call_count == 2
    transfer.end.assert_called_once()
    assert capsys.readouterr().out == "", "no event says that training continues"


def test_an_update_on_some_members_is_found(client: Any) -> None:
    rig = started(client)
    assert bind(rig, PRIMARIES).step(batches(1)).session_valid
    pausing = transfer(rig)
    assert pausing._partly_applied(pausing._pause, rig.control) == [0]
    with pytest.raises(LayoutPostponedError, match="lack the last update of worker-0"):
        pausing.copy(rig.control, SESSION.fence)


def test_functions_of_both_layouts_are_sent_before_the_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task sends its functions again over each connection, and the preparation of a layout makes one."""
    sent: list[str] = []

    def send(name: str) -> Iterator[None]:
        sent.append(name)
        yield

    former, coming = (Mock(warm_up=partial(send, name)) for name in ("former", "next"))
    coming.claim.return_value = Ballot(1, 1)
    monkeypatch.setattr(http2_probe, "unresponsive", lambda _: [])
    monkeypatch.setattr(live_layout, "LayoutTransfer", Mock())
    monkeypatch.setattr(live_layout.LayoutChanger, "is_wanted", True)
    changer = live_layout.LayoutChanger(
        Mock(),
        Mock(model=Mock(tables=[]), shards=[]),
        make=Mock(),
        restore=Mock(),
        hold=Mock(),
    )
    changer._wanted = Mock(in_pod=False, layout=2, shards=2)
    monkeypatch.setattr(changer, "_connect", lambda _: live_layout._Next(Mock(), Mock(), Mock(), coming, 0.0))
    admin = Mock(copies=Mock(bytes_by_key=lambda: 0))
    changer.is_ready(former, admin, SESSION.fence)
    assert sent == ["next", "former"]
