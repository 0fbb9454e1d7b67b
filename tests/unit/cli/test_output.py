"""The width of output outside a terminal."""

import json

import pytest
from rich.text import Text

from pstraining.cli.output import Output, PrintedKind, show


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
