"""The order of layers in `make test`, and the report at the end."""

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from hack import layers, run_tests
from hack.children import interrupted
from hack.layers import Budget, Layer, Part
from hack.level import Level, LevelError, read_level
from hack.reports import Summary
from hack.run_tests import Runner
from localcluster.errors import ClusterError
from localcluster.progress import Progress

GOOD, BAD = ("true",), ("false",)
PASSES = "def test_it_passes() -> None:\n    pass\n"
FAILS = "def test_it_fails() -> None:\n    assert 1 == 2, 'its own words'\n"
COSTS = """
import time

def test_it_costs() -> None:
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
"""
ROOT = layers.ROOT


class Surroundings:
    """Needs no setup, or fails to set up a layer with a cluster."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def environment(self, layer: Layer) -> Mapping[str, str]:
        if layer.cluster:
            raise ClusterError("no cluster today")
        # Half of the processor time of a pytest that runs one test is the import of the plugins that it finds by
        # itself.
        return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


Run = Callable[..., Summary]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(*given: Layer, longest_s: float = 60.0, verbose: bool = False) -> Summary:
        runner = Runner(Surroundings(), reports=tmp_path / "reports", longest_s=longest_s, verbose=verbose)  # type: ignore[arg-type]
        return runner.run(given)

    return run


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder for a layer's tests, whose own configuration replaces the project's."""
    made = tmp_path / "tests"
    made.mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return made


def part(name: str, folder: Path, *options: str) -> Part:
    return Part(name, (str(folder),), ("-p", "no:cacheprovider", "-c", str(folder.parent / "pytest.ini"), *options))


def test_a_green_run_succeeds(run: Run) -> None:
    summary = run(Layer("a", checks=(GOOD, GOOD), cheap=True), Layer("b", checks=(GOOD,)))
    assert [o.good for o in summary.outcomes] == [True, True]
    assert (summary.why_not, summary.status) == ("", 0)
    assert summary.text().endswith("\n3 passed, 0 failed")


def test_a_cheap_failure_ends_the_run(run: Run) -> None:
    summary = run(Layer("a", checks=(BAD, GOOD), cheap=True), Layer("b", checks=(GOOD,)))
    assert [o.name for o in summary.outcomes] == ["a"]
    assert (summary.why_not, summary.status) == ("a failed", 1)
    assert "not run b" in summary.text()


def test_a_later_failure_does_not_stop_other_layers(run: Run) -> None:
    summary = run(Layer("a", checks=(BAD,)), Layer("b", checks=(GOOD,)))
    assert [o.good for o in summary.outcomes] == [False, True]
    assert summary.status == 1
    assert summary.text().endswith("\n1 passed, 1 failed")


