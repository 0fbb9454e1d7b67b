"""The claim of a job's checkpoints on a real cluster is kept or deleted with the job, as retainPolicy says.

No pod of these jobs is ever scheduled: claims are created, owned and deleted by the control plane and the operator. The
jobs end by their deadline.
"""

from typing import Any

import pytest

from tests.support.kube import Kube, Object, job_condition, wait_for
from tests.support.operator_process import OperatorProcess

pytestmark = pytest.mark.cluster

SPEC = {"storageClassName": "", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
CLAIM = "job-checkpoint"


def create(kube: Kube, namespace: str, policy: str | None = None, *, ends: bool = False) -> Object:
    container = {"name": "tensorflow", "image": "img:1", "command": ["python"]}
    nowhere = {"nodeSelector": {"pstraining.dev/no-such-node": "true"}, "containers": [container]}
    checkpoint: dict[str, Any] = {"volumeClaimTemplate": SPEC, **({"retainPolicy": policy} if policy else {})}
    spec = {
        "ps": {"replicas": 1},
        "worker": {"replicas": 1, "template": {"spec": nowhere}},
        "checkpoint": checkpoint,
        "runPolicy": {"activeDeadlineSeconds": 1} if ends else {},
    }
    metadata = {"name": "job", "namespace": namespace}
    return kube.create(
        {"apiVersion": "pstraining.dev/v1alpha1", "kind": "PSTrainingJob", "metadata": metadata, "spec": spec}
    )


def job(kube: Kube, namespace: str) -> Object | None:
    return kube.get("PSTrainingJob", namespace, "job")


def claim(kube: Kube, namespace: str) -> Object | None:
    """Return the claim's metadata; None also while it is being deleted."""
    found = kube.get("PersistentVolumeClaim", namespace, CLAIM)
    return None if found is None or found["metadata"].get("deletionTimestamp") else found["metadata"]


def owners(kube: Kube, namespace: str) -> list[str]:
    found = wait_for(lambda: claim(kube, namespace), "the job has its claim")
    return [o["uid"] for o in found.get("ownerReferences") or ()]


def set_policy(kube: Kube, namespace: str, policy: str) -> None:
    kube.merge("PSTrainingJob", namespace, "job", {"spec": {"checkpoint": {"retainPolicy": policy}}})


def expire(kube: Kube, namespace: str) -> None:
    """Let the finished job expire at once."""
    kube.merge("PSTrainingJob", namespace, "job", {"spec": {"runPolicy": {"ttlSecondsAfterFinished": 0}}})


def identity(found: Object | None) -> Object:
    """Return the parts of a claim that the operator writes; the control plane writes the others."""
    assert found is not None, "the claim was deleted"
    owners = [o["uid"] for o in found.get("ownerReferences") or ()]
    return {"uid": found["uid"], "labels": found.get("labels"), "owners": owners}


def with_probe(kube: Kube, made: Object) -> None:
    """Create an object that the job owns like its children: its collection shows that all owned objects are
    collected.
    """
    metadata = made["metadata"]
    owner = {f: made[f] for f in ("apiVersion", "kind")} | {f: metadata[f] for f in ("name", "uid")}
    probe = {"name": "probe", "namespace": metadata["namespace"], "ownerReferences": [owner]}
    kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": probe})


def is_collected(kube: Kube, namespace: str) -> bool:
    kinds = ("StatefulSet", "Deployment", "Service")
    left = [o for kind in kinds for o in kube.list(kind, namespace, "pstraining.dev/job-name=job")]
    return job(kube, namespace) is None and kube.get("ConfigMap", namespace, "probe") is None and not left


def has_ended(kube: Kube, namespace: str) -> bool:
    found = job(kube, namespace)
    return bool(found and (found.get("status") or {}).get("phase") == "Failed")


def test_a_claim_outlives_a_job_that_expires_and_serves_the_next_one(
    kube: Kube, own_operator: OperatorProcess, namespace: str
) -> None:
    made = create(kube, namespace, ends=True)
    with_probe(kube, made)
    own_operator.start()
    wait_for(lambda: has_ended(kube, namespace), "the job ends")
    before = identity(claim(kube, namespace))
    assert before["owners"] == []
    assert before["labels"]["pstraining.dev/job-uid"] == made["metadata"]["uid"]
    expire(kube, namespace)
    wait_for(lambda: is_collected(kube, namespace), "the job expires, and all that it owned is collected")
    assert identity(claim(kube, namespace)) == before

    create(kube, namespace, "Delete")

    def is_created() -> bool:
        found = job(kube, namespace)
        return bool(found and found.get("status") and job_condition(found, "Created")["status"] == "True")

    wait_for(is_created, "the next job of the name uses the claim")
    kube.delete("PSTrainingJob", namespace, "job")
    wait_for(lambda: is_collected(kube, namespace), "it is deleted")
    assert identity(claim(kube, namespace)) == before, "the next job never owned it"


def test_a_claim_goes_with_its_job(kube: Kube, own_operator: OperatorProcess, namespace: str) -> None:
    made = create(kube, namespace, "Delete", ends=True)
    own_operator.start()
    wait_for(lambda: has_ended(kube, namespace), "the job ends")
    assert owners(kube, namespace) == [made["metadata"]["uid"]]
    expire(kube, namespace)
    wait_for(lambda: job(kube, namespace) is None, "the job expires")
    wait_for(lambda: claim(kube, namespace) is None, "its claim is collected")


def test_a_claim_is_kept_after_all_once_its_job_has_ended(
    kube: Kube, own_operator: OperatorProcess, namespace: str
) -> None:
    made = create(kube, namespace, "Delete", ends=True)
    with_probe(kube, made)
    own_operator.start()
    wait_for(lambda: has_ended(kube, namespace), "the job ends")
    assert owners(kube, namespace) == [made["metadata"]["uid"]]
    set_policy(kube, namespace, "Retain")
    wait_for(lambda: owners(kube, namespace) == [], "the job lets the claim go")
    kube.delete("PSTrainingJob", namespace, "job")
    wait_for(lambda: is_collected(kube, namespace), "all that the job owned is collected")
    assert claim(kube, namespace) is not None


def test_the_owner_follows_the_policy_of_a_job_that_runs(
    kube: Kube, own_operator: OperatorProcess, namespace: str
) -> None:
    made = create(kube, namespace)
    own_operator.start()
    assert owners(kube, namespace) == []
    for policy, expected in (("Delete", [made["metadata"]["uid"]]), ("Retain", [])) * 2:
        set_policy(kube, namespace, policy)
        wait_for(lambda e=expected: owners(kube, namespace) == e, f"the claim is as {policy} demands")  # type: ignore[misc]
    uid = (claim(kube, namespace) or {})["uid"]
    own_operator.kill()
    set_policy(kube, namespace, "Delete")
    own_operator.start()
    wait_for(lambda: owners(kube, namespace) == [made["metadata"]["uid"]], "so does the next operator")
    assert (claim(kube, namespace) or {})["uid"] == uid


def test_a_claim_of_a_user_is_used_and_left_alone(kube: Kube, own_operator: OperatorProcess, namespace: str) -> None:
    metadata = {"name": CLAIM, "namespace": namespace}
    theirs = kube.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": SPEC})
    made = create(kube, namespace, "Delete", ends=True)
    with_probe(kube, made)
    own_operator.start()
    wait_for(lambda: has_ended(kube, namespace), "the job is created, and ends")
    conditions = {c["type"]: c for c in (job(kube, namespace) or {})["status"]["conditions"]}
    assert "NameConflict" not in conditions
    kube.delete("PSTrainingJob", namespace, "job")
    wait_for(lambda: is_collected(kube, namespace), "all that the job owned is collected")
    assert identity(claim(kube, namespace)) == identity(theirs["metadata"])
