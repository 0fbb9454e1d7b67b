"""What takes too long is cut; connecting cannot be given up, and ends the process when that was in vain thrice."""

import os

import pytest

from pstraining.runtime.transport.watchdog import EXIT_STUCK, Watched


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    monkeypatch.setattr(os, "_exit", found.append)
    return found


def test_nothing_is_done_before_its_time(exits: list[int]) -> None:
    assert not Watched("connect", 100.0, fatal=True, cuts=2).look([])
    assert not exits


@pytest.mark.parametrize(("fatal", "cuts", "ends"), [(False, 0, 0), (False, 5, 0), (True, 1, 0), (True, 2, 1)])
def test_what_cannot_be_given_up_and_was_cut_before_ends_the_process(
    exits: list[int], fatal: bool, cuts: int, ends: int
) -> None:
    watched = Watched("connect", 0.0, fatal=fatal, cuts=cuts)
    assert watched.look([])
    assert watched.cuts == cuts + 1
    assert exits == [EXIT_STUCK] * ends
