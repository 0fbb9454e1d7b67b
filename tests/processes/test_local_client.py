"""The client's jobs on this machine, with programs that need no TensorFlow."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pstraining import Client
from pstraining.client.errors import ClientError, JobFailedError
from pstraining.runtime import local
from tests.support.cli_runs import ROOT

SCRIPT = """
import json, os, signal, sys, time

task = json.loads(os.environ["TF_CONFIG"])["task"]
if task["type"] == "worker":
    print("no data")
    sys.exit(1)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("saves its state", flush=True)
time.sleep(600)
"""
"""Its worker fails. The other tasks end with an exit code of their own when they are stopped, as a chief does."""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    found = tmp_path / "script.py"
    found.write_text(SCRIPT, encoding="utf-8")
    return found


def test_an_error_has_the_log_of_the_task_that_failed(script: Path) -> None:
    client = Client(local=True)
    client.train(script, name="fails")
    with pytest.raises(JobFailedError, match="fails has failed with exit code 1") as raised:
        client.wait("fails", 60)
    assert raised.value.log.splitlines() == ["worker-0: no data"] * 4


def test_a_job_that_does_not_start_has_no_name(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn(*_: object) -> None:
        raise BlockingIOError("no more processes")

    client = Client(local=True)
    with monkeypatch.context() as patch:
        patch.setattr(local, "spawn", spawn)
        with pytest.raises(ClientError, match="The local job digits cannot start: no more processes"):
            client.train(script, name="digits")
    assert client.list() == []
    client.delete(client.train(script, name="digits"))


@pytest.mark.parametrize("number", [{"ps": 0}, {"workers": 0}, {"workers": -1}])
def test_a_job_has_a_server_and_a_worker(script: Path, number: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match="a job has at least one parameter server and one worker"):
        Client(local=True).train(script, **number)


def test_variables_are_texts_as_on_a_cluster(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os\nprint('seed', os.environ['SEED'])\n", encoding="utf-8")
    client = Client(local=True)
    job = client.wait(client.train(script, name="seeded", env={"SEED": 7}), 60)
    assert [str(line) for line in client.logs(job, role="chief")] == ["chief-0: seed 7"]


def test_programs_know_the_name_of_their_job_as_on_a_cluster(tmp_path: Path) -> None:
    """The history and the runs of MLflow have it, so that those of several local jobs can be told apart."""
    script = tmp_path / "script.py"
    script.write_text("import os\nprint(os.environ['PSTRAINING_JOB'])\n", encoding="utf-8")
    client = Client(local=True)
    job = client.wait(client.train(script, name="trial-7"), 60)
    assert [line.text for line in client.logs(job, role="chief")] == ["trial-7"]


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"role": "workers"}, "role: 'workers' is not one of chief, worker, ps"),
        ({"role": "worker", "index": 1}, "digits has no worker with index 1: it has 1"),
        ({"index": 0}, "index requires role"),
    ],
)
def test_tasks_that_the_job_lacks(script: Path, choice: dict[str, Any], said: str) -> None:
    client = Client(local=True)
    job = client.train(script, name="digits")
    try:
        with pytest.raises(ClientError, match=said):
            client.logs(job, **choice)
    finally:
        client.delete(job)


LEAVES = """
import os, sys
from pstraining import Client

client = Client(local=True)
job = client.train(sys.argv[1], workers=2)
pids = [next(line for line in client.logs(job, role=role, index=index)).text for role, index in
        (("ps", 0), ("chief", 0), ("worker", 0), ("worker", 1))]
print(*pids, flush=True)
{end}
"""
"""Trains, prints the processes' ids, and ends without `wait`."""


@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise ValueError", 1)])
def test_a_job_ends_with_the_program_that_started_it(tmp_path: Path, end: str, code: int) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, time\nprint(os.getpid())\ntime.sleep(600)\n", encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-c", LEAVES.format(end=end), str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "operator")},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == code, ran.stderr
    pids = [int(pid) for pid in ran.stdout.split()]
    left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    for pid in left:
        os.kill(pid, 9)
    assert (len(pids), left) == (4, [])


WAITS = """
import os, sys, time

with open("starts", "a") as file:
    file.write(os.environ["PSTRAINING_TASK_TYPE"] + "\\n")
while not os.path.exists("go"):
    time.sleep(0.02)
"""
INTERRUPTED = """
import os, pathlib, signal, sys, time
from pstraining import Client

client = Client(local=True)
job = client.train(sys.argv[1])
starts = pathlib.Path("starts")
while not starts.exists() or len(starts.read_text().split()) < 3:
    time.sleep(0.02)
try:
    os.killpg(0, signal.SIGINT)
    client.wait(job, 60)
except KeyboardInterrupt:
    starts.with_name("go").touch()
print(client.wait(job, 60).phase, *sorted(set(starts.read_text().split())), starts.read_text().count("chief"))
"""
"""Interrupts its wait as a terminal and Jupyter do, by a signal to the whole process group, and waits again."""


def test_a_job_goes_on_when_the_wait_for_it_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WAITS, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "script.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "operator")},
        cwd=tmp_path,
        start_new_session=True,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ran.stdout, ran.returncode) == ("Succeeded chief ps worker 1\n", 0), ran.stderr
