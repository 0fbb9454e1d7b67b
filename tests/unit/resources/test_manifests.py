"""Every rendered manifest passes the client's strict models, and the cluster map is TensorFlow's."""

import json
from typing import Any

import pytest
from kubernetes.client import (
    V1ConfigMap,
    V1Deployment,
    V1Job,
    V1NetworkPolicy,
    V1PersistentVolumeClaim,
    V1Service,
    V1StatefulSet,
)

from pstraining.api import contract
from pstraining.core import desired_state
from pstraining.resources import cluster_map, services, workloads
from pstraining.resources.launcher import LauncherMap
from tests.support.builders import LAUNCHER, job, typed

MODELS: dict[str, Any] = {
    "ConfigMap": V1ConfigMap,
    "Deployment": V1Deployment,
    "Job": V1Job,
    "NetworkPolicy": V1NetworkPolicy,
    "PersistentVolumeClaim": V1PersistentVolumeClaim,
    "Service": V1Service,
    "StatefulSet": V1StatefulSet,
}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


@pytest.mark.parametrize("addressing", ["Headless", "ClusterIP"])
def test_every_manifest_is_valid_and_owned(addressing: str) -> None:
    checkpoint = {"volumeClaimTemplate": CLAIM, "retainPolicy": "Delete"}
    spec = {"worker": {"addressing": addressing}, "checkpoint": checkpoint}
    made = typed(job(ps=2, workers=3, spec=spec))
    chief = workloads.build_attempt(made, "chief", 1, LauncherMap("l"))
    manifests = [*desired_state.children(made, LauncherMap("digits-launcher-v1"), LAUNCHER), chief]
    kinds = [m["kind"] for m in manifests]
    assert kinds.count("Deployment") == 3
    assert kinds.count("Service") == 1 + 2 + (3 if addressing == "ClusterIP" else 0)
    assert kinds.count("PersistentVolumeClaim") == 1
    for manifest in manifests:
        MODELS[manifest["kind"]].model_validate(manifest)
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert owner["uid"] == made.metadata.uid
        assert owner["controller"] is True


GITOPS = {
    "app.kubernetes.io/instance": "shop",
    "argocd.argoproj.io/instance": "shop",
    "argocd.argoproj.io/tracking-id": "shop:v1:PersistentVolumeClaim",
    "kustomize.toolkit.fluxcd.io/name": "shop",
    "helm.toolkit.fluxcd.io/name": "shop",
}


def test_no_object_without_an_owner_is_labelled_as_an_applications() -> None:
    """Argo CD and Flux delete objects with their mark that have no owner and are not in Git."""
    metadata = {"name": "shard", "labels": {**GITOPS, "team": "a"}, "annotations": {**GITOPS, "note": "b"}}
    spec = {
        "ps": {"volumeClaimTemplates": [{"metadata": metadata, "spec": CLAIM}]},
        "evaluator": {"enabled": True},
        "checkpoint": {"volumeClaimTemplate": CLAIM},
    }
    manifest = job(spec=spec)
    manifest["metadata"] |= {"labels": GITOPS, "annotations": GITOPS}
    manifest["spec"]["worker"]["template"] |= {"metadata": {"labels": GITOPS, "annotations": GITOPS}}
    made = typed(manifest)
    attempts = [workloads.build_attempt(made, role, 1, LauncherMap("l")) for role in ("chief", "evaluator")]
    for rendered in (*desired_state.children(made, LauncherMap("l"), LAUNCHER), *attempts):
        if rendered["kind"] == "StatefulSet":
            (claim,) = rendered["spec"]["volumeClaimTemplates"]
            marks = claim["metadata"]["labels"].keys() | claim["metadata"]["annotations"].keys()
            assert not marks & GITOPS.keys()
            assert {"team", "note"} <= marks
        if rendered["kind"] == "PersistentVolumeClaim":
            assert not rendered["metadata"].keys() & {"ownerReferences", "annotations"}
            assert not rendered["metadata"]["labels"].keys() & GITOPS.keys()
        else:
            assert rendered["metadata"]["ownerReferences"]


def test_the_cluster_map() -> None:
    training = {
        "mode": "Sync",
        "steps": 5,
        "epochs": 3,
        "accumulationSteps": 4,
        "localSteps": 1,
        "minShardBytes": 1024,
        "compression": {"push": "Int8", "pull": "OneBit", "errorFeedback": False, "topKPermille": 5},
        "maxStaleness": 9,
        "overlapCommunication": True,
        "backupWorkers": 1,
        "orderedSums": False,
        "nonFinite": "Skip",
    }
    spec = {"checkpoint": {"volume": {"emptyDir": {}}}, "training": training}
    document = json.loads(cluster_map.document(typed(job(ps=2, workers=2, spec=spec))))
    assert document == {
        "job": "digits",
        "namespace": "default",
        "cluster": {
            "chief": ["digits-chief.digits-hs:2222"],
            "worker": ["digits-worker-0.digits-hs:2222", "digits-worker-1.digits-hs:2222"],
            "ps": ["digits-ps-0:2222", "digits-ps-1:2222"],
        },
        "term": 1,
        "training": training,
        "checkpoint": {"path": "/checkpoints", "keep": 3},
    }


def test_without_a_chief_the_map_has_none() -> None:
    made = typed(job(spec={"chief": {"enabled": False}, "worker": {"addressing": "ClusterIP"}}))
    assert cluster_map.addresses(made) == {
        "worker": ["digits-worker-0:2222", "digits-worker-1:2222"],
        "ps": ["digits-ps-0:2222"],
    }


def test_every_task_answers_at_its_address_what_its_launcher_serves() -> None:
    made = typed(job(spec={"worker": {"addressing": "ClusterIP"}, "autoscaling": {"mode": "Recommend"}}))
    hosts = {address.partition(":")[0].partition(".")[0] for a in cluster_map.addresses(made).values() for address in a}
    served = {s["metadata"]["name"]: [p["port"] for p in s["spec"]["ports"]] for s in services.build_all(made, {})}
    assert {"digits-ps-0", "digits-worker-0"} <= hosts & served.keys()
    assert all(contract.STATUS_PORT in ports for ports in served.values()), "the chief's launcher asks for their usage"


def test_the_longest_names_fit() -> None:
    made = typed(job("a" * 40, workers=1))
    for manifest in desired_state.children(made, LauncherMap(f"{'a' * 40}-launcher-0123456789"), LAUNCHER):
        assert len(manifest["metadata"]["name"]) <= 63
    # A Deployment's pods add a hash and a suffix; a label with the pod's hostname has room for 63 characters.
    assert len(workloads.build_worker(made, 9999, LauncherMap("l"))["spec"]["template"]["spec"]["hostname"]) <= 63
