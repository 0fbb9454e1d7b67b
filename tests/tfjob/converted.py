"""TFJobs as users have them, each beside its conversion by `kubectl pstraining convert`.

`make generate` rewrites the expected files; review their difference. The converted jobs must satisfy the API server's
rules. They are played in the simulated world, and on real kubelets where an example is marked `real`.
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
    """A TFJob with its expected conversion."""

    name: str
    """The name of the file, and of the job unless the example is about the name."""
    play: tuple[Step, ...] = ()
    """TFJob's documented behavior; empty if no job could run."""
    complete: bool = True
    """Whether every part has a counterpart."""
    refused: str = ""
    """The message with which the API server rejects the converted job, until a note's advice is followed."""
    real: bool = False
    """Whether it is also played on real kubelets."""
    quick: bool = False
    """Whether it is also played on real kubelets without THOROUGH."""

    @property
    def path(self) -> Path:
        """Return the path of the TFJob's file."""
        return FOLDER / "tfjobs" / f"{self.name}.yaml"

    @property
    def expected(self) -> Path:
        """Return the path of the expected conversion."""
        return EXPECTED / f"{self.name}.yaml"

    def document(self) -> Document:
        """Return the parsed document of the TFJob."""
        (found,) = documents([str(self.path)])
        return found

    def tfjob(self) -> dict[str, Any]:
        """Return the TFJob."""
        return self.document().body

    def conversion(self) -> Conversion:
        """Return the conversion, which is computed once for several tests."""
        return self._conversion

    @cached_property
    def _conversion(self) -> Conversion:
        return converted(self.tfjob())

    def case(self) -> Case:
        """Return the expected behavior as a case that can be played."""
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
            Exit("worker-0", 1),  # a parameter server's program is restarted in its container, without being counted
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
    """Return the content of an example's expected file."""
    return as_yaml([convert_document(example.document())])


def expected_files() -> dict[Path, str]:
    """Return the content of each expected file."""
    return {example.expected: expected_text(example) for example in EXAMPLES}
