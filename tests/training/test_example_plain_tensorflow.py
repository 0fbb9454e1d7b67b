"""A job with TensorFlow's own strategy, without the runtime, trains and resumes after the loss of a server."""

import signal
from pathlib import Path

import pytest

from pstraining.runtime.local import LocalJob
from tests.support.soak_marks import in_all, in_soak
from tests.training.test_runtime_faults import finished, transcript, until

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]


def test_the_example_uses_only_the_progress_report() -> None:
    source = Path(__file__).parents[2] / "examples" / "plain_tensorflow" / "__main__.py"
    imports = [line.split()[1] for line in source.read_text().splitlines() if line.startswith(("import ", "from "))]
    assert imports
    assert not [module for module in imports if module.startswith("pstraining.")]
    assert "from pstraining import progress\n" in source.read_text()


@in_soak
def test_a_lost_server_ends_the_chief_and_its_next_run_resumes(tmp_path: Path) -> None:
    program = ["-m", "examples.plain_tensorflow", "--steps", "800", "--checkpoint-seconds", "1"]
    with LocalJob(program, ps=1, workers=2, restarts=3, checkpoint={"path": str(tmp_path)}) as job:
        chief = job.leader
        until(job, lambda: bool(chief.events("checkpoint")), "its first checkpoint")
        job.kill("ps-0")
        assert finished(job, 300) == 0, transcript(job)
        # The chief runs three times if its second run finds a worker that has not noticed the loss yet.
        reported = f"TensorFlow's coordinator does not survive the loss of a parameter server\n{transcript(job)}"
        assert chief.starts in (2, 3), reported
        assert chief.events("restored")[0]["step"] >= chief.events("checkpoint")[0]["step"] > 0
        result = chief.events("result")[0]
        assert result["step"] >= 800
        assert result["test_accuracy"] >= 0.9


@in_all("tests/e2e/test_training.py::test_plain_tensorflow_survives_a_lost_ps")  # covers the example, not the project
def test_a_stopped_chief_saves_a_last_checkpoint(tmp_path: Path) -> None:
    program = ["-m", "examples.plain_tensorflow", "--steps", "100000", "--checkpoint-seconds", "3600"]
    with LocalJob(program, ps=1, workers=1, checkpoint={"path": str(tmp_path)}) as job:
        chief = job.leader
        until(job, lambda: chief.events("progress"), "its first steps", 120)
        chief.popen.send_signal(signal.SIGTERM)
        assert chief.popen.wait(60) == 143
        (saved,) = chief.events("checkpoint")
        assert saved["step"] == chief.events("progress")[-1]["step"] > 0
