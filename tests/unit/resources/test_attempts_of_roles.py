"""The pods of the chief and the evaluator belong to Jobs, whose templates Kubernetes restricts further."""

import copy
from typing import Any

import pytest

from pstraining.cli.validation.documents import wrong_with
from pstraining.cli.validation.schema import Severity
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
    assert warned(worker=labelled, chief={"enabled": False}) == []
    assert [text.partition(",")[0] for text in warned(evaluator=labelled)] == ["spec.evaluator: has template"]


RESTARTS = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]


def restarting() -> dict[str, Any]:
    """Return a template whose containers restart for another size of memory."""
    found = template()
    found["spec"]["containers"][0]["resizePolicy"] = RESTARTS
    found["spec"]["initContainers"] = [{**found["spec"]["containers"][0], "name": "beside", "restartPolicy": "Always"}]
    return found


@pytest.mark.parametrize("role", ["chief", "evaluator"])
@pytest.mark.parametrize("is_own", [True, False])
def test_an_attempt_does_not_restart_for_a_resize(role: str, is_own: bool) -> None:
    """Kubernetes 1.33 refuses a Job whose pod never restarts and has containers that restart for a resize."""
    own = {role: {"template": restarting()}} if is_own else {}
    made = typed(job(spec={"worker": {"template": restarting()}, **own}))
    attempt = workloads.build_attempt(made, role, 1, LauncherMap("l"))["spec"]["template"]["spec"]
    assert not [c for c in (*attempt["containers"], *attempt["initContainers"]) if "resizePolicy" in c]
    for kept in (
        workloads.build_worker(made, 0, LauncherMap("l")),
        workloads.build_parameter_servers(made, LauncherMap("l")),
    ):
        spec = kept["spec"]["template"]["spec"]
        assert [c["resizePolicy"] for c in (*spec["containers"], *spec["initContainers"])] == [RESTARTS] * 2


def test_a_template_of_its_own_that_restarts_for_a_resize_is_a_warning() -> None:
    """Kubernetes before 1.33 does not read the field, so such a job may already run."""
    assert warned(worker={"template": restarting()}, ps={"template": restarting()}) == []
    assert warned(chief={"template": restarting()}) == [
        f"spec.chief.template.spec.{which}[0].resizePolicy: is left out: each attempt has a pod that never restarts"
        for which in ("initContainers", "containers")
    ]
    findings = wrong_with(job(spec={"evaluator": {"enabled": True, "template": restarting()}}))
    assert {f.severity for f in findings} == {Severity.WARNING}
