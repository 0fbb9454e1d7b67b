"""The terminal's content while layers run, and the part of a log that is shown when one fails."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from hack import pytest_progress, quiet
from hack.pytest_progress import Count
from pstraining import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_progress_is_an_occasional_line() -> None:
    now = [0.0]
    out = io.StringIO()
    line = quiet.Line(out, lambda: now[0])
    line.start()
    for now[0] in (1.0, 29.0, 31.0, 40.0, 62.0):
        line.show(f"at {now[0]:.0f}")
    assert out.getvalue().split("\n") == ["at 31", "at 62", ""]


def test_on_a_terminal_one_line_is_redrawn_and_cleared() -> None:
    out = Terminal()
    line = quiet.Line(out)
    line.show("at 1")
    line.show("at 2")
    line.say("it failed")
    line.say("and more")
    assert out.getvalue() == "\r\x1b[Kat 1\r\x1b[Kat 2\r\x1b[Kit failed\nand more\n"


@pytest.mark.parametrize(
    ("what", "count", "text"),
    [
        ("", Count(12, 33, 0), "a  12/33 tests  7 s"),
        ("alone", Count(12, 33, 1), "a  alone  12/33 tests, 1 failed  7 s"),
        ("ruff", Count(), "a  ruff  7 s"),
    ],
)
def test_the_line_shows_the_progress_of_a_layer(what: str, count: Count, text: str) -> None:
    assert quiet.progress("a", what, count, 7.2).split() == text.split()


@pytest.mark.parametrize("headline", ["=== FAILURES ===", "=== ERRORS ==="])
def test_the_failures_of_a_log_are_shown(headline: str) -> None:
    output = f"noise\n= FAILURES in prose\n{headline}\nwhy\n=== 1 failed ===\n"
    assert quiet.failures(output) == [headline, "why", "=== 1 failed ==="]


def test_the_first_of_many_failures_and_the_final_list_are_shown() -> None:
    output = "\n".join(["=== FAILURES ===", *(f"line {number}" for number in range(1000)), "the end"])
    shown = quiet.failures(output)
    assert len(shown) == quiet.LONGEST_FAILURES
    assert (shown[0], shown[-1]) == ("=== FAILURES ===", "the end")
    (gap,) = [line for line in shown if line.endswith("are in the log only")]
    assert gap == f"... {1002 - (len(shown) - 1)} lines are in the log only"


def test_the_last_lines_of_an_aborted_run_are_shown() -> None:
    output = "".join(f"line {number}\n" for number in range(1000))
    assert quiet.failures(output) == [f"line {number}" for number in range(900, 1000)]


@pytest.mark.parametrize("headline", ["Fatal Python error: Segmentation fault", "[gw0] PASSED Timeout (0:04:00)!"])
def test_the_stacks_of_a_crashed_process_precede_its_failure(headline: str) -> None:
    output = f"noise\n{headline}\nthe stack\n=== FAILURES ===\nworker 'gw1' crashed\n"
    assert quiet.failures(output) == [headline, "the stack", "=== FAILURES ===", "worker 'gw1' crashed"]
    endless = f"{headline}\n" + "more\n" * 1000 + "=== FAILURES ===\nworker 'gw1' crashed"
    assert len(quiet.failures(endless)) == quiet.LONGEST_TAIL + 2


def test_a_log_is_read_from_where_a_command_begins(tmp_path: Path) -> None:
    log = quiet.Log(tmp_path / "reports" / "a.log")
    log.begin(("first", "x"))
    with log.path.open("a") as file:
        file.write("its output\n")
    start = log.begin(("second",))
    with log.path.open("ab") as file:
        file.write(b"caf\xe9\n")
    assert log.since(start) == "caf\ufffd\n"
    assert log.path.read_bytes().startswith(b"$ first x\nits output\n$ second\n")
    quiet.Log(log.path)
    assert log.path.read_bytes() == b""


@pytest.fixture
def report() -> Callable[[str, str, str], pytest.TestReport]:
    def made(name: str, when: str, outcome: str) -> pytest.TestReport:
        return pytest.TestReport(name, (name, 1, name), {}, outcome, None, when)  # type: ignore[arg-type]

    return made


def test_tests_are_counted_once_by_their_worst_outcome(
    tmp_path: Path, report: Callable[[str, str, str], pytest.TestReport]
) -> None:
    path = tmp_path / "progress"
    assert pytest_progress.read(path) == Count()
    writer = pytest_progress.Writer(path)
    assert pytest_progress.read(path) == Count()
    writer.pytest_xdist_node_collection_finished(["a", "b", "c", "d"])
    writer.pytest_xdist_node_collection_finished(["a", "b", "c", "d"])
    assert pytest_progress.read(path) == Count(0, 4, 0)
    for name, when, outcome in [
        ("a", "setup", "passed"),
        ("b", "setup", "skipped"),
        ("a", "call", "failed"),
        ("b", "teardown", "passed"),
        ("a", "teardown", "passed"),
        ("c", "setup", "passed"),
        ("c", "call", "passed"),
        ("c", "teardown", "failed"),
        ("d", "???", "failed"),
    ]:
        writer.pytest_runtest_logreport(report(name, when, outcome))
    assert path.read_text() == "4\nsFFF"
    assert pytest_progress.read(path) == Count(4, 4, 3)


def test_a_training_program_in_a_test_does_not_write_to_the_file_of_the_count() -> None:
    assert pytest_progress.FILE != progress.ENV_FILE
