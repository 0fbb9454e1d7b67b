"""The parameter servers' claims on a real cluster: their owners, and which claims are kept or deleted.

No pod of these jobs is ever scheduled: only the control plane creates and deletes claims.
"""

from typing import Any

import pytest

from tests.support.kube import Kube, Object, wait_for
from tests.support.operator_process import OperatorProcess

pytestmark = pytest.mark.cluster

SPEC = {"storageClassName": "", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
SELECTOR = "pstraining.dev/job-name=job"


def create(kube: Kube, namespace: str, **policy: str) -> str:
    container = {"name": "tensorflow", "image": "img:1", "command": ["python"]}
    mounting = {**container, "volumeMounts": [{"name": "shard", "mountPath": "/shard"}]}
    nowhere = {"nodeSelector": {"pstraining.dev/no-such-node": "true"}}
    ps: dict[str, Any] = {
        "replicas": 3,
        "template": {"spec": {**nowhere, "containers": [mounting]}},
        "volumeClaimTemplates": [{"metadata": {"name": "shard"}, "spec": SPEC}],
        "persistentVolumeClaimRetentionPolicy": policy,
    }
    made = kube.create(
        {
            "apiVersion": "pstraining.dev/v1alpha1",
            "kind": "PSTrainingJob",
            "metadata": {"name": "job", "namespace": namespace},
            "spec": {"ps": ps, "worker": {"replicas": 1, "template": {"spec": {**nowhere, "containers": [container]}}}},
        }
    )
    return str(made["metadata"]["uid"])


def claims(kube: Kube, namespace: str) -> dict[str, Object]:
    found = kube.list("PersistentVolumeClaim", namespace, SELECTOR)
    return {c["metadata"]["name"]: c["metadata"] for c in found if not c["metadata"].get("deletionTimestamp")}


def change(kube: Kube, namespace: str, spec: Object) -> None:
    kube.merge("PSTrainingJob", namespace, "job", {"spec": spec})


def stateful_set(kube: Kube, namespace: str) -> Object | None:
    return kube.get("StatefulSet", namespace, "job-ps")


def test_claims_are_deleted_with_their_shard_and_their_job(
    kube: Kube, own_operator: OperatorProcess, namespace: str
) -> None:
    own_operator.start()
    uid = create(kube, namespace, whenDeleted="Delete", whenScaled="Delete")
    wait_for(lambda: len(claims(kube, namespace)) == 3, "every PS has its claim")
    before = claims(kube, namespace)
    for metadata in before.values():
        assert [o["uid"] for o in metadata["ownerReferences"]] == [uid], "the template's owner is copied"

    change(kube, namespace, {"runPolicy": {"suspend": True}})
    wait_for(lambda: stateful_set(kube, namespace) is None, "the StatefulSet is deleted")
    change(kube, namespace, {"ps": {"replicas": 2}})
    change(kube, namespace, {"runPolicy": {"suspend": False}})
    wait_for(lambda: len(claims(kube, namespace)) == 2, "the claim of shard 2 is deleted")
    after = claims(kube, namespace)
    assert after.keys() == {"shard-job-ps-0", "shard-job-ps-1"}
    assert all(after[n]["uid"] == before[n]["uid"] for n in after), "the others are the same"

    change(kube, namespace, {"ps": {"replicas": 1}})
    wait_for(lambda: claims(kube, namespace).keys() == {"shard-job-ps-0"}, "also without a suspension")

    kube.delete("PSTrainingJob", namespace, "job")
    wait_for(lambda: not kube.list("PersistentVolumeClaim", namespace), "the claims go with the job")


def test_claims_are_retained(kube: Kube, own_operator: OperatorProcess, namespace: str) -> None:
    own_operator.start()
    create(kube, namespace)
    wait_for(lambda: len(claims(kube, namespace)) == 3, "every PS has its claim")
    change(kube, namespace, {"ps": {"replicas": 1}})

    def recreated() -> bool:
        found = stateful_set(kube, namespace)
        return bool(found) and found["spec"]["replicas"] == 1  # type: ignore[index]

    wait_for(recreated, "the StatefulSet is created again")
    kube.delete("PSTrainingJob", namespace, "job")
    wait_for(lambda: stateful_set(kube, namespace) is None, "the job's children go")
    assert len(claims(kube, namespace)) == 3
