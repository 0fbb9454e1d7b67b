"""A TensorFlow 1 program in a job without a chief: all workers end with exit code 0 at the requested step."""

from pathlib import Path

import pytest

from pstraining.runtime.local import LocalJob
from tests.support.soak_marks import in_soak

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]


@in_soak
def test_all_workers_end_at_the_global_step(tmp_path: Path) -> None:
    program = ["-m", "examples.between_graph", "--steps", "1500", "--checkpoint-seconds", "2"]
    with LocalJob(program, ps=1, workers=2, chief=False, checkpoint={"path": str(tmp_path)}) as job:
        assert job.wait() == 0, "\n".join(job.leader.lines[-30:])
        other = job.processes["worker-1"]
        assert other.popen.wait(timeout=60) == 0, "\n".join(other.lines[-30:])
        result = job.leader.events("result")[0]
        assert result["step"] >= 1500
        assert result["test_accuracy"] >= 0.9
        assert (tmp_path / "checkpoint").is_file()
        done = [process.events("worker_done")[0]["steps"] for process in (job.leader, other)]
        assert sum(done) >= 1500
        assert min(done) > 0
