"""How `make test` goes from layer to layer, and what it reports at the end."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from hack import layers, quiet
from hack.children import EndlessError, interrupted, run_child
from hack.cluster.errors import ClusterError
from hack.layers import Budget, Layer, Part
from hack.level import Level, LevelError, read_level
from hack.reports import Outcome, Summary, Test, read_report
from hack.run_tests import Runner

GOOD, BAD = ("true",), ("false",)
PASSES = "def test_it_passes() -> None:\n    pass\n"
FAILS = "def test_it_fails() -> None:\n    assert 1 == 2, 'its own words'\n"
ROOT = layers.ROOT


class Surroundings:
    """Needs nothing, or cannot make what a layer with a cluster needs."""

    def environment(self, layer: Layer) -> Mapping[str, str]:
        if layer.cluster:
            raise ClusterError("no cluster today")
        return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}


Run = Callable[..., Summary]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(*given: Layer, longest_s: float = 60.0, verbose: bool = False) -> Summary:
        runner = Runner(Surroundings(), reports=tmp_path / "reports", longest_s=longest_s, verbose=verbose)  # type: ignore[arg-type]
        return runner.run(given)

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a layer's tests are; a configuration of their own keeps the project's away."""
    made = tmp_path / "tests"
    made.mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return made


def part(name: str, folder: Path, *options: str) -> Part:
    return Part(name, (str(folder),), ("-p", "no:cacheprovider", "-c", str(folder.parent / "pytest.ini"), *options))


def test_all_is_well(run: Run) -> None:
    summary = run(Layer("a", checks=(GOOD, GOOD), cheap=True), Layer("b", checks=(GOOD,)))
    assert [o.good for o in summary.outcomes] == [True, True]
    assert (summary.why_not, summary.status) == ("", 0)
    assert summary.text().endswith("\n3 passed, 0 failed")


def test_a_cheap_failure_ends_the_run(run: Run) -> None:
    summary = run(Layer("a", checks=(BAD, GOOD), cheap=True), Layer("b", checks=(GOOD,)))
    assert [o.name for o in summary.outcomes] == ["a"]
    assert (summary.why_not, summary.status) == ("a failed", 1)
    assert "not run b" in summary.text()


def test_a_later_failure_does_not_keep_others_from_running(run: Run) -> None:
    summary = run(Layer("a", checks=(BAD,)), Layer("b", checks=(GOOD,)))
    assert [o.good for o in summary.outcomes] == [False, True]
    assert summary.status == 1
    assert summary.text().endswith("\n1 passed, 1 failed")


def test_a_layer_that_cannot_be_set_up_fails(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    summary = run(Layer("a", checks=(GOOD,), cluster=True), Layer("b", checks=(GOOD,)))
    assert [o.good for o in summary.outcomes] == [False, True]
    assert summary.status == 1
    assert "no cluster today" in capsys.readouterr().err


def test_a_layer_that_hangs_is_ended_and_the_next_one_is_run(run: Run) -> None:
    summary = run(Layer("a", checks=(("sleep", "600"), GOOD)), Layer("b", checks=(GOOD,)), longest_s=0.1)
    assert [o.good for o in summary.outcomes] == [False, True]
    assert summary.status == 1
    assert "sleep was ended after 0.1 s" in summary.text()


def test_a_layer_without_tests_fails(run: Run, folder: Path) -> None:
    summary = run(Layer("a", parts=(part("a", folder),)))
    assert summary.outcomes[0].problem == "there are no tests"
    assert summary.status == 1
    assert "FAILED" in summary.text()


def test_every_part_has_a_report_and_one_may_select_nothing(run: Run, folder: Path, tmp_path: Path) -> None:
    (folder / "test_one.py").write_text(PASSES)
    some, none = part("some", folder), part("none", folder, "-k", "nothing_has_this_name")
    summary = run(Layer("a", parts=(some, none)))
    assert (summary.outcomes[0].passed, summary.outcomes[0].good) == (1, True)
    assert {p.name for p in (tmp_path / "reports").glob("*.xml")} == {"a-some.xml", "a-none.xml"}
    assert run(Layer("a", parts=(none,))).outcomes[0].problem == "no tests were selected"


def test_of_a_red_layer_the_failures_are_shown_and_the_rest_is_in_its_log(
    run: Run, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "test_one.py").write_text(PASSES + "\n\n" + FAILS)
    summary = run(Layer("a", parts=(part("a", folder),)), Layer("b", checks=(GOOD,)))
    assert (summary.outcomes[0].passed, summary.outcomes[0].failed) == (1, 1)
    shown = capsys.readouterr().out
    assert "its own words" in shown
    assert str(tmp_path / "reports" / "a.log") in shown
    assert "its own words" in (tmp_path / "reports" / "a.log").read_text()


def test_of_a_green_layer_one_line_is_shown(run: Run, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "test_one.py").write_text(PASSES)
    run(Layer("a", parts=(part("a", folder),), checks=(("echo", "chatter"),)))
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["ok", "a"]]


