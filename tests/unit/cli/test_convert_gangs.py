"""The conversion of a TFJob's gang: the scheduler that places it, its size, and its priority."""

from typing import Any

import pytest

from pstraining.cli.tfjob.notes import NoteKind
from tests.support.tfjobs import replica, tfjob
from tests.unit.cli.test_convert_fields import notes, spec

PLUGINS, VOLCANO = {"gang": "SchedulerPlugins"}, {"gang": "Volcano"}
LEAST, TIMEOUT = "minAvailable", "scheduleTimeoutSeconds"


@pytest.mark.parametrize(
    ("scheduler", "gang"), [("volcano", "Volcano"), ("scheduler-plugins-scheduler", "SchedulerPlugins")]
)
def test_the_templates_scheduler_selects_the_gang_provider(scheduler: str, gang: str) -> None:
    one = replica(2)
    one["template"]["spec"]["schedulerName"] = scheduler
    job = tfjob({"runPolicy": {"backoffLimit": 3, "cleanPodPolicy": "All", "schedulingPolicy": {LEAST: 3}}}, Worker=one)
    assert spec(job)["runPolicy"]["schedulingPolicy"] == {"gang": gang}
    assert spec(job)["worker"]["template"]["spec"]["schedulerName"] == scheduler


@pytest.mark.parametrize(
    ("scheduler", "policy", "made", "path"),
    [
        ("default-scheduler", {LEAST: 3}, PLUGINS, LEAST),
        ("default-scheduler", {TIMEOUT: 3}, {**PLUGINS, "timeoutSeconds": 3}, TIMEOUT),
        ("default-scheduler", {"queue": "q"}, {**VOLCANO, "queue": "q"}, "queue"),
        ("scheduler-plugins-scheduler", {"queue": "q"}, PLUGINS, "queue"),
        ("volcano", {TIMEOUT: 3}, VOLCANO, TIMEOUT),
        ("volcano", {"queue": "q"}, {**VOLCANO, "queue": "q"}, None),
    ],
)
def test_no_gang_is_silently_given_to_a_scheduler_that_does_not_place_it(
    scheduler: str, policy: dict[str, Any], made: dict[str, Any], path: str | None
) -> None:
    one = replica(2)
    one["template"]["spec"]["schedulerName"] = scheduler
    job = tfjob({"runPolicy": {"schedulingPolicy": policy}}, PS=one, Worker=one)
    assert spec(job)["runPolicy"]["schedulingPolicy"] == made
    assert (f"spec.runPolicy.schedulingPolicy.{path}" in [where for where, _ in notes(job)]) is (path is not None)


def test_a_priority_of_templates_applies_as_in_tfjob() -> None:
    one = replica(2)
    one["template"]["spec"]["priorityClassName"] = "low"
    assert notes(tfjob({"runPolicy": {"schedulingPolicy": {"priorityClass": "high"}}}, PS=one, Worker=one)) == [
        ("spec.tfReplicaSpecs.PS.template", NoteKind.CHANGED)
    ]


def test_a_gang_whose_job_may_lose_workers() -> None:
    policy = {"backoffLimit": 3, "cleanPodPolicy": "All", "schedulingPolicy": {"queue": "q", LEAST: 3}}
    job = tfjob({"runPolicy": policy, "enableDynamicWorker": True}, Worker=replica(4))
    assert spec(job)["worker"]["minReplicas"] == 1
    assert spec(job)["runPolicy"]["schedulingPolicy"] == {**VOLCANO, "queue": "q", LEAST: 3}


def test_a_job_of_multikueue_without_a_queue_is_noted() -> None:
    """Nobody would run it, and `plan` and `submit` would say nothing."""
    field = "spec.runPolicy.managedBy"
    job = tfjob({"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}})
    assert (field, NoteKind.DIFFERENT) in notes(job)
    job["metadata"] |= {"labels": {"kueue.x-k8s.io/queue-name": "team"}}
    assert (field, NoteKind.DIFFERENT) not in notes(job)
