"""TFJobs as users have them, each with the PSTrainingJob that `kubectl pstraining convert` makes of it beside it.

`make generate` writes what is expected anew; whoever runs it reads the difference. What is made of them is held to the
API server's rules, played in the simulated world, and, where it says `real`, on real kubelets.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from pstraining.cli.manifests import Document, documents
from pstraining.cli.tfjob.job import Conversion, converted
from pstraining.cli.tfjob.results import as_yaml, convert_document
from tests.tfjob.table import Case, DeletePod, Exit, Later, Scale, Sees, Step, Suspend, tasks

FOLDER = Path(__file__).parent / "convert"
EXPECTED = FOLDER / "expected"


@dataclass(frozen=True)
class Example:
    """One TFJob."""

    name: str
    """Of the file, and of the job unless the example is about that."""
    play: tuple[Step, ...] = ()
    """What TFJob documents for it; empty where there is no job that could run."""
    complete: bool = True
    """Everything of it has a counterpart."""
    refused: str = ""
    """The API server refuses what is made of it in these words, until somebody has done what a note says."""
    real: bool = False
    """Played on real kubelets, too."""
    quick: bool = False
    """So also without THOROUGH."""

    @property
    def path(self) -> Path:
        """The TFJob's file."""
        return FOLDER / "tfjobs" / f"{self.name}.yaml"

    @property
    def expected(self) -> Path:
        """The file of what is made of it."""
        return EXPECTED / f"{self.name}.yaml"

    def document(self) -> Document:
        """The TFJob."""
        (found,) = documents([str(self.path)])
        return found

    def tfjob(self) -> dict[str, Any]:
        """The TFJob."""
        return self.document().body

    def conversion(self) -> Conversion:
        """What becomes of it, made once: several tests look at it."""
        return self._conversion

    @cached_property
    def _conversion(self) -> Conversion:
        return converted(self.tfjob())

    def case(self) -> Case:
        """What is expected, as a case to be played."""
        job = yaml.safe_load(self.expected.read_text(encoding="utf-8"))["metadata"]["name"]
        assert job == self.name
        return Case(job, "", "", "", "", play=self.play, folder=EXPECTED)


