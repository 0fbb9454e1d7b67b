"""Pages show the output of `plan`. PSTRAINING_WRITE_PAGE=1 writes the output into the pages."""

import os
import re
from pathlib import Path

import pytest

from hack.docs.pages import ROOT, pages
from pstraining.cli.main import app
from tests.support.command_runner import CliRunner

SHOWN = re.compile(r"<!-- (plan [^\n]*) -->\n```text\n(.*?)```\n", re.DOTALL)
WRITES = bool(os.environ.get("PSTRAINING_WRITE_PAGE"))


@pytest.mark.parametrize(("page", "outputs"), [("users/plan-a-job.md", 2), ("start/train-a-keras-model.md", 1)])
def test_the_page_shows_the_printed_output(
    page: str, outputs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "docs" / page
    (block,) = (b.text for b in pages()[path].blocks if b.language == "yaml" and b.text.startswith("# "))
    name = block.splitlines()[0].removeprefix("# ")
    (tmp_path / name).write_text(block)
    monkeypatch.chdir(tmp_path)

    def printed(command: str) -> str:
        done = CliRunner().invoke(app, command.split())
        assert done.exit_code == 0, done.output
        lines = "".join(f"{line.rstrip()}\n" for line in done.output.splitlines())
        # otherwise outdated with every change of the launcher
        return re.sub(r"(?<=-launcher-)[0-9a-f]{10}", "0123456789", lines)

    text = path.read_text(encoding="utf-8")
    shown = SHOWN.findall(text)
    assert [command.split()[2] for command, _ in shown] == [name] * outputs
    if WRITES:
        path.write_text(SHOWN.sub(lambda m: f"<!-- {m[1]} -->\n```text\n{printed(m[1])}```\n", text), encoding="utf-8")
        return
    for command, output in shown:
        assert output == printed(command), f"{path.name} is old: PSTRAINING_WRITE_PAGE=1 pytest {__file__}"
