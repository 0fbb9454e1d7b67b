"""`python -m pstraining.runtime.local`: its output and its arguments, with programs that need no TensorFlow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pstraining.runtime.local import main

PRINTS = """
import json, os, sys, time

sys.stdout.reconfigure(encoding="utf-8")
if json.loads(os.environ["TF_CONFIG"])["task"]["type"] != "chief":
    time.sleep(600)
for number in range({lines}):
    print("\\u2501", number)
"""


def started(folder: Path, lines: int, **environment: str) -> "subprocess.Popen[bytes]":
    script = folder / "script.py"
    script.write_text(PRINTS.format(lines=lines), encoding="utf-8")
    command = [sys.executable, "-m", "pstraining.runtime.local", "--workers", "1", str(script)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment})


def test_a_reader_that_ends_also_ends_the_job(tmp_path: Path) -> None:
    with started(tmp_path, lines=100_000) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"[chief] ")
        process.stdout.close()
        try:
            assert process.wait(60) == 141
        finally:
            process.terminate()
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_characters_that_the_locale_lacks_are_escaped(tmp_path: Path) -> None:
    with started(tmp_path, lines=1, PYTHONIOENCODING="ascii") as process:
        try:
            output, errors = process.communicate(timeout=60)
        finally:
            process.terminate()
    assert (output, errors, process.returncode) == (b"[chief] \\u2501 0\n", b"", 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--training", "mode=Sync"], "argument --training: not JSON"),
        (["--training", "[]"], "argument --training: not a JSON object"),
        (["--no-chief", "--workers", "0"], "--workers must be at least 1"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--ps", "0"], "--ps must be at least 1"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main([*arguments, "program.py"])
    assert raised.value.code == 2
    assert said in capsys.readouterr().err
