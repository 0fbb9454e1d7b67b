"""Fields of a TFJob's templates that stay as they are, and have another effect in a PSTrainingJob."""

from typing import Any

import pytest

from pstraining.cli.tfjob.job import converted
from pstraining.cli.tfjob.notes import NoteKind
from tests.support.tfjobs import replica, template, tfjob

POD = "spec.tfReplicaSpecs.Worker.template.spec"
QUIET = {note.path for note in converted(tfjob()).notes}
"""Fields that have a note in every such job."""
PROBE = {"exec": {"command": ["test", "-f", "/run/up"]}}


def said(job: dict[str, Any]) -> dict[str, tuple[NoteKind, str]]:
    return {n.path: (n.kind, f"{n.message} {n.todo}") for n in converted(job).notes if n.path not in QUIET}


@pytest.mark.parametrize(
    ("container", "field", "kind", "text"),
    [
        ({"livenessProbe": PROBE}, "livenessProbe", NoteKind.DIFFERENT, "it also runs while the launcher waits"),
        ({"startupProbe": PROBE}, "startupProbe", NoteKind.DIFFERENT, "after 30 s, but the launcher waits"),
        (
            {"restartPolicy": "Always"},
            "restartPolicy",
            NoteKind.NONE,
            "it is left out: use spec.worker.restartPolicy. ",
        ),
        ({"restartPolicyRules": []}, "restartPolicyRules", NoteKind.NONE, "it is left out"),
    ],
)
def test_a_field_that_validate_warns_of_has_a_note(
    container: dict[str, Any], field: str, kind: NoteKind, text: str
) -> None:
    found = said(tfjob(Worker=replica(2, **container)))
    assert found.keys() == {f"{POD}.containers[0].{field}"}
    [(what, message)] = found.values()
    assert what is kind
    assert text in message


def test_such_fields_are_noted_beside_wrong_values() -> None:
    job = tfjob(Worker=replica(2, livenessProbe=PROBE, ports=[{"containerPort": 70000}]))
    assert said(job).keys() == {f"{POD}.containers[0].livenessProbe", f"{POD}.containers[0].ports[0].containerPort"}


@pytest.mark.parametrize("role", ["Master", "Evaluator"])
def test_such_fields_are_noted_beside_a_note_on_the_role(role: str) -> None:
    path = f"spec.tfReplicaSpecs.{role}"
    expected = {path, f"{path}.template.spec.containers[0].livenessProbe"}
    assert said(tfjob(**{role: replica(livenessProbe=PROBE)})).keys() == expected


def test_such_fields_are_noted_beside_a_volume_that_is_missing() -> None:
    mounts = [{"name": "missing", "mountPath": "/data"}]
    found = said(tfjob(Worker=replica(2, volumeMounts=mounts, livenessProbe=PROBE)))
    assert found.keys() == {f"{POD}.containers", f"{POD}.containers[0].livenessProbe"}


@pytest.mark.parametrize("field", ["initialDelaySeconds", "periodSeconds", "failureThreshold"])
def test_a_probe_with_a_number_in_quotes_has_a_note(field: str) -> None:
    found = said(tfjob(Worker=replica(2, startupProbe={**PROBE, field: "30"})))
    assert found.keys() == {f"{POD}.containers[0].startupProbe.{field}"}
    assert all("must be a valid integer" in message for _, message in found.values())


def test_a_field_of_the_same_effect_has_no_note() -> None:
    worker = template({"readinessProbe": PROBE}) | {"metadata": {"finalizers": ["example.com/keep"]}}
    assert said(tfjob(Worker={"replicas": 2, "restartPolicy": "OnFailure", "template": worker})) == {}


def test_a_port_of_a_sidecar_has_one_note() -> None:
    sidecar = {
        "name": "s",
        "image": "i",
        "command": ["c"],
        "restartPolicy": "Always",
        "ports": [{"containerPort": 2222}],
    }
    worker = {"replicas": 2, "restartPolicy": "OnFailure", "template": template(initContainers=[sidecar])}
    assert said(tfjob(Worker=worker)).keys() == {f"{POD}.initContainers[0].ports[0]"}


