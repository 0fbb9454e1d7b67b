"""The example for GPUs runs on this machine's CPU, where its program is the same."""

from pathlib import Path

import pytest

from pstraining.runtime.local import LocalJob
from tests.support.soak_marks import THOROUGH
from tests.training.test_runtime_faults import finished, transcript

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]


def test_the_gpu_example_trains_without_a_gpu(tmp_path: Path) -> None:
    epochs = 3 if THOROUGH else 1
    training, checkpoint = {"epochs": epochs}, {"path": str(tmp_path)}
    with LocalJob(["-m", "examples.gpu"], chief=THOROUGH, training=training, checkpoint=checkpoint) as run:
        assert finished(run) == 0, transcript(run)
        (result,) = run.leader.events("result")
    assert result["step"] == epochs * 45  # batches of 32 of 1,437 images, in one worker
    assert result["test_accuracy"] >= (0.6 if THOROUGH else 0.15), "more than by chance"
    assert (tmp_path / "final.keras").is_file()
