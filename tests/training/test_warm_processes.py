"""A program that is forked from a warm parent behaves as a started one, on which the other tests here rely."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pstraining.runtime import local
from pstraining.runtime.config.cluster import Task
from pstraining.runtime.config.server import launcher_file
from tests.support import costs, warm, warm_parent
from tests.support.kube import Target
from tests.support.netns import own_network
from tests.support.operator_process import OperatorProcess
from tests.support.soak_marks import in_all

pytestmark = [pytest.mark.training, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]
WORKER = Task("worker", 0)
COLD = local.spawn
LOOK = """
import json, os, signal, sys, threading
signals = {name: str(signal.getsignal(getattr(signal, name))) for name in ("SIGINT", "SIGTERM", "SIGCHLD")}
files = sorted(os.listdir("/proc/self/fd"))
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "name": __name__, "folder": os.getcwd(), "path": sys.path[0],
    "main": sys.modules["__main__"].__name__, "threads": threading.active_count(), "files": len(files),
    "environment": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(("LOOK", "PYTHONPATH"))},
    "ours": sorted(name for name in sys.modules if name.startswith("pstraining")),
    "signals": {name: text.split(" at 0x")[0] for name, text in signals.items()},
}))
"""
FAILS = "import sys; print('about to'); sys.exit(3)"
RAISES = "raise ValueError('its own words')"
LEAVES = "import atexit, threading; atexit.register(print, 'last'); threading.Timer(0.2, print, ['thread']).start()"
DRAWS = "import random, numpy; print(random.random(), numpy.random.random())"
COMPUTES = "import time\nwhile time.process_time() < 1.2: pass"
# One long sleep would not notice a signal that arrives just before it.
WAITS = "import time; print('waits')\nfor _ in range(1200): time.sleep(0.05)"


@pytest.fixture(scope="module")
def parents() -> Any:
    with ExitStack() as held:
        yield warm.Parents(held, COLD)


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    path = [str(ROOT / "operator"), str(ROOT)]
    return {**kept, "PYTHONPATH": os.pathsep.join(path), **more}


def ran(spawn: Any, command: list[str], **more: str) -> tuple[int, list[str]]:
    """Return a program's exit code and its lines."""
    process = spawn(WORKER, (), command, environment(**more))
    lines = [line.rstrip("\n") for line in process.stdout]
    return process.wait(60), lines


@pytest.mark.parametrize("way", ["-c", "-m", "file"])
def test_a_warm_process_has_a_new_processs_environment(
    parents: warm.Parents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    (tmp_path / "looks.py").write_text(LOOK)
    monkeypatch.chdir(tmp_path)
    command = {"-c": ["-c", LOOK], "-m": ["-m", "looks"], "file": [str(tmp_path / "looks.py")]}[way]
    forked, started = (ran(spawn, [*command, "one", "two"], LOOK_AT="this") for spawn in (parents.spawn, COLD))
    assert forked[0] == started[0] == 0, (forked, started)
    assert json.loads(forked[1][-1]) == json.loads(started[1][-1])


@pytest.mark.parametrize("program", [FAILS, RAISES, LEAVES])
def test_a_warm_process_ends_like_a_new_process(parents: warm.Parents, program: str) -> None:
    forked, started = (ran(spawn, ["-c", program]) for spawn in (parents.spawn, COLD))
    assert forked[0] == started[0]
    assert forked[1][-1:] == started[1][-1:]


def test_a_forked_operator_behaves_like_a_started_one(tmp_path: Path) -> None:
    """A forked operator reads its settings like a started one, and ends because of an invalid one."""
    wrong = {"PSTRAINING_WORKERS": "many", "PSTRAINING_LEASE_DURATION_SECONDS": "6"}
    reported = []
    for name in ("forked", "started"):
        (tmp_path / name).mkdir()
        operator = OperatorProcess(Target("none", "none"), "default", tmp_path / name)
        operator.start(wait=False, settings=wrong, warm=name == "forked")
        assert operator.process is not None
        reported.append((type(operator.process), operator.process.wait(60), operator.log.read_text()))
    assert [kind for kind, _, _ in reported] == [warm.WarmProcess, subprocess.Popen]
    assert reported[0][1] == reported[1][1] == 2
    assert reported[0][2] == reported[1][2]
    assert "PSTRAINING_WORKERS" in reported[0][2]


def test_a_programs_resource_usage_counts_once() -> None:
    parent = warm.Parent("operator", PYTHONPATH=str(ROOT / "operator"))
    assert parent.spawn(["-c", COMPUTES], environment()).wait(60) == 0
    ticks = Path(f"/proc/{parent.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    own, before = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), costs.processor_seconds()
    parent.close()
    assert costs.processor_seconds() - before == pytest.approx(own, abs=0.4)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_warm_process_receives_signals(parents: warm.Parents, number: signal.Signals) -> None:
    codes = []
    for spawn in (parents.spawn, COLD):
        process = spawn(WORKER, (), ["-c", WAITS], environment())
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(number)
        codes.append(process.wait(60))
    assert codes[0] == codes[1] == -number


def test_a_warm_process_is_in_its_starting_threads_network(parents: warm.Parents) -> None:
    def look() -> str:
        code = "import os, sys; print('tensorflow' in sys.modules, os.stat('/proc/self/ns/net').st_ino)"
        known, number = ran(parents.spawn, ["-c", code])[1][-1].split()
        assert known == "True", "it is a fork in any network"
        return number

    numbers = [look()]
    with own_network():
        numbers.append(look())
        assert numbers[1] == str(warm.network())
    assert look() == numbers[0] == str(warm.network()) != numbers[1]


def test_a_parameter_servers_program_is_forked_and_tensorflows_server_is_not(parents: warm.Parents) -> None:
    """A parameter server's program is forked and TensorFlow's server is not. The program may import TensorFlow before
    it becomes the server, which imports none of its Python.
    """
    look = ["-c", "import sys; print('tensorflow' in sys.modules)"]
    program = parents.spawn(Task("ps", 0), (), look, environment())
    server = parents.spawn(Task("ps", 0), (), [str(launcher_file()), "serve"], environment())
    assert program.stdout.read().split()[-1] == "True"
    assert [type(process) for process in (program, server)] == [warm.WarmProcess, subprocess.Popen]
    assert (program.wait(60), server.wait(60) != 0) == (0, True), "the server has no cluster to serve"


def test_no_two_processes_draw_the_same_random_numbers(parents: warm.Parents) -> None:
    drawn = [ran(parents.spawn, ["-c", DRAWS])[1][-1].split() for _ in range(2)]
    assert not set(drawn[0]) & set(drawn[1])


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "2 threads"),
        pytest.param(
            "import tensorflow as tf; tf.constant(1)",
            "context",
            marks=in_all(
                "tests/training/test_warm_processes.py::test_no_process_is_forked_from_an_unsafe_parent"
            ),  # imports TensorFlow
        ),
    ],
)
def test_no_process_is_forked_from_an_unsafe_parent(before: str, why: str) -> None:
    code = f"{before}\nfrom tests.support import warm_parent\nwarm_parent.check()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(OPENBLAS_NUM_THREADS="1", TF_CPP_MIN_LOG_LEVEL="3"),
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "RuntimeError" in done.stderr
    assert why in done.stderr
    assert Path(warm_parent.__file__).name in done.stderr
