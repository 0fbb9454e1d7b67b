"""JUnit reports, and the summary of a whole run for the terminal and as JSON."""

import json
from pathlib import Path

import pytest

from hack import processor, reports
from hack.layers import Budget
from hack.level import Level
from hack.processor import Cores
from hack.reports import Outcome, Summary, Test, read_report


def test_a_report_is_summed(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    case = '<testcase classname="tests.unit.hack.test_reports" name="test_x[1]" time="2.5">'
    used = '<properties><property name="processor_s" value="1.25"/></properties></testcase>'
    suite = f'<testsuite tests="10" failures="1" errors="2" skipped="3">{case}{used}</testsuite>'
    report.write_text(f"<testsuites>{suite}</testsuites>", "utf-8")
    outcome = Outcome("a")
    read_report(report, outcome)
    assert (outcome.passed, outcome.failed, outcome.skipped) == (4, 3, 3)
    assert "4 passed, 3 failed, 3 skipped" in outcome.line()
    assert outcome.tests == [Test("a", "tests/unit/hack/test_reports.py::test_x[1]", 2.5, 1.25)]


@pytest.mark.parametrize(
    ("classname", "place"),
    [
        ("tests.unit.hack.test_reports", "tests/unit/hack/test_reports.py::test_x"),
        ("tests.unit.hack.test_reports.TestIt", "tests/unit/hack/test_reports.py::TestIt::test_x"),
        ("test_elsewhere", "test_elsewhere::test_x"),
        ("", "test_x"),
    ],
)
def test_a_test_has_its_pytest_id(classname: str, place: str) -> None:
    assert reports.place(classname, "test_x") == place


def test_the_slowest_tests_are_listed(tmp_path: Path) -> None:
    tests = [Test("a", f"test_{number}", float(number), 0.5) for number in range(30)]
    summary = Summary(Level.QUICK, [Outcome("a", passed=30, tests=tests)])
    assert [test.name for test in summary.slowest()] == [f"test_{number}" for number in range(29, 9, -1)]
    assert "test_29" in summary.text()
    summary.write(tmp_path)
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written["slowest"][0] == {"seconds": 29.0, "processor_s": 0.5, "layer": "a", "test": "test_29"}
    assert (written["level"], written["status"]) == ("quick", 0)


def test_a_layer_over_its_budget_is_marked_and_fails_nothing(tmp_path: Path) -> None:
    over = Outcome("a", passed=1, seconds=9.4, budget_s=9.0, cores=Cores(12.0, 16.0))
    within = Outcome("b", passed=1, seconds=8.6, budget_s=9.0)
    unbounded = Outcome("c", passed=1, seconds=9999.0)
    summary = Summary(Level.ALL, [over, within, unbounded])
    assert summary.status == 0
    assert [line.split() for line in summary.text().splitlines()[2:5]] == [
        ["ok", "a", "9.4", "9", "12", "75%", "1", "passed,", "0", "failed", "over", "budget"],
        ["ok", "b", "8.6", "9", "-", "-", "1", "passed,", "0", "failed"],
        ["ok", "c", "9999.0", "-", "-", "-", "1", "passed,", "0", "failed"],
    ]
    assert [outcome.line().endswith("over budget") for outcome in summary.outcomes] == [True, False, False]
    summary.write(tmp_path)
    written = json.loads((tmp_path / "summary.json").read_text())["layers"]
    assert [layer["over_budget"] for layer in written] == [True, False, False]
    assert [(layer["processor_s"], layer["cores_busy"]) for layer in written[:2]] == [(12.0, 0.75), (None, None)]


def test_a_soak_has_no_budget() -> None:
    assert [Budget(1.0, 2.0).at(level) for level in Level] == [1.0, 2.0, None]


@pytest.mark.parametrize(
    ("outcome", "good"),
    [
        (Outcome("a", passed=1), True),
        (Outcome("a", passed=1, failed=1), False),
        (Outcome("a", passed=1, problem="sleep was ended after 1 s"), False),
        (Outcome("a", passed=1, lost=1), False),
        (Outcome("a", skipped=3), False),
        (Outcome("a", skipped=3, narrowed=True), True),
    ],
)
def test_a_layer_passes_if_tests_ran_and_none_failed(outcome: Outcome, good: bool) -> None:
    assert outcome.good is good
    assert Summary(Level.QUICK, [outcome]).status == (0 if good else 1)


def test_busy_cores_are_read_from_the_kernel(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 100 500 100 0 0 0 50 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    before = processor.look(stat)
    stat.write_text("cpu  200 100 200 600 200 0 0 0 90 0\n")
    used = processor.look(stat).since(before)
    assert (used.share, used.busy_s / used.total_s) == (0.6, 0.6)
    assert processor.look(tmp_path / "none") == processor.NOTHING
