"""SIGTERM on the chief: what is deferred, for how long, and which errors are raised."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pstraining.runtime.chief import shutdown
from pstraining.runtime.chief.shutdown import GracefulStop, StoppedError
from pstraining.runtime.replication.renewal import RenewalDueError

ENDLESS = 60.0
SHORT = 30.0
"""Seconds; shorter than the time limit of a test, which uses the same timer."""


@pytest.fixture
def stop() -> Iterator[GracefulStop]:
    """Signals reach it; the process's own handlers are back afterwards."""
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
    """The block ends with the exit code of SIGTERM."""
    with pytest.raises(SystemExit, match="143"):
        yield


def reports(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if '"stopped_unsaved"' in line]


def test_the_process_ends_at_once_where_nothing_is_deferred(stop: GracefulStop) -> None:
    with exits():
        terminate()


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
