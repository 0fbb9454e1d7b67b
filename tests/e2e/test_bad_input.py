"""Every fault of the input is reported once, with the field's or the pod's name; at apply where the API server can
detect it.
"""

import copy
from collections.abc import Iterator

import pytest

from tests.support.kube import ApiError, Kube, Object, job_condition, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.refused import REFUSED, SIMPLE, container, edit, simple
from tests.support.soak_marks import in_all

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def one_namespace(kube: Kube) -> Iterator[str]:
    """Return a namespace for all jobs that are rejected: its creation and deletion cost more than such a test."""
    with kube.namespace("e2e") as name:
        yield name


@pytest.fixture
def stored(kube: Kube, crd: None, one_namespace: str) -> Iterator[str]:
    """Return a namespace in which a test may create the job `bad`, unobserved by any operator."""
    yield one_namespace
    kube.delete("PSTrainingJob", one_namespace, "bad")
    wait_for(lambda: kube.get("PSTrainingJob", one_namespace, "bad") is None, "the job is gone")


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_jobs_are_rejected_at_apply(kube: Kube, crd: None, one_namespace: str, name: str) -> None:
    change, words = REFUSED[name]
    job = simple(one_namespace)
    kube.request("POST", kube.path("PSTrainingJob", one_namespace) + "?fieldValidation=Strict&dryRun=All", job)
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
def test_an_immutable_field(kube: Kube, stored: str, change: Object, field: str) -> None:
    namespace = stored
    kube.create(simple(namespace))
    with pytest.raises(ApiError) as refused:
        kube.merge("PSTrainingJob", namespace, "bad", {"spec": change})
    assert f"{field} is immutable while the job runs" in refused.value.message
    kube.merge("PSTrainingJob", namespace, "bad", {"spec": {"runPolicy": {"suspend": True}}})
    kube.merge("PSTrainingJob", namespace, "bad", {"spec": change})


def test_the_voters_of_hot_standbys_are_immutable(kube: Kube, stored: str) -> None:
    namespace = stored
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


def reported(kube: Kube, namespace: str, condition: str, words: str) -> Object:
    """Wait until the condition and an event both report it; return the condition."""

    def both() -> Object | None:
        found = job_condition(kube.get("PSTrainingJob", namespace, "bad"), condition)
        events = [e.get("note", "") for e in kube.list("Event", namespace) if e["regarding"]["kind"] == "PSTrainingJob"]
        return found if words in found["message"] and any(words in e for e in events) else None

    return wait_for(
        both, f"{condition} and an event report {words!r}: {kube.get('PSTrainingJob', namespace, 'bad')}", 90
    )


def test_a_typo_in_the_template(kube: Kube, own_operator: OperatorProcess, namespace: str) -> None:
    own_operator.start()
    job = simple(namespace, workers=1)
    container(job)["imagePullPolcy"] = "Never"
    kube.create(job)
    reported(kube, namespace, "InvalidTemplate", "imagePullPolcy")
    assert not kube.list("Deployment", namespace), "nothing was created"
    # The user corrects it in place, because a rejected template is not immutable yet.
    del container(job)["imagePullPolcy"]
    patch = [{"op": "replace", "path": "/spec/worker/template", "value": job["spec"]["worker"]["template"]}]
    kube.request("PATCH", kube.path("PSTrainingJob", namespace, "bad"), patch, "application/json-patch+json")
    wait_for(lambda: kube.list("Deployment", namespace), "the mended job starts")


def test_an_image_that_cannot_be_pulled(kube: Kube, own_operator: OperatorProcess, namespace: str) -> None:
    own_operator.start()
    job = simple(namespace, workers=1)
    container(job).update(image="docker.io/library/no-such-image:1", imagePullPolicy="Never")
    kube.create(job)
    found = reported(kube, namespace, "Running", "no-such-image:1")
    assert found["reason"] == "ImagePullFailed"
    assert "Pod bad-" in found["message"]


def test_a_ps_that_never_starts(kube: Kube, own_operator: OperatorProcess, namespace: str) -> None:
    own_operator.start()
    job = simple(namespace, workers=1)
    broken = copy.deepcopy(SIMPLE)
    broken["spec"]["containers"][0]["command"] = ["sh", "-c", "echo no such option >&2; exit 4"]
    job["spec"] |= {"ps": {"replicas": 1, "template": broken}, "runPolicy": {"backoffLimit": 1}}
    kube.create(job)
    found = reported(kube, namespace, "Failed", "ps 0 failed")
    assert found["reason"] == "BackoffLimitExceeded"
    assert "no such option" in found["message"] or "exit code 4" in found["message"]
    status = (kube.get("PSTrainingJob", namespace, "bad") or {})["status"]
    assert status["ps"]["lastFailure"]["pod"] == "bad-ps-0"


@in_all("tests/controlplane/test_operator_core.py::test_a_restart_writes_nothing")  # the scheduler rejects its pods
def test_a_pod_that_fits_no_node(kube: Kube, own_operator: OperatorProcess, namespace: str) -> None:
    own_operator.start()
    job = simple(namespace, workers=1)
    container(job)["resources"] = {"requests": {"cpu": "900"}}
    kube.create(job)
    found = reported(kube, namespace, "Running", "cannot be scheduled")
    assert found["reason"] == "Unschedulable"


@in_all("tests/e2e/test_lifecycle.py::test_the_writes_of_a_whole_life")  # its events
def test_a_missing_checkpoint_volume_is_reported(kube: Kube, own_operator: OperatorProcess, namespace: str) -> None:
    own_operator.start()
    kube.create(simple(namespace, workers=1))
    reported(kube, namespace, "CheckpointNotDurable", "spec.checkpoint is not set")


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PSTRAINING_WORKERS", "many"), ("PSTRAINING_LOG_LEVEL", "LOUD"), ("PSTRAINING_WORKRES", "4")],
)
def test_an_invalid_setting_of_the_operator_is_named(
    kube: Kube, own_operator: OperatorProcess, variable: str, value: str
) -> None:
    own_operator.start(wait=False, settings={variable: value})
    assert own_operator.process is not None
    assert own_operator.process.wait(120) == 2
    assert variable in own_operator.log.read_text()
