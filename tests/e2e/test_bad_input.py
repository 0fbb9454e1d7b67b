"""Whatever is wrong is said once, with the field's or the pod's name: at apply where the API server can know."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.kube import ApiError, Kube, Object, job_condition, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.puppet import IMAGE, manifest

pytestmark = pytest.mark.cluster

SIMPLE: Object = {
    "spec": {"containers": [{"name": "tensorflow", "image": IMAGE, "command": ["sleep", "1000"]}]},
}


def simple(namespace: str, name: str = "bad") -> Object:
    made = manifest(namespace, name)
    made["spec"]["worker"]["template"] = copy.deepcopy(SIMPLE)
    return made


def container(job: Object) -> Object:
    found: Object = job["spec"]["worker"]["template"]["spec"]["containers"][0]
    return found


def edit(path: str, value: object) -> Callable[[Object], None]:
    """Sets a field, given by its dotted path; None removes it."""

    def change(job: Any) -> None:
        *steps, last = path.split(".")
        for step in steps:
            job = job[int(step)] if isinstance(job, list) else job.setdefault(step, {})
        if value is None:
            del job[last]
        else:
            job[last] = value

    return change


def edits(*changes: Callable[[Object], None]) -> Callable[[Object], None]:
    """Makes several changes."""

    def change(job: Any) -> None:
        for one in changes:
            one(job)

    return change


POD = "spec.worker.template.spec"
CLAIM = {
    "metadata": {"name": "shard"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
AT_APPLY = {
    "unknown field": (edit("spec.workers", 1), 'unknown field "spec.workers"'),
    "replicas 0": (edit("spec.ps.replicas", 0), "spec.ps.replicas"),
    "no worker replicas": (edit("spec.worker.replicas", 0), "spec.worker.replicas"),
    "missing template": (edit("spec.worker.template", None), "spec.worker.template"),
    "missing command": (edit(f"{POD}.containers.0.command", None), "needs a command"),
    "TF_CONFIG": (edit(f"{POD}.containers.0.env", [{"name": "TF_CONFIG", "value": "x"}]), "TF_CONFIG is set by"),
    "reserved variable": (edit(f"{POD}.containers.0.env", [{"name": "PSTRAINING_X", "value": "x"}]), "PSTRAINING_"),
    "host network": (edit(f"{POD}.hostNetwork", True), "hostNetwork"),
    "pod restart policy": (edit(f"{POD}.restartPolicy", "Always"), "restartPolicy"),
    "two containers, none named": (
        edit(f"{POD}.containers", [{"name": n, "image": "i", "command": ["c"]} for n in ("a", "b")]),
        "name the one that trains 'tensorflow'",
    ),
    "a name with a digit first": (edit("metadata.name", "2024-run"), "metadata.name must be lower-case"),
    "a name too long": (edit("metadata.name", "a" * 41), "at most 40 characters"),
    "a wrong mode": (edit("spec.training.mode", "Psync"), "spec.training.mode"),
    "a wrong codec": (edit("spec.training.compression.push", "Zip"), "spec.training.compression.push"),
    "a bound on staleness with Sync": (
        edit("spec.training", {"mode": "Sync", "maxStaleness": 4}),
        "only with mode Async do workers run apart",
    ),
    "backup workers without Sync": (edit("spec.training.backupWorkers", 1), "only an update of mode Sync waits"),
    "ordered sums without Sync": (edit("spec.training.orderedSums", True), "added up only with mode Sync"),
    "ordered sums and backup workers": (
        edit("spec.training", {"mode": "Sync", "orderedSums": True, "backupWorkers": 1}),
        "it does not go with backupWorkers",
    ),
    "a codec for pulls without Sync": (edit("spec.training.compression.pull", "Int8"), "may be None, Bf16 or Auto"),
    "ordered sums and Auto": (
        edit("spec.training", {"mode": "Sync", "orderedSums": True, "compression": {"push": "Auto"}}),
        "compression Auto, which goes by the clock",
    ),
    "compression with Hybrid": (
        edit("spec.training", {"mode": "Hybrid", "compression": {"push": "Int8"}}),
        "spec.training.compression does not go with mode Hybrid",
    ),
    "local steps with Hybrid": (
        edit("spec.training", {"mode": "Hybrid", "localSteps": 2}),
        "spec.training.localSteps does not go with mode Hybrid",
    ),
    "backup workers with Hybrid": (
        edit("spec.training", {"mode": "Hybrid", "backupWorkers": 1}),
        "only an update of mode Sync waits",
    ),
    "ordered sums with Hybrid": (
        edit("spec.training", {"mode": "Hybrid", "orderedSums": True}),
        "added up only with mode Sync",
    ),
    "local steps and accumulation": (
        edit("spec.training", {"localSteps": 2, "accumulationSteps": 2}),
        "localSteps and accumulationSteps do not go together",
    ),
    "a wrong policy": (
        edit("spec.runPolicy.cleanPodPolicy.onSuccess", "Never"),
        "spec.runPolicy.cleanPodPolicy.onSuccess",
    ),
    "no checkpoint volume": (edit("spec.checkpoint.path", "/c"), "exactly one of volume and volumeClaimTemplate"),
    "a checkpoint path of ours": (
        edit("spec.checkpoint", {"path": "/pstraining", "volume": {"emptyDir": {}}}),
        "spec.checkpoint.path",
    ),
    "two claim templates of one name": (edit("spec.ps.volumeClaimTemplates", [CLAIM, CLAIM]), "two have one name"),
    "a claim template with our volume's name": (
        edit("spec.ps.volumeClaimTemplates", [{**CLAIM, "metadata": {"name": "pstraining-run"}}]),
        "are the operator's volumes",
    ),
    "hot standbys beside a ring": (
        edits(edit("spec.training", {"mode": "Hybrid"}), edit("spec.ps.standby", {"mode": "Hot"})),
        "spec.ps.standby.mode Hot is the runtime's: set spec.training.mode to Sync or Async",
    ),
    "hot standbys of a program of one's own": (
        edits(edit("spec.training", {}), edit("spec.ps.standby", {"mode": "Hot"})),
        "set spec.training.mode to Sync or Async",
    ),
    "too many hot standbys": (
        edit("spec.ps.standby", {"mode": "Hot", "replicasPerShard": 3}),
        "a shard has one or two hot standbys",
    ),
    "hot standbys that are thrown away": (
        edit("spec.ps", {"replicas": 1, "onChiefRestart": "Restart", "standby": {"mode": "Hot"}}),
        "throws away what hot standbys keep",
    ),
    "a server of no kind": (edit("spec.ps.server", "None"), "spec.ps.server"),
    "an own PS template without a command": (
        edit("spec.ps.template", {"spec": {"containers": [{"name": "x", "image": "i"}]}}),
        "spec.ps.server: Builtin",
    ),
}


@pytest.mark.parametrize("name", AT_APPLY)
def test_refused_at_apply(kube: Kube, crd: None, namespace: str, name: str) -> None:
    change, words = AT_APPLY[name]
    job = simple(namespace)
    kube.request("POST", kube.path("PSTrainingJob", namespace) + "?fieldValidation=Strict&dryRun=All", job)
    change(job)
    with pytest.raises(ApiError) as refused:
        kube.create(job)
    assert refused.value.status in (400, 422)
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ps": {"server": "Builtin"}}, "spec.ps.server"),
        ({"worker": {"template": {"metadata": {"labels": {"a": "b"}}}}}, "spec.worker.template"),
        ({"worker": {"addressing": "ClusterIP"}}, "spec.worker.addressing"),
        ({"chief": {"enabled": False}}, "spec.chief.enabled"),
        ({"training": {"steps": 7}}, "spec.training"),
        ({"checkpoint": {"volume": {"emptyDir": {}}}}, "spec.checkpoint"),
    ],
)
def test_an_immutable_field(kube: Kube, crd: None, namespace: str, change: Object, field: str) -> None:
    kube.create(simple(namespace))
    with pytest.raises(ApiError) as refused:
        kube.merge("PSTrainingJob", namespace, "bad", {"spec": change})
    assert f"{field} is immutable while the job runs" in refused.value.message
    kube.merge("PSTrainingJob", namespace, "bad", {"spec": {"runPolicy": {"suspend": True}}})
    kube.merge("PSTrainingJob", namespace, "bad", {"spec": change})


def test_who_votes_on_hot_standbys_is_immutable_too(kube: Kube, crd: None, namespace: str) -> None:
    job = simple(namespace)
    edit("spec.training", {"mode": "Sync"})(job)
    edit("spec.ps.standby", {"mode": "Hot"})(job)
    kube.create(job)
    number = job["spec"]["worker"]["replicas"]
    for change in ({"replicas": number + 1}, {"replicas": number + 1, "minReplicas": number + 1}):
        with pytest.raises(ApiError) as refused:
            kube.merge("PSTrainingJob", namespace, "bad", {"spec": {"worker": change}})
        assert "set minReplicas before the job runs" in refused.value.message
    kube.merge("PSTrainingJob", namespace, "bad", {"spec": {"worker": {"minReplicas": number}}})
    kube.merge("PSTrainingJob", namespace, "bad", {"spec": {"worker": {"replicas": number + 1}}})


def told(kube: Kube, namespace: str, condition: str, words: str) -> Object:
    """Wait until the condition and an event both say so; the condition."""

    def both() -> Object | None:
        found = job_condition(kube.get("PSTrainingJob", namespace, "bad"), condition)
        events = [e.get("note", "") for e in kube.list("Event", namespace) if e["regarding"]["kind"] == "PSTrainingJob"]
        return found if words in found["message"] and any(words in e for e in events) else None

    return wait_for(both, f"{condition} and an event say {words!r}: {kube.get('PSTrainingJob', namespace, 'bad')}", 90)


def test_a_typo_in_the_template(kube: Kube, own_operator: OperatorProcess, namespace: str) -> None:
    own_operator.start()
    job = simple(namespace)
    container(job)["imagePullPolcy"] = "Never"
    kube.create(job)
    told(kube, namespace, "InvalidTemplate", "imagePullPolcy")
    assert not kube.list("Deployment", namespace), "nothing was created"
    # The user mends it in place: a refused template is not yet immutable.
    del container(job)["imagePullPolcy"]
    patch = [{"op": "replace", "path": "/spec/worker/template", "value": job["spec"]["worker"]["template"]}]
    kube.request("PATCH", kube.path("PSTrainingJob", namespace, "bad"), patch, "application/json-patch+json")
    wait_for(lambda: kube.list("Deployment", namespace), "the mended job starts")


def test_an_image_that_cannot_be_pulled(kube: Kube, own_operator: OperatorProcess, namespace: str) -> None:
    own_operator.start()
    job = simple(namespace)
    container(job).update(image="docker.io/library/no-such-image:1", imagePullPolicy="Never")
    kube.create(job)
    found = told(kube, namespace, "Running", "no-such-image:1")
    assert found["reason"] == "ImagePullFailed"
    assert "Pod bad-" in found["message"]


def test_a_ps_that_never_starts(kube: Kube, own_operator: OperatorProcess, namespace: str) -> None:
    own_operator.start()
    job = simple(namespace)
    broken = copy.deepcopy(SIMPLE)
    broken["spec"]["containers"][0]["command"] = ["sh", "-c", "echo no such option >&2; exit 4"]
    job["spec"] |= {"ps": {"replicas": 1, "template": broken}, "runPolicy": {"backoffLimit": 1}}
    kube.create(job)
    found = told(kube, namespace, "Failed", "ps 0 failed")
    assert found["reason"] == "BackoffLimitExceeded"
    assert "no such option" in found["message"] or "exit code 4" in found["message"]
    status = (kube.get("PSTrainingJob", namespace, "bad") or {})["status"]
    assert status["ps"]["lastFailure"]["pod"] == "bad-ps-0"


def test_a_pod_that_fits_nowhere(kube: Kube, own_operator: OperatorProcess, namespace: str) -> None:
    own_operator.start()
    job = simple(namespace)
    container(job)["resources"] = {"requests": {"cpu": "900"}}
    kube.create(job)
    found = told(kube, namespace, "Running", "cannot be scheduled")
    assert found["reason"] == "Unschedulable"


def test_no_checkpoint_volume_is_told(kube: Kube, own_operator: OperatorProcess, namespace: str) -> None:
    own_operator.start()
    kube.create(simple(namespace))
    told(kube, namespace, "CheckpointNotDurable", "spec.checkpoint is not set")


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PSTRAINING_WORKERS", "many"), ("PSTRAINING_LOG_LEVEL", "LOUD"), ("PSTRAINING_WORKRES", "4")],
)
def test_a_wrong_setting_of_the_operator_is_named(
    kube: Kube, own_operator: OperatorProcess, variable: str, value: str
) -> None:
    own_operator.start(wait=False, settings={variable: value})
    assert own_operator.process is not None
    assert own_operator.process.wait(30) == 2
    assert variable in own_operator.log.read_text()