EXAMPLES = (
    Example(
        "dist-mnist",
        (
            Sees("Running", ready={"ps": 2, "worker": 4}),
            Exit("worker-2", 0),
            Sees("Running", succeeded={"worker": 1}),
            Exit("worker-0", 0),
            Sees("Succeeded", "WorkerZeroSucceeded", pods=tasks("ps-0", "ps-1", "worker-0", "worker-1", "worker-3")),
        ),
        real=True,
        quick=True,
    ),
    Example("mnist-summaries", complete=False),
    Example(
        "summaries",
        (
            Sees("Running", ready={"chief": 1, "ps": 1, "worker": 2}),
            Exit("worker-0", 1),  # a parameter server's program is begun again in its container, and not counted
            Sees("Running", restarts={"worker": 1}, ready={"worker": 2}),
            Exit("chief-0", 0),
            Sees("Succeeded", "ChiefSucceeded", pods=tasks("chief-0")),
        ),
        real=True,
    ),
    Example(
        "estimator",
        (
            Sees("Running", ready={"chief": 1, "ps": 1, "worker": 2, "evaluator": 1}),
            Exit("worker-1", 1),
            Sees("Running", restarts={"worker": 1}, ready={"worker": 2}),
            Exit("evaluator-0", 0),
            Sees("Running", succeeded={"evaluator": 1}),
            Exit("chief-0", 0),
            Sees("Succeeded", "ChiefSucceeded", succeeded={"evaluator": 1}),
        ),
        real=True,
        quick=True,
    ),
    Example("keras-multi-worker", complete=False),
    Example("keras-ps", (Exit("chief-0", 1), Sees("Failed", failed="chief/0")), real=True),
    Example(
        "gpus",
        (Sees("Running", ready={"ps": 2, "worker": 4}), Exit("chief-0", 0), Sees("Succeeded", "ChiefSucceeded")),
        real=True,
    ),
    Example(
        "volumes",
        (
            Sees("Running", ready={"ps": 1, "worker": 2}),
            Exit("worker-0", 0),
            Sees("Succeeded", "WorkerZeroSucceeded", pods=tasks()),
        ),
        real=True,
    ),
    Example(
        "exit-code",
        (
            Exit("worker-1", 137),
            Sees("Running", restarts={"worker": 1}, runs={"worker-1": 2}),
            Exit("worker-1", 1),
            Sees("Failed", failed="worker/1"),
        ),
        real=True,
        quick=True,
    ),
    Example(
        "always",
        (
            Exit("worker-0", 0),
            Sees("Running", succeeded={"worker": 0}, ready={"worker": 1}, runs={"worker-0": 2}),
            Exit("chief-0", 0),
            Sees("Succeeded", "ChiefSucceeded"),
        ),
        real=True,
    ),
    Example(
        "defaults",
        (
            DeletePod("worker-0"),
            Sees("Running", restarts={"worker": 1}, runs={"worker-0": 2}),
            Exit("worker-0", 1),
            Sees("Failed", failed="worker/0", pods=tasks("worker-0")),
        ),
        real=True,
    ),
    Example(
        "clean-all",
        (Exit("chief-0", 0), Sees("Succeeded", pods=tasks()), Later(10), Sees(gone=True)),
        real=True,
    ),
    Example("clean-running", (Exit("worker-1", 1), Sees("Failed", failed="worker/1")), real=True),
    Example(
        "all-workers",
        (
            Exit("worker-0", 0),
            Sees("Running", succeeded={"worker": 1}),
            Exit("worker-1", 0),
            Sees("Succeeded", "AllWorkersSucceeded"),
        ),
        real=True,
    ),
    Example("deadline", (Later(30), Sees("Failed", "DeadlineExceeded")), real=True),
    Example(
        "suspended",
        (
            Sees("Suspended", pods=tasks()),
            Suspend(False),
            Sees("Running", pods=tasks("chief-0", "ps-0", "worker-0")),
            Exit("chief-0", 0),
            Sees("Succeeded"),
        ),
        complete=False,
        real=True,
    ),
    Example(
        "dynamic-worker",
        (
            Sees("Running", ready={"worker": 2}),
            Scale(workers=3),
            Sees("Running", ready={"worker": 3}, runs={"worker-0": 1, "worker-1": 1, "worker-2": 1}),
            Exit("worker-1", 1),
            Sees("Running", ready={"worker": 2}),
            Exit("chief-0", 0),
            Sees("Succeeded"),
        ),
        real=True,
    ),
    Example(
        "gang",
        (Sees("Running", ready={"ps": 1, "worker": 3}), Exit("worker-0", 0), Sees("Succeeded")),
        complete=False,
    ),
    Example(
        "gang-scheduler-plugins",
        (Sees("Running", ready={"ps": 1, "worker": 4}), Exit("worker-0", 0), Sees("Succeeded")),
    ),
    Example(
        "sidecars",
        (Sees("Running", ready={"ps": 2, "worker": 2}), Exit("worker-0", 0), Sees("Succeeded")),
        real=True,
    ),
    Example(
        "master",
        (
            Exit("chief-0", 1),
            Sees("Running", term=2, restarts={"chief": 1}),
            Exit("chief-0", 0),
            Sees("Succeeded", pods=tasks()),
        ),
        real=True,
    ),
    Example(
        "host-network",
        (Sees("Running", ready={"chief": 1}), Exit("chief-0", 0), Sees("Succeeded")),
        complete=False,
        real=True,
    ),
    Example("entrypoint", complete=False, refused="the training container needs a command"),
    Example(
        "stored",
        (Sees("Running", ready={"ps": 1, "worker": 1}), Exit("worker-0", 0), Sees("Succeeded")),
        complete=False,
        real=True,
    ),
)


def expected_text(example: Example) -> str:
    """What the file of expectations of an example must hold."""
    return as_yaml([convert_document(example.document())])


def expected_files() -> dict[Path, str]:
    """What each file of expectations must hold."""
    return {example.expected: expected_text(example) for example in EXAMPLES}
