"""The digits example on processes of this machine: its accuracy, its second run, and its model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.local import LocalJob
from tests.support.soak_marks import THOROUGH
from tests.training.test_runtime_export import loaded, printed

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]
STEPS, ACCURACY = (2000, 0.95) if THOROUGH else (1000, 0.9)
WORKERS = ("worker-0", "worker-1") if THOROUGH else ("worker-0",)


def checkpoint(folder: Path) -> dict[str, Any]:
    return {"path": str(folder), "keep": 2, "intervalSeconds": 5}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return the folder of a finished job, and the job's result."""
    folder = tmp_path_factory.mktemp("digits")
    with LocalJob(
        ["-m", "examples.digits"],
        workers=len(WORKERS),
        chief=THOROUGH,
        training={"mode": "Async", "steps": STEPS},
        checkpoint=checkpoint(folder),
    ) as job:
        assert job.wait() == 0, "\n".join(job.leader.lines[-30:])
        result = job.leader.events("result")[0]
        assert not job.leader.events("not_exported")
        for worker in WORKERS:
            assert job.processes[worker].popen.wait(timeout=120) == 0
            assert job.processes[worker].events("worker_done")[0]["steps"] > 0
    return folder, result


def test_a_job_leaves_the_model_of_its_last_checkpoint(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = trained
    expected = printed("-m", "tests.support.exporting", "digits", str(folder))
    np.testing.assert_allclose(loaded(folder), expected, rtol=1e-5)
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".tmp")]


def test_digits_reaches_its_accuracy_and_a_second_run_has_nothing_to_do(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, result = trained
    assert result["test_accuracy"] >= ACCURACY
    assert result["step"] >= STEPS
    written = json.loads((folder / "result.json").read_text())
    assert written["test_accuracy"] == result["test_accuracy"]
    assert (folder / "final.weights.h5").is_file()

    training = {"steps": STEPS}
    with LocalJob(["-m", "examples.digits"], chief=THOROUGH, training=training, checkpoint=checkpoint(folder)) as again:
        assert again.wait() == 0, "\n".join(again.leader.lines[-30:])
        assert again.leader.events("result")[0]["test_accuracy"] == result["test_accuracy"]
        assert again.leader.events("restored")[0]["step"] == result["step"]
        assert again.processes["worker-0"].popen.wait(timeout=120) == 0
        assert not again.processes["worker-0"].events("worker"), "a finished job does not train"