@pytest.mark.parametrize("policy", ["Always", "OnFailure"])
def test_an_evaluator_that_always_runs_again_is_named(policy: str) -> None:
    found = said(tfjob(Evaluator=replica(policy=policy)))
    path = "spec.tfReplicaSpecs.Evaluator.restartPolicy"
    assert (path in found) is (policy == "Always")
    assert found.get(path, (NoteKind.DIFFERENT,))[0] is NoteKind.DIFFERENT


@pytest.mark.parametrize("role", ["Chief", "Master", "Evaluator"])
def test_the_time_of_a_pod_is_not_that_of_the_job(role: str) -> None:
    one = {"replicas": 1, "restartPolicy": "OnFailure", "template": template(activeDeadlineSeconds=600)}
    kind, message = said(tfjob(**{role: one}))[f"spec.tfReplicaSpecs.{role}.template.spec.activeDeadlineSeconds"]
    assert kind is NoteKind.DIFFERENT
    assert "Set spec.runPolicy.activeDeadlineSeconds" in message


VISIBLE = "NVIDIA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("container", "pod", "is_shared"),
    [
        ({}, {}, True),
        ({"env": [{"name": VISIBLE, "value": "all"}]}, {}, False),
        ({"env": [{"name": VISIBLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations"}}}]}, {}, False),
        ({"env": [{"name": VISIBLE, "value": "void"}]}, {}, True),
        ({"env": [{"name": VISIBLE}]}, {}, True),
        ({"securityContext": {"privileged": True}}, {}, False),
        ({}, {"runtimeClassName": "nvidia-cdi"}, False),
        ({}, {"runtimeClassName": "gvisor"}, True),
        ({}, {"volumes": [{"name": "v", "hostPath": {"path": "/dev/nvidia0"}}]}, False),
        ({}, {"volumes": [{"name": "v", "hostPath": {"path": "/dev/shm"}}, {"name": "w", "emptyDir": {}}]}, True),
    ],
)
def test_a_chief_keeps_gpus_that_it_does_not_request(
    container: dict[str, Any], pod: dict[str, Any], is_shared: bool
) -> None:
    """In a cluster whose runtime gives all GPUs to a container, a copy of the worker's template would hide them."""
    one = {"replicas": 1, "restartPolicy": "OnFailure", "template": template(container, **pod)}
    manifest = converted(tfjob(Chief=one, Worker=one)).manifest
    assert manifest is not None
    assert ("template" not in manifest["spec"]["chief"]) is is_shared


def test_args_without_a_command_may_be_the_command() -> None:
    job = tfjob(Worker=replica(2, command=[], args=["python", "train.py"]), PS=replica(command=[]))
    found = {note.path: note.todo for note in converted(job).notes if note.path.endswith(".command")}
    assert [todo.endswith("args are the command: write them as command.") for todo in found.values()] == [False, True]


def test_a_resource_that_no_node_has_any_longer_is_named() -> None:
    old = "alpha.kubernetes.io/nvidia-gpu"
    job = tfjob(Worker=replica(2, resources={"limits": {old: 1, "cpu": 1}}))
    (note,) = [note for note in converted(job).notes if old in note.path]
    assert (note.kind, note.todo) == (NoteKind.NONE, "Request nvidia.com/gpu instead.")


def test_a_file_with_the_labels_of_the_pod_lacks_those_of_tfjob() -> None:
    labels = {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}
    spec = template({}, volumes=[{"name": "pod", "downwardAPI": labels}])
    job = tfjob(Worker={"replicas": 2, "restartPolicy": "OnFailure", "template": spec})
    (note,) = [note for note in converted(job).notes if note.path.endswith("fieldRef.fieldPath")]
    assert (note.kind, note.message.partition(" that")[0]) == (NoteKind.DIFFERENT, "the file does not have the labels")
