"""The width of output outside a terminal, and in a narrow one."""

import json
from typing import Any

import pytest
import yaml
from rich.text import Text

from pstraining.cli import output
from pstraining.cli.commands import logs, top
from pstraining.cli.errors import CommandError
from pstraining.cli.output import Output, PrintedKind, show
from pstraining.cli.status.picture import table
from tests.support.builders import NOW, stamp


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_colours_outside_a_terminal_do_not_wrap_lines(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    show(PrintedKind.STATUS, {}, Output.TEXT, lambda: Text(" ".join(["word"] * 60), "green"))
    (line,) = capsys.readouterr().out.splitlines()
    assert "\x1b[32m" in line
    show(PrintedKind.STATUS, {"a": 1}, Output.JSON, Text)
    assert json.loads(capsys.readouterr().out)["a"] == 1


NAME = "recommender-2026-11-30-lr-0-001-batch-64"
ROW: dict[str, Any] = {"namespace": "team", "name": NAME, "phase": "Suspended", "ps": "12/12", "workers": "100/100"}
ROW |= {"restarts": 3, "created": stamp(NOW), "why": f"Suspended: {'because ' * 30}"}
WORKER: dict[str, Any] = {"task": "worker-100", "problem": "", "devices": {"GPU": 8}, "dropped": 12, "straggler": True}
RATES = (
    "stepsPerSecond",
    "examplesPerSecond",
    "stepSeconds",
    "staleness",
    "sentBytesPerSecond",
    "receivedBytesPerSecond",
)


@pytest.mark.parametrize("width", [40, 80])
def test_a_narrow_terminal_cuts_no_names_and_numbers(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", f"{width}")
    show(PrintedKind.SUMMARY, {}, Output.TEXT, lambda: table([ROW], NOW, namespaces=True))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAMESPACE", "NAME", "STATE", "PS", "WORKERS", "RESTARTS", "AGE", "WHY"]
    assert lines[1].split()[:7] == ["team", NAME, "Suspended", "12/12", "100/100", "3", "0s"]
    assert lines[1].endswith("…"), "only the reason is cut"
    rates = WORKER | dict.fromkeys(RATES, 1234567.0)
    found: dict[str, Any] = {
        "name": "digits",
        "phase": "Running",
        "job": None,
        "examplesPerSecond": None,
        "tasks": [rates],
        "servers": [],
    }
    show(PrintedKind.RATES, {}, Output.TEXT, lambda: top.picture(found))
    *_, line = capsys.readouterr().out.splitlines()
    assert line.split() == [
        *("worker-100", "8", "GPUs", "1234567", "1234567", "1234567000", "ms", "1234567", "12"),
        *("1.23", "MB/s", "1.23", "MB/s", "straggler"),
    ]


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [({"TERM": "xterm"}, True), ({}, True), ({"TERM": "dumb"}, False), ({"TERM": "xterm", "NO_COLOR": "1"}, False)],
)
def test_logs_have_colours_where_the_terminal_has_them(
    variables: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    def write(*, coloured: bool) -> None:
        raise CommandError(f"coloured: {coloured}")

    monkeypatch.setattr(logs, "LogWriter", write)
    with pytest.raises(CommandError, match=f"coloured: {coloured}"):
        logs.logs("digits")


@pytest.mark.parametrize(
    "text",
    ["a b", "y", "1e3", "a\nb\n", " a\n\tb", "\tx", "\u2028", "\x07", "word " * 200, "\U0001f600", "\ud800"],
)
def test_libyaml_writes_the_same_text(text: str) -> None:
    found = {"a": text, "b": [{"c": [text]}, {}]}
    plain = yaml.dump(found, Dumper=output._Dumper, sort_keys=False, allow_unicode=True, width=output.WIDE)
    assert output.yaml_text(found) == plain
