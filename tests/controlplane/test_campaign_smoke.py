"""A dozen plans of the campaign, one of each kind; `make campaign` runs all of them."""

import random

from tests.campaign.faults import OnWatch, OnWrite, Plan, plans
from tests.campaign.judging import Judge

SEED = 7
WORKLOAD = "fail"
SKIPPED = {str(OnWrite.BROKEN), str(OnWrite.HANGS)} | {
    f"watch {fault}" for fault in (OnWatch.CLOSED, OnWatch.SILENT, OnWatch.DELAYED, OnWatch.REORDERED)
}
"""Fault classes that are slow, or have a close relative here."""


def test_one_plan_of_each_kind(judge: Judge) -> None:
    before, own = judge.do(judge.campaign.reference(WORKLOAD))
    by_class: dict[str, list[Plan]] = {}
    for plan in plans(WORKLOAD, before, own, SEED):
        by_class.setdefault(plan.fault, []).append(plan)
    chosen = [random.Random(f"{SEED} {name}").choice(found) for name, found in by_class.items() if name not in SKIPPED]
    assert len(chosen) >= 12
    diverged = {str(run.plan): problems for run, problems in judge.judge(chosen) if problems}
    assert not diverged
