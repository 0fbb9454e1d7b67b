"""Commands and requests that name the resource of TFJobs, in other objects and in a TFJob's own templates."""

from typing import Any

import pytest

from pstraining.cli.tfjob.job import converted
from pstraining.cli.tfjob.others import notes_on
from tests.support.tfjobs import CONTAINER, template, tfjob

WORDS = ["delete", "tfjob", "mnist"]


@pytest.mark.parametrize(
    ("container", "paths"),
    [
        ({"command": ["kubectl", *WORDS]}, ["spec.command[2]"]),
        ({"command": ["/usr/bin/kubectl"], "args": ["-n", "ml", *WORDS]}, ["spec.args[3]"]),
        ({"image": "bitnami/kubectl:1.34", "args": ["get", "TFJobs"]}, ["spec.args[1]"]),
        ({"command": ["kubectl", "wait", "tfjob/mnist"]}, ["spec.command[2]"]),
        ({"command": ["sh", "-c", "kubectl delete tfjob mnist"]}, ["spec.command[2]"]),
        ({"args": ["curl", "$API/apis/kubeflow.org/v1/namespaces/$NS/tfjobs/mnist"]}, ["spec.args[1]"]),
        ({"command": ["kubectl", "apply", "-f", "tfjob.yaml"]}, []),
        ({"image": "train:1", "command": ["python", "-m", "train"], "args": ["tfjob"]}, []),
        ({"command": "kubectl", "args": None, "image": 3}, []),
    ],
)
def test_a_command_that_names_the_resource_is_named(container: dict[str, Any], paths: list[str]) -> None:
    assert [note.path for note in notes_on({"apiVersion": "v1", "kind": "Other", "spec": container})] == paths


def test_a_sidecars_command_that_names_the_resource_is_named() -> None:
    sidecar = {"name": "clean", "image": "kubectl", "command": ["kubectl", *WORDS]}
    job = tfjob(Worker={"restartPolicy": "OnFailure", "template": template(containers=[CONTAINER, sidecar])})
    paths = [note.path for note in converted(job).notes]
    assert "spec.tfReplicaSpecs.Worker.template.spec.containers[1].command[2]" in paths
