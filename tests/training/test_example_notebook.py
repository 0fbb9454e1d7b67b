"""The examples' notebook runs in a kernel, and trains on processes of this machine."""

import ast
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from hack.docs.pages import ROOT
from tests.support.soak_marks import THOROUGH, in_all

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]
NOTEBOOK = ROOT / "examples" / "notebook" / "digits.ipynb"
WORKERS = 2 if THOROUGH else 1
"""In `make test` one process fewer imports TensorFlow."""


def shown(cell: Any) -> str:
    """Return what a cell has printed and returned, without errors and warnings."""
    outputs = [output for output in cell.get("outputs", ()) if output.get("name") != "stderr"]
    return "".join(output.get("text") or output["data"]["text/plain"] for output in outputs)


@in_all(
    "tests/e2e/test_client.py::test_a_function_trains_and_reports_the_progress_that_top_shows"
)  # the same calls, on a cluster; unit tests read a notebook's source
def test_the_notebook_trains(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    (creates,) = [cell for cell in notebook.cells if "workers=2" in cell.source]
    creates.source = creates.source.replace("workers=2", f"workers={WORKERS}")
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    job, log, phase, last = filter(None, map(shown, notebook.cells))
    assert job.startswith("Job(name='train-")
    assert '"event": "result"' in log
    assert ast.literal_eval(phase) == "Succeeded"
    step, percentage, accuracy = ast.literal_eval(last)
    assert step > 4 * 1440 / (32 * WORKERS) - 1, "workers divide each epoch"
    assert percentage == 100
    assert accuracy > 0.8
