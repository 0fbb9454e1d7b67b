"""Pods with the labels of a job's task: those that its controllers have created, and copies."""

from typing import Any

import pytest

from pstraining.api import names
from pstraining.controller.watch_state import WatchState
from tests.support.builders import job, pod

KEY = ("default", "digits")


def owned(kind: str, name: str, role: str = "worker") -> dict[str, Any]:
    """Return a pod with a controller of this kind and name."""
    found = pod(role, uid=f"uid of a pod of {name}")
    found["metadata"] |= {
        "name": f"{name}-{0 if kind == 'StatefulSet' else 'x'}",
        "ownerReferences": [{"kind": kind, "name": name, "controller": True}],
    }
    return found


def counted(*pods: dict[str, Any]) -> list[str]:
    state = WatchState()
    for found in (job(), *pods):
        state.receive(found, "ADDED")
    return [found.name for found in state.snapshot(KEY).pods]


@pytest.mark.parametrize(
    ("kind", "name", "role"),
    [
        ("ReplicaSet", "digits-worker-0-6f9d7c", "worker"),
        ("StatefulSet", "digits-ps", "ps"),
        ("StatefulSet", "digits-standby-2", "ps"),
        ("Job", "digits-chief-3", "chief"),
        ("Job", "digits-evaluator-1", "evaluator"),
    ],
)
def test_the_pods_of_the_jobs_controllers_count(kind: str, name: str, role: str) -> None:
    assert counted(owned(kind, name, role)) == [f"{name}-{0 if kind == 'StatefulSet' else 'x'}"]


def test_a_pod_counts_whose_generated_name_the_api_server_has_cut() -> None:
    name, found = "j" * 40, pod("worker")
    replica_set = f"{name}-worker-1234-5d4f8c7b9f"
    owner = {"kind": "ReplicaSet", "name": replica_set, "controller": True}
    found["metadata"] |= {"name": f"{replica_set}-"[:58] + "x7k2p", "ownerReferences": [owner]}
    found["metadata"]["labels"] |= {names.LABEL_JOB: name}
    state = WatchState()
    for received in (job(name), found):
        state.receive(received, "ADDED")
    assert [(own.role, own.index) for own in state.snapshot(("default", name)).pods] == [("worker", 1234)]


def test_a_pod_that_has_lost_its_owner_counts() -> None:
    assert counted(pod("worker")) == ["digits-worker-0"]


@pytest.mark.parametrize(
    ("kind", "name"), [("ReplicaSet", "debugger-6f9d7c"), ("ReplicaSet", "digits-worker-0"), ("DaemonSet", "digits-ps")]
)
def test_a_pod_of_another_controller_does_not_count(kind: str, name: str) -> None:
    assert counted(owned(kind, name)) == []


def test_a_copy_of_kubectl_debug_does_not_count() -> None:
    """It has the labels of its original (--keep-labels), no owner, and no name that a controller has generated."""
    copy = pod("worker", uid="uid of the copy", ready=False)
    copy["metadata"]["name"] = "digits-worker-0-debug"
    del copy["metadata"]["generateName"]
    assert counted(pod("worker"), copy) == ["digits-worker-0"]


@pytest.mark.parametrize(
    ("generated", "name"),
    [("digits-ps-", "digits-ps-0-copy"), ("digits-worker-0-6f9d7c-", "copy"), ("debug-", "debug-x"), ("", "copy")],
)
def test_a_copy_of_a_pods_manifest_does_not_count(generated: str, name: str) -> None:
    """`kubectl get -o yaml`, another name and `kubectl create` leave the field generateName."""
    copy = pod("ps" if "ps" in generated else "worker", uid="uid of the copy")
    copy["metadata"] |= {"name": name, "generateName": generated}
    assert counted(copy) == []


def test_a_copy_that_names_its_originals_stateful_set_does_not_count() -> None:
    """The StatefulSet leaves it alone, too: it manages only pods with names of its own form."""
    copy = owned("StatefulSet", "digits-ps", "ps")
    copy["metadata"]["name"] = "digits-ps-0-copy"
    assert counted(pod("ps"), copy) == ["digits-ps-0"]


def test_the_role_and_the_index_of_a_pod_follow_from_its_name() -> None:
    """Any user of the namespace may write labels."""
    forged = owned("ReplicaSet", "digits-worker-1-6f9d7c", "chief")
    forged["metadata"]["labels"] |= {"pstraining.dev/index": "7"}
    server = pod("ps", 1)
    server["metadata"]["labels"] |= {"apps.kubernetes.io/pod-index": "0", "pstraining.dev/role": "worker"}
    state = WatchState()
    for found in (job(), forged, server):
        state.receive(found, "ADDED")
    assert {(found.role, found.index) for found in state.snapshot(KEY).pods} == {("worker", 1), ("ps", 1)}
