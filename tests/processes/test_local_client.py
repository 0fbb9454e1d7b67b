"""The client's jobs on this machine, with programs that need no TensorFlow."""

from pathlib import Path

import pytest

from pstraining import Client
from pstraining.client.errors import JobFailedError

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
