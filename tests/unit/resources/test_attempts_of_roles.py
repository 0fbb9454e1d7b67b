"""The pods of the chief and the evaluator belong to Jobs, whose templates Kubernetes restricts further."""

import copy
from typing import Any

import pytest

from pstraining.cli.validation.documents import wrong_with
from pstraining.resources import workloads
from pstraining.resources.launcher import LauncherMap
from tests.support.builders import TEMPLATE, job, typed

LABELS = {"team": "vision", "job-name": "mnist", "batch.kubernetes.io/controller-uid": "7"}


def template(**metadata: Any) -> dict[str, Any]:
    return {**copy.deepcopy(TEMPLATE), "metadata": metadata}


def warned(**spec: Any) -> list[str]:
    found = wrong_with(job(spec={"checkpoint": {"uri": "s3://bucket/a"}, **spec}))
    return [str(finding) for finding in found]


@pytest.mark.parametrize("role", ["chief", "evaluator"])
@pytest.mark.parametrize("is_own", [True, False])
def test_the_labels_of_jobs_are_left_to_kubernetes(role: str, is_own: bool) -> None:
    """Kubernetes refuses a Job whose template has another value, such as the name of a former TFJob."""
    spec = {role if is_own else "worker": {"template": template(labels=LABELS)}}
    made = typed(job(spec=spec))
    attempt = workloads.build_attempt(made, role, 1, LauncherMap("l"))["spec"]["template"]
    assert LABELS.items() & attempt["metadata"]["labels"].items() == {("team", "vision")}
    worker = workloads.build_worker(made, 0, LauncherMap("l"))["spec"]["template"]
    assert (LABELS.items() <= worker["metadata"]["labels"].items()) is not is_own


def test_the_labels_of_jobs_are_a_warning() -> None:
    said = "has another value there (pods of {}); choose another label"
    labelled, plain = {"template": template(labels=LABELS)}, {"template": template()}
    found = warned(worker=labelled)
    assert [text.partition(": ")[0] for text in found] == [
        "spec.worker.template.metadata.labels.job-name",
        "spec.worker.template.metadata.labels.batch.kubernetes.io/controller-uid",
    ]
    assert all(text.endswith(said.format("chief")) for text in found)
    (name, _) = warned(worker=labelled, evaluator={"enabled": True})
    assert name.endswith(said.format("chief, evaluator"))
    assert len(warned(chief=labelled)) == 2
    assert warned(worker=labelled, chief=plain) == warned(ps=labelled) == []
    assert warned(worker=labelled, chief={"enabled": False}) == warned(evaluator=labelled) == []
