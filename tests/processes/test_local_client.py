"""The client's jobs on this machine, with programs that need no TensorFlow."""

from pathlib import Path
from typing import Any

import pytest

from pstraining import Client
from pstraining.client.errors import ClientError, JobFailedError

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


def test_a_job_that_does_not_start_has_no_name(script: Path) -> None:
    client = Client(local=True)
    with pytest.raises(TypeError, match="not JSON serializable"):
        client.train(script, name="digits", training={"steps": object()})
    assert client.list() == []
    client.delete(client.train(script, name="digits"))


def test_variables_are_texts_as_on_a_cluster(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os\nprint('seed', os.environ['SEED'])\n", encoding="utf-8")
    client = Client(local=True)
    job = client.wait(client.train(script, name="seeded", env={"SEED": 7}), 60)
    assert [str(line) for line in client.logs(job, role="chief")] == ["chief: seed 7"]


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