def test_a_layer_that_cannot_be_set_up_fails(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    summary = run(Layer("a", checks=(GOOD,), cluster=True), Layer("b", checks=(GOOD,)))
    assert [o.good for o in summary.outcomes] == [False, True]
    assert summary.status == 1
    assert "no cluster today" in capsys.readouterr().err


def test_a_hung_layer_is_terminated_and_the_next_one_runs(run: Run) -> None:
    summary = run(Layer("a", checks=(("sleep", "600"), GOOD)), Layer("b", checks=(GOOD,)), longest_s=0.1)
    assert [o.good for o in summary.outcomes] == [False, True]
    assert summary.status == 1
    assert "sleep was ended after 0.1 s" in summary.text()


def test_a_layer_without_tests_fails(run: Run, folder: Path) -> None:
    summary = run(Layer("a", parts=(part("a", folder),)))
    assert summary.outcomes[0].problem == "there are no tests"
    assert summary.status == 1
    assert "FAILED" in summary.text()


def test_every_part_has_a_report_and_may_be_empty(run: Run, folder: Path, tmp_path: Path) -> None:
    (folder / "test_one.py").write_text(PASSES)
    some, none = part("some", folder), part("none", folder, "-k", "nothing_has_this_name")
    summary = run(Layer("a", parts=(some, none)))
    assert (summary.outcomes[0].passed, summary.outcomes[0].good) == (1, True)
    assert {p.name for p in (tmp_path / "reports").glob("*.xml")} == {"a-some.xml", "a-none.xml"}
    assert run(Layer("a", parts=(none,))).outcomes[0].problem == "no tests were selected"


def test_the_failures_of_a_red_layer_are_shown_and_its_log_has_the_rest(
    run: Run, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "test_one.py").write_text(PASSES + "\n\n" + FAILS)
    summary = run(Layer("a", parts=(part("a", folder),)), Layer("b", checks=(GOOD,)))
    assert (summary.outcomes[0].passed, summary.outcomes[0].failed) == (1, 1)
    log = tmp_path / "reports" / "a.log"
    shown = capsys.readouterr().out.strip().splitlines()
    assert " -m pytest " in shown[0]
    assert re.fullmatch("=+ FAILURES =+", shown[1])
    assert f"all of it: {log}" in shown
    assert any("its own words" in line for line in shown)
    assert not any("test_it_passes" in line for line in shown)
    assert "its own words" in log.read_text()
    assert "test_it_passes" in log.read_text()


def test_the_end_of_a_red_checks_output_is_shown(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(Layer("a", checks=(("sh", "-c", "seq 1000; exit 1"),)))
    shown = capsys.readouterr().out.strip().splitlines()
    assert shown[0] == "$ sh -c seq 1000; exit 1"
    assert shown[1:101] == [str(number) for number in range(901, 1001)]


def test_checks_run_at_the_same_time_and_the_log_keeps_them_apart(run: Run, tmp_path: Path) -> None:
    meets = "touch {0}/{1}; echo {1}; until [ -e {0}/{2} ]; do sleep 0.02; done; echo {1}"
    checks = [("sh", "-c", meets.format(tmp_path, *names)) for names in ("ab", "ba")]
    assert run(Layer("a", checks=tuple(checks))).status == 0
    log = (tmp_path / "reports" / "a.log").read_text()
    assert all(f"$ {' '.join(check)}\n{name}\n{name}\n" in log for check, name in zip(checks, "ab", strict=True))


def test_a_green_layer_is_one_line(run: Run, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "test_one.py").write_text(PASSES)
    run(Layer("a", parts=(part("a", folder),), checks=(("echo", "chatter"),)))
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["ok", "a"]]


def test_a_layer_prints_on_the_terminal_on_request(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(Layer("a", checks=(("echo", "chatter"),)), verbose=True)
    assert "chatter" in capfd.readouterr().out.splitlines()
    assert not (tmp_path / "reports" / "a.log").exists()


def test_pytest_that_ends_without_a_failed_test_is_a_problem(run: Run, folder: Path) -> None:
    (folder / "test_one.py").write_text(PASSES)
    summary = run(Layer("a", parts=(part("a", folder, "--no-such-option"),)))
    assert (summary.outcomes[0].problem, summary.status) == ("pytest ended with 4", 1)


DIES = """
import os, signal

def test_it_dies() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)

def test_that_never_runs() -> None:
    pass
"""


def test_a_crashed_process_shows_its_stack_and_the_number_of_skipped_tests(
    run: Run, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "test_it.py").write_text(DIES)
    (outcome,) = run(
        Layer("a", parts=(part("a", folder, "-p", "xdist", "-n", "1", "--max-worker-restart=0"),))
    ).outcomes
    assert not outcome.good
    assert outcome.counts() == "0 passed, 1 failed, 1 never run"
    shown = capsys.readouterr().out
    assert "Fatal Python error: Segmentation fault" in shown
    assert "in test_it_dies" in shown


def test_the_parts_of_a_layer_are_summed(run: Run, folder: Path, tmp_path: Path) -> None:
    (folder / "test_one.py").write_text(PASSES + "\n\n" + FAILS)
    one, other = part("one", folder, "-k", "passes"), part("other", folder, "-k", "fails")
    outcome = run(Layer("a", parts=(one, other))).outcomes[0]
    assert (outcome.passed, outcome.failed, outcome.problem) == (1, 1, "")
    assert [test.layer for test in outcome.tests] == ["a", "a"]
    assert {p.name for p in (tmp_path / "reports").iterdir()} == {"a-one.xml", "a-other.xml", "a.log"}


def test_the_cost_of_a_test_is_in_its_report(run: Run, folder: Path) -> None:
    (folder / "test_one.py").write_text(COSTS)
    (test,) = run(Layer("a", parts=(part("a", folder, "-p", "tests.conftest"),))).outcomes[0].tests
    assert test.processor_s is not None
    assert test.processor_s >= 0.2


def test_a_layer_of_some_files_may_have_no_test_for_this_level(run: Run, folder: Path) -> None:
    (folder / "test_one.py").write_text(PASSES)
    layer = Layer("a", parts=(part("a", folder, "-k", "nothing_has_this_name"),))
    assert run(layer.only([str(folder / "test_one.py")])).status == 0
    assert run(layer).status == 1


def test_over_budget_is_marked_and_fails_nothing(run: Run) -> None:
    summary = run(Layer("a", checks=(GOOD,), budget_s=Budget(0.0, 9.0)), Layer("b", checks=(GOOD,)))
    assert [o.over_budget for o in summary.outcomes] == [True, False]
    assert summary.status == 0
    assert summary.text().count("over budget") == 1


def test_an_interrupted_run_lists_the_skipped_layers(run: Run) -> None:
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


def test_an_unknown_level_is_rejected() -> None:
    assert [read_level({"PSTRAINING_TESTS": word}) for word in ("quick", "all", "soak")] == list(Level)
    assert read_level({}) is Level.QUICK
    with pytest.raises(LevelError, match="PSTRAINING_TESTS must be one of quick, all, soak, not 'some'"):
        read_level({"PSTRAINING_TESTS": "some"})


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Surroundings]:
    """Return the surroundings of the command line, and restore the signal handlers afterwards."""
    made = Surroundings()
    monkeypatch.setattr(run_tests, "Surroundings", lambda *_, **__: made)
    monkeypatch.setattr(run_tests, "Runner", partial(Runner, reports=tmp_path))
    monkeypatch.delenv("PSTRAINING_TESTS", raising=False)
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield made
    for number, handler in former.items():
        signal.signal(number, handler)


def command_line(monkeypatch: pytest.MonkeyPatch, *words: str, there: tuple[Layer, ...] = layers.LAYERS) -> int:
    monkeypatch.setattr(run_tests, "LAYERS", there)
    monkeypatch.setattr(run_tests, "names", lambda: tuple(layer.name for layer in there))
    monkeypatch.setattr(sys, "argv", ["run_tests.py", *words])
    return run_tests.main()


@pytest.mark.parametrize(
    ("words", "level", "error"),
    [
        ([], "some", "PSTRAINING_TESTS must be one of quick, all, soak, not 'some'"),
        (["units"], "all", "no layer units; there are lint, drift, unit"),
        (["unit", "--changed"], "all", "--changed chooses the layers itself"),
        (["--changed", "--base", "no-such-revision"], "all", "no-such-revision"),
    ],
)
def test_unknown_arguments_are_rejected(
    words: list[str],
    level: str,
    error: str,
    surroundings: Surroundings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PSTRAINING_TESTS", level)
    with pytest.raises(SystemExit, match="2"):
        command_line(monkeypatch, *words)
    assert error in capsys.readouterr().err
    assert not surroundings.closed


def test_only_the_named_layers_run_and_leave_nothing_behind(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PSTRAINING_TESTS", "all")
    there = tuple(Layer(name, checks=(GOOD,), budget_s=Budget(8.0, 9.0)) for name in "abc")
    assert command_line(monkeypatch, "c", "a", there=there) == 0
    assert surroundings.closed
    assert capsys.readouterr().out.endswith("\n2 passed, 0 failed\n")
    written = json.loads((tmp_path / "summary.json").read_text())
    assert [(layer["layer"], layer["budget_s"]) for layer in written["layers"]] == [("a", 9.0), ("c", 9.0)]


def test_an_interrupted_run_cleans_up(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = "import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)"
    assert command_line(monkeypatch, there=(Layer("a", checks=((sys.executable, "-c", code),)),)) == 1
    assert surroundings.closed
    assert json.loads((tmp_path / "summary.json").read_text())["why_not"] == "interrupted"


def test_every_folder_of_tests_belongs_to_one_layer() -> None:
    folders = {p.relative_to(ROOT).as_posix() for p in (ROOT / "tests").iterdir() if p.is_dir()}
    with_tests = {f for f in folders if any((ROOT / f).rglob("test_*.py"))}
    listed = [folder for layer in layers.LAYERS for folder in layer.folders]
    assert len(listed) == len(set(listed))
    # The campaign takes too long for every run: `make campaign` runs it, and the controlplane layer runs a part of it.
    assert with_tests - {"tests/campaign"} <= set(listed)


def test_the_makefile_has_a_target_for_every_layer() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for layer in layers.LAYERS:
        assert f"\ntest-{layer.name}: install ## " in makefile
    for level in ("test", "test-all", "test-changed"):
        assert f"\n{level}: install ## " in makefile


def test_ci_runs_the_command_of_the_readme() -> None:
    assert (ROOT / ".ci" / "run").read_text("utf-8").splitlines()[-1] == "exec make test"
    assert "\n    make test " in (ROOT / "README.md").read_text("utf-8")


def test_the_page_on_tests_has_the_budgets() -> None:
    page = (ROOT / "docs" / "project" / "run-the-tests.md").read_text("utf-8")
    for layer in layers.LAYERS:
        quick, all_ = (f"{layer.budget_s.at(level):g} s" for level in (Level.QUICK, Level.ALL))
        budget = quick if quick == all_ else f"{quick}; {all_}"
        assert re.search(rf"^\| `make test-{layer.name}` \|.*\| {budget} \|$", page, re.MULTILINE), (layer.name, budget)


def test_processes_of_a_layer_share_compiled_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    surroundings = run_tests.Surroundings(Progress(), images=False)
    assert "PYTHONDONTWRITEBYTECODE" not in surroundings.environment(Layer("a"))


@pytest.mark.parametrize(("user", "there", "installed"), [(0, False, 1), (0, True, 0), (1000, False, 0)])
def test_a_layers_packages_are_installed_first(
    monkeypatch: pytest.MonkeyPatch, user: int, there: bool, installed: int
) -> None:
    calls: list[object] = []
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr("shutil.which", lambda program: "/sbin/iptables" if there else None)
    monkeypatch.setattr(run_tests, "ensure_packages", lambda *_: calls.append(1))
    surroundings = run_tests.Surroundings(Progress(), images=False)
    surroundings.environment(Layer("a", programs=("iptables",)))
    surroundings.environment(Layer("b"))
    assert len(calls) == installed


@pytest.mark.parametrize(("user", "level", "installed"), [(0, Level.ALL, 1), (0, Level.QUICK, 0), (1000, Level.ALL, 0)])
def test_a_browser_is_installed_for_the_tests_that_need_one(
    monkeypatch: pytest.MonkeyPatch, user: int, level: Level, installed: int
) -> None:
    calls: list[object] = []
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr(run_tests, "ensure_browser", lambda *_: calls.append(1))
    surroundings = run_tests.Surroundings(Progress(), images=False, level=level)
    surroundings.environment(Layer("a", browser=True))
    surroundings.environment(Layer("b"))
    assert len(calls) == installed
    assert {layer.name for layer in layers.LAYERS if layer.browser} == {"unit"}


def test_the_missing_program_for_network_faults_is_named() -> None:
    (training,) = (layer for layer in layers.LAYERS if layer.name == "training")
    assert set(training.programs) == {"ip", "iptables"}
