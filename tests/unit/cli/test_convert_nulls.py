"""Nulls in a TFJob: in lists they are refused, all in one run, and elsewhere they are absent, as for an API server."""

from pstraining.cli.tfjob.job import converted
from pstraining.cli.tfjob.notes import NoteKind, lines
from tests.support.tfjobs import replica, template, tfjob

VOLUMES = [{"name": "scratch", "emptyDir": None}, {"name": "data", "persistentVolumeClaim": None}]


def test_all_nulls_in_lists_are_refused_in_one_run() -> None:
    job = tfjob(Worker=replica(2, command=["python", None], args=[None, "--a"]))
    container = "spec.tfReplicaSpecs.Worker.template.spec.containers[0]"
    assert lines(converted(job).notes) == [
        f"refused: {container}.command[1], {container}.args[0]: it is null: write a value, in quotes if it is the text "
        "null, or remove it."
    ]


def test_an_entry_without_a_value_has_a_note() -> None:
    pods = template(
        {"resources": {"limits": {"cpu": 1, "nvidia.com/gpu": None}}},
        nodeSelector={"pool": None, "a": "b"},
        volumes=VOLUMES,
    )
    pods["metadata"] = {"labels": {"team": None}, "creationTimestamp": None}
    job = tfjob(Worker={"replicas": 2, "restartPolicy": "OnFailure", "template": pods})
    job["metadata"]["annotations"] = {"note": None}
    job["spec"]["tfReplicaSpecs"]["Chief"] = None
    found = converted(job)
    where = "spec.tfReplicaSpecs.Worker.template"
    assert [(n.path, n.kind) for n in found.notes if "is null" in n.message] == [
        ("metadata.annotations.note", NoteKind.CHANGED),
        ("spec.tfReplicaSpecs.Chief", NoteKind.CHANGED),
        (f'{where}.spec.containers[0].resources.limits["nvidia.com/gpu"]', NoteKind.CHANGED),
        (f"{where}.spec.nodeSelector.pool", NoteKind.CHANGED),
        (f"{where}.spec.volumes[1].persistentVolumeClaim", NoteKind.CHANGED),
        (f"{where}.metadata.labels.team", NoteKind.CHANGED),
    ]
    assert found.manifest is not None
    assert found.manifest["spec"]["worker"]["template"]["spec"]["nodeSelector"] == {"a": "b"}
