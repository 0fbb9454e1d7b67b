"""The tutorial's programs run as the page shows them, and print what the page shows, but for numbers."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.docs.pages import ROOT, pages
from pstraining.runtime.local import LocalJob
from tests.support.documented import documents, job_of, shell_lines
from tests.training.test_runtime_faults import finished, transcript

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]
TUTORIAL = ROOT / "docs" / "how-to" / "train-a-keras-model.md"
LOCAL = "python -m pstraining.runtime.local "


def blocks(language: str) -> list[str]:
    return [block.text for block in pages()[TUTORIAL].blocks if block.language == language]


def python(code: str, folder: Path) -> str:
    (folder / "shown.py").write_text(code)
    command, environment = [sys.executable, "shown.py"], {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=120
    ).stdout


def shape(text: str) -> str:
    """A text without its numbers, which differ from run to run."""
    return re.sub(r"\d+(\.\d+)?", "0", text).strip()


def shown_events() -> Iterator[tuple[str, dict[str, Any]]]:
    for process, event in re.findall(r"^\[(.+)\] (\{.*\})$", "".join(blocks("text")), re.MULTILINE):
        yield process, json.loads(event)


def test_the_tutorial(tmp_path: Path) -> None:
    plain, train, load = blocks("python")
    text = {shape(line) for line in python(plain, tmp_path).splitlines()}
    (shown,) = (block for block in blocks("text") if block.startswith("Epoch"))
    assert {shape(line) for line in shown.splitlines()} <= text

    (typed,) = (line.strip() for _, line in shell_lines(pages()[TUTORIAL]) if line.strip().startswith(LOCAL))
    *options, program = shlex.split(typed.removeprefix(LOCAL))
    given = dict(zip(options[::2], options[1::2], strict=True))
    (tmp_path / program).write_text(train)
    settings, folder = json.loads(given["--training"]), tmp_path / given["--checkpoint-dir"]
    ps, workers, checkpoint = int(given["--ps"]), int(given["--workers"]), {"path": str(folder)}
    command = [str(tmp_path / program)]
    with LocalJob(command, ps=ps, workers=workers, training=settings, checkpoint=checkpoint) as run:
        assert finished(run) == 0, transcript(run)
        for process, event in shown_events():
            (found, *_) = run.processes[process].events(event["event"])
            assert found.keys() - {"time", "monotonic"} == event.keys()
        steps = {event["step"] for _, event in shown_events() if event["event"] == "result"}
        assert steps == {run.processes["chief"].events("result")[0]["step"]}
    assert shape((folder / "log.csv").read_text()) == shape(next(b for b in blocks("text") if b.startswith("epoch,")))
    assert shape(python(load, folder)).count("0") == 20

    page = str(TUTORIAL.relative_to(ROOT))
    (job,) = filter(None, (job_of(document) for place, _, document in documents() if place.startswith(page)))
    assert job["spec"]["training"] == settings
    assert (job["spec"]["ps"]["replicas"], job["spec"]["worker"]["replicas"]) == (ps, workers)
