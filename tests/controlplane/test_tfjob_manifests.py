"""Every manifest of the table of TFJob's features on a real API server is accepted with its children, or rejected."""

from collections.abc import Iterator
from typing import Any

import pytest

from pstraining.core import desired_state
from pstraining.kube.client import KubeClient
from pstraining.resources import workloads
from pstraining.resources.launcher import LauncherMap
from tests.support import builders
from tests.support.kube import ApiError, Kube, Target
from tests.tfjob.cases import CASES
from tests.tfjob.converted import EXAMPLES
from tests.tfjob.simulated import typed
from tests.tfjob.table import Case


@pytest.fixture
def kube(cluster: dict[str, str], client: KubeClient) -> Kube:
    """Return a synchronous client, after the other client has installed the CRD."""
    return Kube(Target(*cluster.values()))


def posted(kube: Kube, namespace: str, body: dict[str, Any]) -> None:
    """Create an object by a dry run with strict validation."""
    path = kube.path(body["kind"], namespace)
    metadata = {**body["metadata"], "namespace": namespace}
    kube.request("POST", path + "?dryRun=All&fieldValidation=Strict", {**body, "metadata": metadata})


def children(case: Case) -> Iterator[dict[str, Any]]:
    """Return all children that the operator would create."""
    job = typed(case)
    yield from desired_state.children(job, LauncherMap("launcher"), builders.LAUNCHER)
    for role, wanted in (("chief", job.spec.chief.enabled), ("evaluator", job.spec.evaluator.enabled)):
        if wanted:
            yield workloads.build_attempt(job, role, 1, LauncherMap("launcher"))


def test_manifests_are_accepted_or_rejected_as_documented(kube: Kube, namespace: str) -> None:
    wrong = []
    for case in CASES:
        try:
            posted(kube, namespace, case.manifest())
            said = ""
        except ApiError as error:
            said = error.message
        if (case.refused not in said) if case.refused else said:
            wrong.append(f"{case.name}: {said or 'it is taken'}")
    assert not wrong, "\n".join(wrong)


def test_rendered_manifests_are_accepted(kube: Kube, namespace: str) -> None:
    wrong = []
    for case in CASES:
        for child in children(case) if not case.refused else ():
            try:
                posted(kube, namespace, child)
            except ApiError as error:
                wrong.append(f"{case.name}: {child['kind']} {child['metadata']['name']}: {error.message}")
    assert not wrong, "\n".join(wrong)


def test_converted_jobs_and_their_children_are_accepted(kube: Kube, namespace: str) -> None:
    wrong = []
    for example in EXAMPLES:
        bodies = [m] if (m := example.conversion().manifest) is not None else []
        for body in [*bodies, *(children(example.case()) if example.play else ())]:
            what = f"{example.name}: {body['kind']} {body['metadata']['name']}"
            try:
                posted(kube, namespace, body)
                said = ""
            except ApiError as error:
                said = error.message
            if (example.refused not in said) if example.refused else said:
                wrong.append(f"{what}: {said or 'it is taken'}")
    assert not wrong, "\n".join(wrong)
