"""README's three commands run without a cluster, as README shows them, and print what it shows."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.docs.pages import ROOT, pages
from pstraining.runtime import local
from tests.support.documented import shell_lines
from tests.support.soak_marks import ALL, in_all

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]
PAGE = pages()[ROOT / "README.md"]
COMMANDS = tuple(
    line.strip() for _, line in shell_lines(PAGE) if re.match(r" *(python3? -m (venv|pstraining\S*)|pip) ", line)
)
SHOWN = next(block.text for block in PAGE.blocks if block.language == "text").splitlines()
STEPS = re.compile(r"\[chief\] step \d+/\d+  loss [\d.]+  [\d.]+ steps/s  \d+ samples/s  up .*  down .*  ETA \d+ s")
NOBODY = 65534


def events(lines: list[str]) -> dict[str, dict[str, Any]]:
    """Return the first event of each name, with the process that printed it."""
    found: dict[str, dict[str, Any]] = {}
    for process, text in re.findall(r"^\[(.+)\] (\{.*\})$", "\n".join(lines), re.MULTILINE):
        event = json.loads(text)
        found.setdefault(event["event"], {**event, "process": process})
    return found


def check_output(lines: list[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Demand that everything that README shows was printed, except for numbers, and that the model is where README
    says.
    """
    printed = events(lines)
    for name, event in events(SHOWN).items():
        assert printed[name].keys() - {"time", "monotonic"} == event.keys(), name
    assert all(STEPS.fullmatch(line) for line in SHOWN if "{" not in line)
    assert (folder / "final.keras").is_file()
    return printed


def test_the_third_command_prints_what_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The third command prints what README shows.

    It trains fewer steps, in the environment of the tests; `make test` calls the module's `main`, and forks the tasks.
    """
    _, _, command = (shlex.split(text) for text in COMMANDS)
    assert command[:3] == ["python", "-m", "pstraining.runtime.local"]
    given = [str(tmp_path / word[2:]) if word.startswith("~/") else word for word in command]
    arguments = ["--steps", "100", *given[3:]]
    if ALL:
        short = [sys.executable, *given[1:3], *arguments]
        done = subprocess.run(short, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr
        printed = done.stdout
    else:
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(signal, "signal", lambda *_: None)  # Ctrl-C is for pytest
        code = local.main(arguments)
        printed = capsys.readouterr().out
        assert code == 0, printed[-5000:]
    check_output(printed.splitlines(), tmp_path / "digits")


@pytest.fixture
def home() -> Iterator[Path]:
    """Return a home with a checkout, which belongs to an unprivileged user if the tests run as root."""
    folder = Path(tempfile.mkdtemp(prefix="newcomer-", dir="/tmp"))
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, files.split("\0")):
        target = folder / "checkout" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


@in_all(
    "tests/training/test_docs_readme.py::test_the_third_command_prints_what_the_readme_shows"
)  # installs TensorFlow
def test_a_newcomer_trains_a_model(home: Path) -> None:
    """All three commands run in sequence in one shell without root, and train a model."""
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], **pip}
    identity: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": ()} if os.geteuid() == 0 else {}
    begin = time.monotonic()
    done = subprocess.run(
        ["timeout", "450", "bash", "-ec", "\n".join(COMMANDS)],  # ends every process that the shell has started
        cwd=home / "checkout",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        **identity,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    printed = check_output(done.stdout.splitlines(), home / "digits")
    assert printed["result"]["test_accuracy"] >= 0.95
    print(f"from the checkout to a trained model: {time.monotonic() - begin:.0f} s")
