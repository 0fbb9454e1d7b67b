"""Text from pods and other clients never reaches a terminal, a status or a log as a control sequence or a forged
line.
"""

import errno
import io
import logging
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstraining.api.text import printable, printable_but_coloured
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.jobs import one_line
from pstraining.cli.logs.log_lines import LogWriter
from pstraining.cli.main import main
from pstraining.cli.output import TerminalGuard, guard_terminals
from pstraining.controller.logs import TextFormatter
from pstraining.core.actions import Event, Verdict
from pstraining.core.policies.failure_counts import last_line
from pstraining.core.progress import TrainerStatus, read_report
from pstraining.kube.events import build_event
from tests.support.builders import NOW, job
from tests.support.simulation import World

EVIL = (
    "\x1b]0;owned\x07\x1b[2J\x1b]8;;https://evil.example/\x1b\\click\x1b]8;;\x1b\\ \x1b[8m hidden \u202egnp.exe \x9b31m"
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def is_clean(text: str) -> bool:
    return all(c.isprintable() for c in text)


# Hypothesis builds a table of all characters for st.text(), which takes two seconds of processor time.
@given(st.lists(st.one_of(st.integers(0, 0xFF), st.integers(0, sys.maxunicode)).map(chr)).map("".join))
def test_printable_text_has_no_control_characters_and_loses_nothing(text: str) -> None:
    shown = printable(text)
    assert is_clean(shown)
    assert not {"Cc", "Cf", "Zl", "Zp"} & {unicodedata.category(c) for c in shown}
    assert [c for c in text if c.isprintable()] == [c for c in text if printable(c) == c]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m and\tplain\n", "\x1b[31mred\x1b[0m and\tplain\n"),
        ("\x1b[0;8mhidden", r"\x1b[0;8mhidden"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("100 %\rforged", r"100 %\x0dforged"),
        ("from Windows\r\n", "from Windows\n"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("Größe 10 µm 日本", "Größe 10 µm 日本"),
    ],
)
def test_a_terminal_gets_colours_and_no_other_escape_codes(text: str, shown: str) -> None:
    assert printable_but_coloured(text) == shown


def test_status_and_events_are_clean() -> None:
    assert is_clean(last_line(f"Traceback\n{EVIL}"))
    assert "hidden" in last_line(EVIL), "a reader still sees the hidden text"
    assert is_clean(one_line(EVIL))
    world = World(job(), refuse=lambda action: EVIL if action.kind == "Deployment" else "", verdict=Verdict.REFUSED)
    world.reconcile()
    quoting = world.condition("Created")["message"]
    assert "hidden" in quoting
    assert is_clean(quoting), "a message of the cluster may have been written by any of its users"
    event = build_event(job(), Event("Warning", "X", EVIL), instance="op-0", now=NOW, suffix="a")
    assert is_clean(event["note"])


def test_a_programs_report_is_clean() -> None:
    """A program may send any text as its progress, which the operator copies to the status and to events."""
    metrics = [{"name": "\x1b[2Jaccuracy", "value": "1\n2"}]
    report = read_report({"trainerStatus": {"loss": "0.5\x1b[8m", "stalled": EVIL, "metrics": metrics}})
    assert isinstance(report, TrainerStatus)
    assert report.loss == r"0.5\x1b[8m"
    assert report.metrics[0].name == r"\x1b[2Jaccuracy"
    assert report.metrics[0].value == r"1\x0a2"
    assert is_clean(report.stalled)


def test_every_line_for_a_terminal_is_sanitized(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    guard_terminals()
    guard_terminals()
    LogWriter(coloured=False).line("chief", EVIL)
    LogWriter(coloured=False).remark(EVIL)
    for stream in (out, err):
        assert is_clean(stream.getvalue().replace("\n", ""))
        assert "hidden" in stream.getvalue()


def test_the_executable_sanitizes_terminal_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "argv", ["kubectl-pstraining", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert isinstance(sys.stdout, TerminalGuard)


class Bytes(io.BytesIO):
    """A file that is a terminal, or not."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(
    ("terminal", "expected"), [(False, "caf\u00e9 \u2588\n".encode()), (True, b"caf\xe9 \\u2588\n")]
)
def test_a_locale_without_a_character_does_not_end_a_command(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, expected: bytes
) -> None:
    out = Bytes(terminal=terminal)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="latin-1"))

    def shows(prog_name: str) -> None:
        LogWriter(coloured=False).line("", "caf\u00e9 \u2588")
        sys.stdout.flush()

    monkeypatch.setattr("pstraining.cli.main.program", lambda: shows)
    main()
    assert out.getvalue() == b": " + expected


def test_a_full_disk_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fills(prog_name: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pstraining.cli.main.program", lambda: fills)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with pytest.raises(SystemExit) as raised:
        main()
    assert raised.value.code == ExitCode.ERROR
    assert capsys.readouterr().err == "Error: The output cannot be written: No space left on device.\n"


def test_piped_output_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.StringIO()
    monkeypatch.setattr(sys, "stdout", piped)
    guard_terminals()
    assert sys.stdout is piped


def test_no_message_forges_a_line_of_the_operators_log() -> None:
    forged = "spec: Invalid value: \n2030-01-01 00:00:00,000 INFO    forged line\x1b[2J"
    record = logging.LogRecord("x", logging.INFO, "", 0, "Invalid: %s", (forged,), None)
    assert is_clean(TextFormatter().format(record))
    try:
        raise ValueError(forged)
    except ValueError:
        record.exc_info = sys.exc_info()
    lines = TextFormatter().format(record).splitlines()
    assert all(line.startswith("    ") for line in lines[1:])
    assert is_clean("".join(lines))
