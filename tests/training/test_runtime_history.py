"""A job's history, which the chief requests from an endpoint, after its success and after its final failure."""

import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pstraining.api.summary import SUMMARY_FILE, Summary
from tests.support.builders import job as builder
from tests.support.builders import pod
from tests.support.progress_endpoint import Endpoint, serving
from tests.support.soak_marks import in_all
from tests.training.test_runtime_faults import finished, job, steps_of, transcript, until

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]
PASSWORD = "correct horse"
FAILED = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "active for 60 s"}


@contextmanager
def endpoint(folder: Path, **status: Any) -> Iterator[Endpoint]:
    """Serve an operator's endpoint, which knows a job and its pods, in a thread."""
    loop, served = asyncio.new_event_loop(), serving(folder)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    found = asyncio.run_coroutine_threadsafe(served.__aenter__(), loop).result(30)
    container = {"name": "tensorflow", "image": "img", "env": [{"name": "DB_PASSWORD", "value": PASSWORD}]}
    known = builder(spec={"worker": {"replicas": 1, "template": {"spec": {"containers": [container]}}}})
    found.cache.observed({**known, "status": status, "metadata": {**known["metadata"], "resourceVersion": "999"}})
    found.cache.observed({**pod("worker", 0), "kind": "Pod"})
    found.logs["digits-worker-0", False] = f"joined with {PASSWORD}\n".encode()
    try:
        yield found
    finally:
        asyncio.run_coroutine_threadsafe(served.__aexit__(None, None, None), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)


def summary(folder: Path) -> Summary:
    return Summary.model_validate_json((folder / SUMMARY_FILE).read_text())


def test_a_job_leaves_its_history_beside_its_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with endpoint(tmp_path) as operator, job(folder, steps=60, environment=operator.environ) as run:
        assert finished(run) == 0, transcript(run)
    kept = summary(folder)
    assert kept.outcome == "Succeeded"
    assert kept.result == json.loads((folder / "result.json").read_text())
    assert kept.training is not None
    assert kept.training["progressPercentage"] == 100
    assert kept.settings["training"]["steps"] == 60
    assert kept.job is not None
    assert kept.job["metadata"]["name"] == "digits"
    logs = {log.task: log for log in kept.logs}
    assert (folder / logs["worker-0"].file).read_text() == "joined with <left out: secret-like>\n"
    assert "not found" in logs["chief-0"].missing
    assert PASSWORD not in (folder / SUMMARY_FILE).read_text()


@in_all("tests/unit/runtime/test_history.py::test_a_chief_that_is_stopped_writes_the_end_of_a_failed_job_alone")
def test_a_job_that_failed_for_good_leaves_its_history_when_its_chief_is_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with endpoint(tmp_path, conditions=[FAILED]) as operator, job(folder, environment=operator.environ) as run:
        chief = run.processes["chief"]
        until(run, lambda: steps_of(run, "worker-0") > 5 and chief.events("history"), "steps")
        assert summary(folder).outcome == "Unfinished"
        chief.popen.send_signal(signal.SIGTERM)
        assert chief.popen.wait(60) == 143, transcript(run)
    kept = summary(folder)
    assert (kept.outcome, kept.message) == ("Failed", "DeadlineExceeded: active for 60 s")
    assert [log.task for log in kept.logs if log.file] == ["worker-0"]
