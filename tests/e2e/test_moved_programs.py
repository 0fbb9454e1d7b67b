"""Programs that an earlier version trained differently from `fit` end where `fit` ends, on real kubelets."""

from pathlib import Path

import h5py  # type: ignore[import-untyped]
import pytest

from tests.support.examples import ROOT, Example
from tests.support.kube import Kube
from tests.support.soak_marks import in_all, in_soak

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("installed"), pytest.mark.trains]
PROGRAMS = (ROOT / "tests" / "support" / "moved_programs.py").read_text()


@in_all("tests/training/test_runtime_loss_scale.py::test_gradients_that_underflow_in_half_precision_train")
@pytest.mark.parametrize(
    ("name", "weight", "mode"),
    [
        ("half precision", 0.077, "Async"),
        ("own train_step", 3.0, "Sync"),
        pytest.param("half precision", 0.077, "Sync", marks=in_soak),
        pytest.param("own train_step", 3.0, "Async", marks=in_soak),
    ],
)
def test_a_moved_program_ends_where_fit_ends(
    kube: Kube, namespace: str, shared: Path, name: str, weight: float, mode: str
) -> None:
    """The weight after 100 steps is the one that `fit` reaches (tests/training/test_moved_programs.py runs `fit`)."""
    spec = {"worker": {"replicas": 1}, "training": {"mode": mode, "steps": None}}
    example = Example.start(kube, namespace, "digits", shared, spec, (name,), source=PROGRAMS)
    job = example.wait_succeeded()
    assert job["status"]["restarts"] == 0
    with h5py.File(example.checkpoints / "final.weights.h5") as file:
        assert file["layers/dense/vars/0"][()].item() == pytest.approx(weight, abs=1e-3)
