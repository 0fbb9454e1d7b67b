"""Calls that take too long are cut; connecting cannot be abandoned, and ends the process after its third failure."""

import os

import pytest

from pstraining.api.contract import EXIT_START_TIMEOUT
from pstraining.runtime.transport.watchdog import Watched


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    monkeypatch.setattr(os, "_exit", found.append)
    return found


def test_no_action_is_taken_early(exits: list[int]) -> None:
    assert not Watched("connect", 100.0, fatal=True, cuts=2).look([])
    assert not exits


@pytest.mark.parametrize(("fatal", "cuts", "ends"), [(False, 0, 0), (False, 5, 0), (True, 1, 0), (True, 2, 1)])
def test_a_call_that_cannot_be_abandoned_ends_the_process_on_its_second_cut(
    exits: list[int], fatal: bool, cuts: int, ends: int
) -> None:
    watched = Watched("connect", 0.0, fatal=fatal, cuts=cuts)
    assert watched.look([])
    assert watched.cuts == cuts + 1
    assert exits == [EXIT_START_TIMEOUT] * ends
