"""The example for GPUs, on this machine's CPU: the program is the same there."""

from pathlib import Path

import pytest

from pstraining.runtime.local import LocalJob
from tests.training.test_runtime_faults import finished, transcript

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]


def test_it_trains_without_a_gpu_too(tmp_path: Path) -> None:
    with LocalJob(["-m", "examples.gpu"], training={"epochs": 3}, checkpoint={"path": str(tmp_path)}) as run:
        assert finished(run) == 0, transcript(run)
        (result,) = run.processes["chief"].events("result")
    assert result["step"] == 3 * 45  # batches of 32 of 1,437 images, in one worker
    assert result["test_accuracy"] >= 0.6
    assert (tmp_path / "final.keras").is_file()
