"""Whole jobs of programs that an earlier version trained differently from `fit`, compared with `fit`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.api import contract
from pstraining.runtime.local import LocalJob
from tests.support.moved_programs import PROGRAMS
from tests.support.soak_marks import in_all
from tests.training.test_runtime_faults import finished, transcript

pytestmark = [pytest.mark.training, pytest.mark.timeout(400)]
MODULE = "tests.support.moved_programs"


def trained(name: str, folder: Path, **options: Any) -> list[Any]:
    """Return the weights that the program's job has written."""
    with LocalJob(["-m", MODULE, name], checkpoint={"path": str(folder)}, **options) as run:
        assert finished(run) == 0, transcript(run)
    model = PROGRAMS[name].model()
    model.load_weights(folder / "final.weights.h5")
    weights: list[Any] = model.get_weights()
    return weights


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(
            "schedule without config",
            None,
            id="schedule without config",
            marks=in_all("tests/training/test_runtime_programs.py::test_schedules_losses_and_layers_need_no_config"),
        ),
        pytest.param(
            "half precision",
            0.077,
            id="half precision",
            marks=in_all(
                "tests/training/test_runtime_loss_scale.py::test_gradients_that_underflow_in_half_precision_train"
            ),
        ),
        pytest.param(
            "own train_step",
            3.0,
            id="own train_step",
            marks=in_all(
                "tests/training/test_runtime_programs.py::test_a_custom_training_method_can_be_moved_into_a_function"
            ),
        ),
    ],
)
@pytest.mark.usefixtures("client")  # a process connects before it creates its first tensor
def test_one_worker_ends_where_fit_ends(name: str, expected: float | None, tmp_path: Path) -> None:
    wanted = PROGRAMS[name].fitted().get_weights()
    for weight, value in zip(trained(name, tmp_path, training={"mode": "Sync"}), wanted, strict=True):
        np.testing.assert_allclose(weight, value, rtol=0, atol=1e-5)
    if expected is not None:
        assert wanted[0].item() == pytest.approx(expected, abs=1e-3), "the result of fit"


@in_all("tests/training/test_runtime_state.py::test_statistics_of_stale_workers_are_those_of_one_process")
@pytest.mark.usefixtures("client")
def test_statistics_of_many_asynchronous_workers_are_those_of_the_data(tmp_path: Path) -> None:
    """The statistics of four asynchronous workers are those of the data. The sum of their whole changes would
    oscillate, as 4 (1 - 0.3) exceeds 2.
    """
    *_, mean, variance, _ = trained("statistics", tmp_path, workers=4, training={"mode": "Async"})
    seen = np.stack([PROGRAMS["statistics"].batch(worker)[0] for worker in range(4)])
    # Each worker repeats one batch, so the average is between the moments of the four.
    for found, moments in ((mean, seen.mean(1)), (variance, seen.var(1))):
        assert (found >= moments.min(0) - 1e-3).all()
        assert (found <= moments.max(0) + 1e-3).all()


@in_all("tests/training/test_runtime_programs.py::test_a_custom_training_method_is_rejected_unless_a_step_replaces_it")
def test_a_train_step_that_would_not_be_called_is_rejected_with_advice(tmp_path: Path) -> None:
    name = "own train_step, not moved"
    with LocalJob(["-m", MODULE, name], restarts=3, checkpoint={"path": str(tmp_path)}) as run:
        assert finished(run) == contract.EXIT_BAD_SETTINGS, transcript(run)
        lines = [line for process in run.processes.values() for line in process.lines]
    assert any("Own.train_step" in line and "Trainer(train_step=...)" in line for line in lines), transcript(run)
