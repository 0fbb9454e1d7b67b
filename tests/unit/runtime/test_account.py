"""A chief's counters of redundancy, and of its long activities."""

import time

import pytest

from pstraining.runtime.telemetry.counters import ChiefCounters


def test_losses_and_the_time_without_redundancy(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    account = ChiefCounters()
    account.on_new_view(lost=False, whole=True)
    now = 110.0
    assert (account.takeovers, account.unreplicated_seconds) == (0, 0.0)
    account.on_new_view(lost=True, whole=False)
    now = 112.0
    assert (account.takeovers, account.unreplicated_seconds) == (1, 2.0)
    account.on_new_view(lost=True, whole=False)
    now = 113.0
    account.on_new_view(lost=False, whole=True)
    now = 200.0
    assert (account.takeovers, account.unreplicated_seconds) == (2, 3.0)


def test_a_chief_is_busy_from_the_beginning_of_the_outermost_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The alert on training that stands still leaves out a chief that saves or evaluates."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    account = ChiefCounters()
    assert account.busy_seconds == 0.0
    with account.busy():
        now = 400.0
        with pytest.raises(OSError, match="full"), account.busy():
            raise OSError("full")
        now = 500.0
        assert account.busy_seconds == 400.0
    assert account.busy_seconds == 0.0


def test_a_chief_that_starts_without_a_member_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    account = ChiefCounters()
    account.on_new_view(lost=False, whole=False)
    monkeypatch.setattr(time, "monotonic", lambda: 6.5)
    assert account.unreplicated_seconds == 1.5
