"""The plain Keras script and its conversion to a job have the same epochs, logs, callbacks and accuracy."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pstraining.runtime.local import LocalJob
from tests.support.soak_marks import in_all
from tests.training.test_runtime_faults import finished, transcript

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]
ROOT = Path(__file__).parents[2]


def logged(folder: Path) -> list[dict[str, str]]:
    with (folder / "log.csv").open() as file:
        return list(csv.DictReader(file))


@in_all("tests/training/test_docs_guide.py::test_the_tutorial")  # a second script
def test_the_job_equals_the_script(tmp_path: Path) -> None:
    plain, job = tmp_path / "plain", tmp_path / "job"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "operator"), str(ROOT)])}
    subprocess.run([sys.executable, "-m", "examples.fit.plain", str(plain)], env=environment, check=True, timeout=400)
    with LocalJob(["-m", "examples.fit"], workers=2, restarts=2, checkpoint={"path": str(job)}) as run:
        assert finished(run) == 0, transcript(run)
        result = run.processes["chief"].events("result")[0]
    rows, expected = logged(job), logged(plain)
    assert [int(row["epoch"]) for row in expected] == list(range(8))
    assert int(rows[-1]["epoch"]) == 7
    assert {"loss", "val_loss", "val_accuracy"} <= rows[-1].keys()
    # One update has both workers' batches, so there are half as many updates, and the result differs slightly.
    assert float(rows[-1]["val_accuracy"]) >= float(expected[-1]["val_accuracy"]) - 0.05
    assert result["test_accuracy"] == pytest.approx(float(rows[-1]["val_accuracy"]))
    assert (job / "best.keras").is_file()
    assert list((job / "tensorboard").glob("events.*"))
