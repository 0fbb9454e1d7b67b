"""SIGTERM on the chief: the exits that are deferred, their limits, and the raised errors."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pstraining.api import contract
from pstraining.runtime.checkpoint.errors import NotSavedError
from pstraining.runtime.chief import shutdown
from pstraining.runtime.chief.errors import FencedError
from pstraining.runtime.chief.shutdown import AGAIN_SECONDS, HELD_BACK, GracefulStop, StoppedError
from pstraining.runtime.replication.renewal import RenewalDueError

ENDLESS = 60.0
SHORT = 30.0
"""Seconds, fewer than the time limit of a test, which uses the same timer."""


@pytest.fixture
def stop() -> Iterator[GracefulStop]:
    """Return a stop that receives signals; the process's own handlers are restored afterwards."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)}
    found = GracefulStop()
    found.install()
    yield found
    for number, handler in handlers.items():
        signal.signal(number, handler)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def exits() -> Iterator[None]:
    """Demand that the block ends with the exit code of SIGTERM."""
    with pytest.raises(SystemExit, match="143"):
        yield


def reports(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if '"stopped_unsaved"' in line]


def test_the_process_ends_at_once_where_nothing_is_deferred(stop: GracefulStop) -> None:
    with exits():
        terminate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_the_signal_to_stop_of_an_image_defers_the_exit_in_a_pod(number: signal.Signals) -> None:
    former = signal.getsignal(number)
    handlers = {other: signal.getsignal(other) for other in (signal.SIGTERM, signal.SIGALRM)}
    try:
        GracefulStop().install()
        assert signal.getsignal(number) == former, "a terminal sends it to a local job"
        (stop := GracefulStop()).install(in_pod=True)
        with exits(), stop.deferred():
            os.kill(os.getpid(), number)
            with pytest.raises(StoppedError):
                stop.check()
    finally:
        for other in HELD_BACK:
            signal.signal(other, handlers.get(other) or signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, handlers[signal.SIGALRM])


def test_a_deferred_exit_follows_the_block(stop: GracefulStop) -> None:
    saved = []
    with exits(), stop.deferred():
        terminate()
        with pytest.raises(StoppedError):
            stop.check()
        saved.append(1)
        stop.check()
    assert saved


def test_an_error_of_the_last_save_is_raised(stop: GracefulStop) -> None:
    def save() -> None:
        terminate()
        raise ValueError("the reason")

    with pytest.raises(ValueError, match="the reason"), stop.deferred():
        save()


def test_the_exit_code_of_a_save_for_another_layout_is_its_evidence(stop: GracefulStop) -> None:
    ending = GracefulStop(lambda: True)
    with pytest.raises(SystemExit, match=str(contract.EXIT_SAVED)), ending.deferred():
        ending.check_layout(can_save=True)


def test_no_layout_ends_without_a_folder_or_a_request() -> None:
    with GracefulStop(lambda: True).deferred() as _:
        GracefulStop(lambda: True).check_layout(can_save=False)
        GracefulStop(lambda: False).check_layout(can_save=True)


def test_training_continues_after_a_save_for_another_layout_that_fails() -> None:
    now = [0.0]
    ending = GracefulStop(lambda: True, lambda: now[0])
    with pytest.raises(StoppedError):
        ending.check_layout(can_save=True)
    with pytest.raises(FencedError), ending.saving():
        raise NotSavedError
    ending.check_layout(can_save=True)  # not yet again
    now[0] = AGAIN_SECONDS
    with pytest.raises(StoppedError):
        ending.check_layout(can_save=True)


def test_a_failed_save_after_the_signal_ends_the_process(stop: GracefulStop) -> None:
    def fail() -> None:
        raise NotSavedError

    saved = []
    with exits(), stop.deferred():
        terminate()
        with stop.saving():
            fail()
        saved.append(0)  # no error is raised that would let training continue
    assert saved


def test_the_signal_during_a_save_for_another_layout_leaves_no_evidence() -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)}
    ending = GracefulStop(lambda: True)
    ending.install()
    try:
        with exits(), ending.deferred():
            terminate()
            ending.check_layout(can_save=True)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_a_due_renewal_yields_to_the_exit(stop: GracefulStop) -> None:
    with pytest.raises(RenewalDueError), stop.deferred():
        raise RenewalDueError
    with exits(), stop.deferred():
        terminate()
        raise RenewalDueError


@pytest.mark.parametrize("before", [True, False], ids=["signal-before", "signal-during"])
def test_servers_that_do_not_return_end_the_deferral(
    stop: GracefulStop, before: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutdown, "RECOVERY_SECONDS", 0.05)
    with exits(), stop.deferred():
        if before:
            terminate()
        with stop.recovering():
            if not before:
                terminate()
            threading.Event().wait(ENDLESS)
    (report,) = reports(capsys.readouterr().out)
    assert "did not recover" in report


def test_the_limit_ends_with_the_recovery(stop: GracefulStop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "RECOVERY_SECONDS", SHORT)
    with exits(), stop.deferred():
        terminate()
        with stop.recovering():
            assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= SHORT
        assert not 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= SHORT, "the save has the whole grace period"


def test_without_a_signal_a_recovery_has_no_limit(stop: GracefulStop) -> None:
    with stop.deferred(), stop.recovering():
        assert not 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= shutdown.RECOVERY_SECONDS
        stop.exit_unsaved("not asked")


def test_lost_state_ends_the_process_after_the_signal(stop: GracefulStop, capsys: pytest.CaptureFixture[str]) -> None:
    with exits(), stop.deferred():
        terminate()
        stop.exit_unsaved("the servers are empty")
    assert "the servers are empty" in reports(capsys.readouterr().out)[0]
