"""The points and parameters that experiment trackers get."""

from pstraining.runtime.tracking.mlflow_run import flat
from pstraining.runtime.tracking.tracker import TrackedPoint, newer


def test_a_repeated_step_is_not_logged_again() -> None:
    assert newer(TrackedPoint(5, 0.0, {"loss": 1.0, "epoch/loss": 2.0}), {"loss": 5}) == {"epoch/loss": 2.0}


def test_settings_become_parameters() -> None:
    assert dict(flat({"training": {"steps": 7, "epochs": None, "compression": {"push": "None"}}})) == {
        "training.steps": "7",
        "training.compression.push": "None",
    }
