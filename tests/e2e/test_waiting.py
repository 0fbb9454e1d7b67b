"""Jobs that cannot run report the cause in the cluster's own words. All of them wait at the same time."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.kube import Kube, Object, job_condition, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.scripted_program import Puppet, template
from tests.support.soak_marks import ALL

pytestmark = pytest.mark.cluster

LATE = 60 + 60
"""Seconds until a job reports that it waits for an unknown reason; half of it for busy cores."""


@pytest.mark.minutes
def test_the_reason_why_a_job_waits_is_reported(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path
) -> None:
    own_operator.start()
    made = {
        name: Puppet.make(kube, namespace, name, shared, **change(template(name)))
        for name, (change, _, _) in TRIED.items()
    }
    for name, (_, reason, words) in TRIED.items():
        wait_for(partial(reported, made[name], reason, words), f"{name}: {reason}, {words!r}", LATE)


def test_an_exceeded_quota_is_reported_and_the_job_runs_once_it_is_raised(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path
) -> None:
    own_operator.start()
    quota: Object = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    kube.request("POST", path, quota | {"spec": {"hard": {"pods": "1"}}})
    tight = Puppet.make(kube, namespace, "tight", shared, workers=1)
    wait_for(
        lambda: reported(tight, "QuotaExceeded", "exceeded quota: few, requested: pods=1;"), "the quota is reported", 60
    )
    events = [e for e in kube.list("Event", namespace) if e["reason"] == "QuotaExceeded"]
    assert len(events) <= 1
    kube.request("PATCH", f"{path}/few", {"spec": {"hard": {"pods": "9"}}}, "application/merge-patch+json")
    # Kubernetes retries at growing intervals; the deletion of one of our pods triggers a retry at once.
    tight.wait_phase("Running", 180)
    assert job_condition(tight.job(), "Running")["reason"] == "Training"


def reported(puppet: Puppet, reason: str, words: str) -> Object | None:
    found = job_condition(puppet.job(), "Running")
    return found if (found["reason"], words in found["message"]) == (reason, True) else None


def with_init(made: Object) -> Object:
    failing = {"name": "fetch", "image": made["spec"]["containers"][0]["image"], "command": ["sh", "-c", "exit 4"]}
    made["spec"]["initContainers"] = [failing]
    # The chief's attempts follow each other within seconds; the job must not fail before the test reads it.
    return {"worker": {"replicas": 1, "template": made}, "runPolicy": {"backoffLimit": 1000}}


def refused(made: Object) -> Object:
    """Return a job with a hostPath volume, which its namespace rejects, because it enforces `restricted`."""
    made["spec"]["volumes"].append({"name": "host", "hostPath": {"path": "/"}})
    return {"worker": {"replicas": 1, "template": made}}


def elsewhere(made: Object) -> Object:
    made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "nowhere"}
    return {"worker": {"replicas": 1, "template": made}}


def endless(made: Object) -> Object:
    slow = {"name": "fetch", "image": made["spec"]["containers"][0]["image"], "command": ["sleep", "600"]}
    made["spec"]["initContainers"] = [slow]
    return {"worker": {"replicas": 1, "template": made}}


def nameless(made: Object) -> Object:
    """Return a job without DNS: names inside the cluster do not resolve, so the container runs and its program never
    starts.
    """
    made["spec"] |= {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}}
    return {"worker": {"replicas": 1, "template": made}}


def unmountable(made: Object) -> Object:
    """Return a job whose volume needs a missing Secret, which only an event of the pod reports."""
    made["spec"]["volumes"].append({"name": "keys", "secret": {"secretName": "absent"}})
    made["spec"]["containers"][0].setdefault("volumeMounts", []).append({"name": "keys", "mountPath": "/keys"})
    return {"worker": {"replicas": 1, "template": made}}


CASES: dict[str, tuple[Callable[[Object], Object], str, str]] = {
    "init": (with_init, "InitContainerFailed", "its init container fetch keeps failing with exit code 4"),
    "refused": (refused, "PodsRefused", 'StatefulSet refused-ps can have no pod: violates PodSecurity "restricted'),
    "elsewhere": (elsewhere, "Unschedulable", "Pod elsewhere-ps-0 cannot be scheduled: 0/"),
    "endless": (endless, "StillWaiting", "Pod endless-ps-0 has not come up for a minute (PodInitializing)"),
    "unmountable": (unmountable, "VolumeNotMounted", 'secret "absent" not found'),
    "nameless": (nameless, "StillWaiting", "has not come up for a minute (its launcher waits"),
}
TRIED = {name: case for name, case in CASES.items() if ALL or name in ("init", "unmountable")}
"""`make test` tries the causes that the kubelet reports. A node that does not exist is a cause in
tests/controlplane/test_operator_core.py; tests/unit/core/test_diagnosis.py has all causes.
"""
