"""What is remembered of refused pods, and whose job it is."""

from typing import Any

from pstraining.controller.failed_creates import WORKLOADS_MAX, FailedCreates
from pstraining.controller.watch_state import WatchState
from tests.support.builders import UID, job, pod


def event(uid: str, message: str = "exceeded quota") -> dict[str, Any]:
    about = {"kind": "StatefulSet", "namespace": "default", "name": "digits-ps", "uid": uid}
    metadata = {"name": "e", "namespace": "default", "uid": "e"}
    return {
        "kind": "Event",
        "metadata": metadata,
        "involvedObject": about,
        "message": message,
        "reason": "FailedCreate",
    }


def stateful_set() -> dict[str, Any]:
    labels = {"pstraining.dev/job-name": "digits", "pstraining.dev/job-uid": UID, "pstraining.dev/role": "ps"}
    owners = [{"controller": True, "uid": UID}]
    metadata = {"name": "digits-ps", "namespace": "default", "uid": "set", "labels": labels, "ownerReferences": owners}
    return {"kind": "StatefulSet", "metadata": metadata, "spec": {"replicas": 1}}


def test_the_job_is_looked_at_when_there_is_something_new() -> None:
    watch_state = WatchState()
    for raw in (job(), stateful_set()):
        watch_state.receive(raw, "ADDED")
    assert list(watch_state.receive(event("set"), "ADDED")) == [("default", "digits")]
    assert list(watch_state.receive(event("set"), "MODIFIED")) == [], "the controller tries again"
    assert list(watch_state.receive(event("a stranger's"), "ADDED")) == [("default", "digits")], (
        "by name; its uid is looked at later"
    )
    snapshot = watch_state.snapshot(("default", "digits"))
    assert [c.refusal for c in snapshot.children.values()] == ["exceeded quota"]


def test_a_pod_is_the_end_of_it() -> None:
    watch_state = WatchState()
    for raw in (job(), stateful_set()):
        watch_state.receive(raw, "ADDED")
    watch_state.receive(event("set"), "ADDED")
    watch_state.receive(event("set"), "DELETED")
    assert watch_state.failed_creates.of([stateful_set()]), "Kubernetes forgets events after an hour"
    made = pod("ps")
    made["metadata"]["ownerReferences"] = [{"uid": "set"}]
    watch_state.receive(made, "MODIFIED")
    assert watch_state.failed_creates.of([stateful_set()]), "an older pod of the same workload"
    watch_state.receive(made, "ADDED")
    assert not watch_state.failed_creates.of([stateful_set()])


def test_what_is_remembered_is_bounded() -> None:
    failed_creates = FailedCreates()
    for number in range(WORKLOADS_MAX + 1):
        failed_creates.observed(event(str(number)))
    failed_creates.observed({"kind": "Event", "metadata": {}})
    kept = failed_creates.of({"metadata": {"uid": str(n)}} for n in range(WORKLOADS_MAX + 1))
    assert len(kept) == WORKLOADS_MAX
    assert "0" not in kept
