"""The history has the logs of workers whose pods are deleted while the chief still evaluates the model."""

from pathlib import Path

import pytest

from pstraining.api.summary import SUMMARY_FILE, Summary
from tests.support.examples import Example
from tests.support.kube import Kube, wait_for
from tests.support.soak_marks import in_all

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("installed")]

EVALUATES = """
import pathlib
import time

import examples.digits.__main__ as digits
from pstraining.runtime import Trainer


calls = []


def test_data():
    calls.append("before training, the data is checked")
    while len(calls) > 1 and not pathlib.Path("/checkpoints/evaluate").exists():
        time.sleep(0.2)
    return digits.test_data()


loss = "sparse_categorical_crossentropy"
Trainer(digits.model, digits.optimizer, loss, digits.train_data, evaluate=test_data, steps=200).run()
"""


@pytest.mark.minutes
@in_all("tests/unit/runtime/test_history.py::test_logs_of_pods_that_are_deleted_during_the_evaluation_are_kept")
def test_logs_outlive_a_long_evaluation(kube: Kube, namespace: str, shared: Path) -> None:
    spec = {"checkpoint": {"path": "/checkpoints"}}
    example = Example.start(kube, namespace, "digits", shared, spec, source=EVALUATES)
    example.wait_event("devices", "worker", 0)

    def workers() -> int:
        return len(kube.list("Pod", namespace, "pstraining.dev/role=worker"))

    wait_for(lambda: example.job()["status"]["worker"].get("succeeded") == 2, "the workers have succeeded", 120)
    assert workers() == 2, "their pods stay until the chief has read the logs"
    wait_for(lambda: workers() == 0, "their pods are deleted", 180)
    assert example.job()["status"]["phase"] == "Running", "the chief evaluates"
    (example.checkpoints / "evaluate").touch()
    example.wait_succeeded()
    kept = Summary.model_validate_json((example.checkpoints / SUMMARY_FILE).read_text())
    tasks = ("ps-0", "chief-0", "worker-0", "worker-1")
    assert {log.task: log.missing for log in kept.logs} == dict.fromkeys(tasks, "")
    for index in (0, 1):
        texts = [(example.checkpoints / log.file).read_text() for log in kept.logs if log.task == f"worker-{index}"]
        assert any('"event": "devices"' in text for text in texts), "the log of the run that has trained"
