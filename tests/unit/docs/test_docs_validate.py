"""The page on submitting jobs shows what `validate` prints."""

from pathlib import Path

import pytest

from hack.docs.pages import ROOT, pages
from pstraining.cli.main import app
from tests.support.command_runner import CliRunner

PAGE = ROOT / "docs" / "users" / "submit-and-change-a-job.md"


def test_the_page_shows_the_printed_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, *_ = (block.text for block in pages()[PAGE].blocks if block.language == "yaml")
    shown = next(block.text for block in pages()[PAGE].blocks if "$ kubectl pstraining validate" in block.text)
    command, _, output = shown.partition("\n")
    (tmp_path / "jobs.yaml").write_text(manifest)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, command.removeprefix("$ kubectl pstraining ").split())
    assert done.exit_code == 1
    assert done.output == output
