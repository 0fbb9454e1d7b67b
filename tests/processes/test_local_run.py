"""`python -m pstraining.runtime.local`: its output and its arguments, with programs that need no TensorFlow."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from pstraining.runtime.config.cluster import Task
from pstraining.runtime.local import LocalProcess, main
from tests.processes.pods import is_alive

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


STOPS_SLOWLY = """
import os, signal, time

if "chief" in os.environ["PSTRAINING_TASK_TYPE"]:
    signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"saves\\n"))
    os.write(1, f"{os.getpid()}\\n".encode())
while True:
    time.sleep(0.05)
"""


def test_a_second_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(STOPS_SLOWLY, encoding="utf-8")
    command = [sys.executable, "-m", "pstraining.runtime.local", "--workers", "1", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        chief = int(process.stdout.readline().removeprefix("[chief] "))
        try:
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "[chief] saves\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            assert not is_alive(chief)
        finally:
            if is_alive(chief):
                os.kill(chief, signal.SIGKILL)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--training", "mode=Sync"], "argument --training: not JSON"),
        (["--training", "[]"], "argument --training: not a JSON object"),
        (["--no-chief", "--workers", "0"], "--workers must be at least 1"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--ps", "0"], "--ps must be at least 1"),
        (["--workers", "0"], "--workers must be at least 1"),
        (["--standbys", "-1"], "--standbys must be at least 0"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main([*arguments, "program.py"])
    assert raised.value.code == 2
    assert said in capsys.readouterr().err


def test_events_are_those_of_all_lines_so_far() -> None:
    popen = Mock(poll=lambda: None)
    process = LocalProcess(Task("worker", 0), popen, lines=['{"event": "a", "n": 1}', "{", '{"event": [1]}', "[]"])
    assert process.events("a") == [{"event": "a", "n": 1}]
    process.events("a").clear()
    process.lines += ['{"event": "b"}', '{"event": "a", "n": 2}']
    assert [event["n"] for event in process.events("a")] == [1, 2]
    assert process.events("b") == [{"event": "b"}]
    assert process.events("c") == []
