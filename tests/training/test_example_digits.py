"""The digits example, end to end with processes on this machine."""

import json
from pathlib import Path

import pytest

from pstraining.runtime.local import LocalJob

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]


def test_digits_reaches_its_accuracy_and_a_second_run_finds_it_done(tmp_path: Path) -> None:
    checkpoint = {"path": str(tmp_path), "keep": 2, "intervalSeconds": 5}
    with LocalJob(
        ["-m", "examples.digits"], workers=2, training={"mode": "Async", "steps": 2000}, checkpoint=checkpoint
    ) as job:
        assert job.wait() == 0, "\n".join(job.leader.lines[-30:])
        result = job.leader.events("result")[0]
        assert result["test_accuracy"] >= 0.95
        assert result["step"] >= 2000
        for worker in ("worker-0", "worker-1"):
            assert job.processes[worker].popen.wait(timeout=30) == 0
            assert job.processes[worker].events("worker_done")[0]["steps"] > 0
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["test_accuracy"] == result["test_accuracy"]
    assert (tmp_path / "final.weights.h5").is_file()

    with LocalJob(["-m", "examples.digits"], training={"steps": 2000}, checkpoint=checkpoint) as again:
        assert again.wait() == 0, "\n".join(again.leader.lines[-30:])
        assert again.leader.events("result")[0]["test_accuracy"] == result["test_accuracy"]
        assert again.leader.events("restored")[0]["step"] == result["step"]
        assert again.processes["worker-0"].popen.wait(timeout=30) == 0
        assert not again.processes["worker-0"].events("worker"), "a finished job does not train"