def test_over_budget_is_marked_and_fails_nothing(run: Run) -> None:
    summary = run(Layer("a", checks=(GOOD,), budget_s=Budget(0.0, 9.0)), Layer("b", checks=(GOOD,)))
    assert [o.over_budget for o in summary.outcomes] == [True, False]
    assert summary.status == 0
    assert summary.text().count("over budget") == 1
    assert [Budget(1.0, 2.0).at(level) for level in Level] == [1.0, 2.0, None]


def test_a_report_is_added_up(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    case = '<testcase classname="tests.unit.hack.test_run_tests" name="test_x[1]" time="2.5">'
    used = '<properties><property name="processor_s" value="1.25"/></properties></testcase>'
    suite = f'<testsuite tests="10" failures="1" errors="2" skipped="3">{case}{used}</testsuite>'
    report.write_text(f"<testsuites>{suite}</testsuites>", "utf-8")
    outcome = Outcome("a")
    read_report(report, outcome)
    assert (outcome.passed, outcome.failed, outcome.skipped) == (4, 3, 3)
    assert "4 passed, 3 failed, 3 skipped" in outcome.line()
    assert outcome.tests == [Test("a", "tests/unit/hack/test_run_tests.py::test_x[1]", 2.5, 1.25)]


def test_the_slowest_tests_are_listed(tmp_path: Path) -> None:
    tests = [Test("a", f"test_{number}", float(number), 0.5) for number in range(30)]
    summary = Summary(Level.QUICK, [Outcome("a", passed=30, tests=tests)])
    assert [test.name for test in summary.slowest()] == [f"test_{number}" for number in range(29, 9, -1)]
    assert "test_29" in summary.text()
    summary.write(tmp_path)
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written["slowest"][0] == {"seconds": 29.0, "processor_s": 0.5, "layer": "a", "test": "test_29"}
    assert written["status"] == 0


def test_a_command_that_is_interrupted_cleans_up(tmp_path: Path) -> None:
    script = tmp_path / "cleans.sh"
    script.write_text(f"trap 'echo clean > {tmp_path}/done; exit 3' INT\necho up\nwhile true; do sleep 0.05; done\n")

    with (tmp_path / "out").open("wb") as out, suppress(KeyboardInterrupt):
        run_child(
            ("bash", str(script)),
            {"PATH": "/usr/bin:/bin"},
            60.0,
            out=out,
            look=lambda: interrupted(0, None) if (tmp_path / "out").read_text() else None,
        )
    assert (tmp_path / "done").read_text() == "clean\n"


def test_a_command_that_takes_too_long_is_interrupted(tmp_path: Path) -> None:
    with pytest.raises(EndlessError, match="sleep was ended after"):
        run_child(("sleep", "600"), {"PATH": "/usr/bin:/bin"}, 0.1)


def test_an_interrupted_run_says_what_was_not_run(run: Run) -> None:
    def interrupt(signum: int) -> tuple[str, ...]:
        code = f"import os, signal; os.kill(os.getppid(), {signum})"
        return (sys.executable, "-c", f"{code}; import time; time.sleep(60)")

    former = signal.signal(signal.SIGTERM, interrupted)
    try:
        summary = run(Layer("a", checks=(interrupt(signal.SIGTERM),)), Layer("b", checks=(GOOD,)))
    finally:
        signal.signal(signal.SIGTERM, former)
    assert (summary.why_not, summary.status) == ("interrupted", 1)
    assert summary.not_run == ("a", "b")


def test_a_level_that_is_not_known_is_refused() -> None:
    assert [read_level({"PSTRAINING_TESTS": word}) for word in ("quick", "all", "soak")] == list(Level)
    assert read_level({}) is Level.QUICK
    with pytest.raises(LevelError, match="PSTRAINING_TESTS"):
        read_level({"PSTRAINING_TESTS": "some"})


def test_progress_is_a_line_now_and_then_where_it_cannot_be_redrawn() -> None:
    now = [0.0]
    out = io.StringIO()
    line = quiet.Line(out, lambda: now[0])
    line.start()
    for now[0] in (1.0, 29.0, 31.0, 40.0, 62.0):
        line.show(f"at {now[0]:.0f}")
    assert out.getvalue().split("\n") == ["at 31", "at 62", ""]


def test_every_folder_of_tests_belongs_to_one_layer() -> None:
    folders = {p.relative_to(ROOT).as_posix() for p in (ROOT / "tests").iterdir() if p.is_dir()}
    with_tests = {f for f in folders if any((ROOT / f).rglob("test_*.py"))}
    listed = [folder for layer in layers.LAYERS for folder in layer.folders]
    assert len(listed) == len(set(listed))
    # The campaign takes too long for every run: `make campaign` runs it, the controlplane layer a part of it.
    assert with_tests - {"tests/campaign"} <= set(listed)


def test_the_makefile_has_a_target_for_every_layer() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for layer in layers.LAYERS:
        assert f"\ntest-{layer.name}: install ## " in makefile
    for level in ("test", "test-all", "test-changed"):
        assert f"\n{level}: install ## " in makefile


def test_ci_runs_the_command_of_the_readme() -> None:
    assert (
        "make test"
        in subprocess.run(["cat", str(ROOT / ".ci" / "run")], check=True, capture_output=True, text=True)
        .stdout.rstrip()
        .splitlines()
        .pop()
    )
