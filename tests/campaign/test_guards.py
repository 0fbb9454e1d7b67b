"""Each class of fault is detected: with one of the operator's guards switched off, the campaign reports a
divergence.
"""

from dataclasses import replace

import pytest

from tests.campaign.faults import OnWatch, OnWrite, Plan, Point
from tests.campaign.guards import GUARDS
from tests.campaign.judging import Judge

CREATE_SERVICE = Point("create", "services", "job-hs", 1)
DELETE_WORKER = Point("delete", "deployments", "job-worker-0", 1)
FIRST_STATUS = Point("status", "pstrainingjobs", "job", 1)
LAST_STATUS = Point("status", "pstrainingjobs", "job", 4)
"""The last status write, after which no event would trigger another pass."""

FOUND = {
    "evidence": (Plan("fail", OnWrite.CRASH_TWICE, Point("status", "pstrainingjobs", "job", 5)),),
    "lists": tuple(Plan("create", f, CREATE_SERVICE) for f in (OnWrite.CRASH_BEFORE, OnWrite.CRASH_AFTER)),
    "fence": (Plan("fail", OnWrite.STALE, Point("create", "events", "Running", 2), group="all"),),
    "ownership": (Plan("create", OnWrite.LOST, CREATE_SERVICE, OnWatch.DELAYED, "services"),),
    "no-answer": (Plan("create", OnWrite.LOST, CREATE_SERVICE),),
    "retry": tuple(Plan("create", f, LAST_STATUS) for f in (OnWrite.CONFLICT, OnWrite.BROKEN, OnWrite.AWAY)),
    "retry-after": (Plan("create", OnWrite.TOO_MANY, FIRST_STATUS),),
    "time-out": (Plan("create", OnWrite.HANGS, FIRST_STATUS),),
    "uid": (Plan("suspend", OnWrite.LATE, DELETE_WORKER),),
    "memory": tuple(Plan("create", on_watch=f, group="all") for f in (OnWatch.DELAYED, OnWatch.REORDERED)),
    "tombstones": (Plan("suspend", on_watch=OnWatch.DOUBLED, group="all"),),
    "versions": (Plan("suspend", on_watch=OnWatch.DOUBLED, group="all"),),
    "relist": (Plan("suspend", on_watch=OnWatch.DROPPED, group="pods"),),
    "reconnect": (Plan("create", on_watch=OnWatch.CLOSED, group="pods"),),
    "list-again": (Plan("create", on_watch=OnWatch.GONE, group="pods"),),
    "liveness": (Plan("create", on_watch=OnWatch.SILENT, group="pods"),),
}
"""The plans that fail without each guard."""


@pytest.fixture(scope="session")
def verdicts(judge: Judge) -> dict[Plan, list[str]]:
    """Return the verdict on every plan of the table, with its guard and without it."""
    for workload in sorted({p.workload for found in FOUND.values() for p in found}):
        judge.do(judge.campaign.reference(workload))
    plans = [p for found in FOUND.values() for p in found]
    without = [replace(p, without=guard) for guard, found in FOUND.items() for p in found]
    return {run.plan: divergences for run, divergences in judge.judge([*dict.fromkeys(plans), *without])}


def test_every_guard_has_its_faults() -> None:
    assert FOUND.keys() == GUARDS.keys()


def test_every_class_of_fault_is_found() -> None:
    plans = [p for found in FOUND.values() for p in found]
    assert {p.on_write for p in plans} - {None} == set(OnWrite)
    assert {p.on_watch for p in plans} - {None} == set(OnWatch)


@pytest.mark.parametrize("guard", FOUND)
def test_a_switched_off_guard_is_found(guard: str, verdicts: dict[Plan, list[str]]) -> None:
    for plan in FOUND[guard]:
        assert not verdicts[plan], f"{plan}, with all guards"
        assert verdicts[replace(plan, without=guard)], f"{plan}: no run notices that {GUARDS[guard].what!r} is off"
