"""Parts of a campaign add up to one page."""

from pathlib import Path

from tests.campaign.faults import OnWrite, Plan, Point
from tests.campaign.oracle import Run
from tests.campaign.table import Results

POINT = Point("create", "services", "job-hs", 1)


def _part(workload: str, *, leaked: int = 0) -> Results:
    results = Results(seed=1, points={workload: 2}, seconds=60.0)
    plan = Plan(workload, OnWrite.CRASH_BEFORE, POINT)
    results.add(Run(plan, leaked=leaked), ["left behind"] if leaked else [])
    return results


def test_parts_add_up(tmp_path: Path) -> None:
    kept = tmp_path / "parts.json"
    for part in (_part("create", leaked=1), _part("fail")):
        part.take(kept)
        part.save(kept)
    page = part.page()
    assert "| crash before | 1 / 1 | 1 / 0 | 2 / 1 |" in page
    assert "| struck | 1 | 1 | 2 |" in page
    assert "2 plans, 1 diverge, 1 objects left behind" in page


def test_a_repeated_workload_is_counted_again(tmp_path: Path) -> None:
    kept = tmp_path / "parts.json"
    _part("fail", leaked=1).save(kept)
    again = _part("fail")
    again.take(kept)
    assert "1 plans, 0 diverge, 0 objects left behind" in again.page()
