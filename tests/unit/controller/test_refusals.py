"""What is remembered of refused pods, and whose job it is."""

from typing import Any

from pstraining.controller.known import Known
from pstraining.controller.refusals import MAX_REFUSALS, Refusals
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
    known = Known()
    for found in (job(), stateful_set()):
        known.take(found, "ADDED")
    assert list(known.take(event("set"), "ADDED")) == [("default", "digits")]
    assert list(known.take(event("set"), "MODIFIED")) == [], "the controller tries again"
    assert list(known.take(event("a stranger's"), "ADDED")) == [("default", "digits")], (
        "by name; its uid is looked at later"
    )
    snapshot = known.snapshot(("default", "digits"))
    assert [c.refusal for c in snapshot.children.values()] == ["exceeded quota"]


def test_a_pod_is_the_end_of_it() -> None:
    known = Known()
    for found in (job(), stateful_set()):
        known.take(found, "ADDED")
    known.take(event("set"), "ADDED")
    known.take(event("set"), "DELETED")
    assert known.refusals.of([stateful_set()]), "Kubernetes forgets events after an hour"
    made = pod("ps")
    made["metadata"]["ownerReferences"] = [{"uid": "set"}]
    known.take(made, "MODIFIED")
    assert known.refusals.of([stateful_set()]), "an older pod of the same workload"
    known.take(made, "ADDED")
    assert not known.refusals.of([stateful_set()])


def test_what_is_remembered_is_bounded() -> None:
    refusals = Refusals()
    for number in range(MAX_REFUSALS + 1):
        refusals.observed(event(str(number)))
    refusals.observed({"kind": "Event", "metadata": {}})
    kept = refusals.of({"metadata": {"uid": str(n)}} for n in range(MAX_REFUSALS + 1))
    assert len(kept) == MAX_REFUSALS
    assert "0" not in kept
