"""Messages about rejected pods, by their job."""

from typing import Any

import pytest

from pstraining.controller import informer_cache
from pstraining.controller.failed_creates import MESSAGE_MAX, OTHERS_MAX, WORKLOADS_MAX, FailedCreates
from pstraining.controller.watch_state import WatchState
from tests.support.builders import UID, job, pod

KEY = ("default", "digits")


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


def test_a_new_message_triggers_a_pass() -> None:
    watch_state = WatchState()
    for raw in (job(), stateful_set()):
        watch_state.receive(raw, "ADDED")
    assert list(watch_state.receive(event("set"), "ADDED")) == [("default", "digits")]
    assert list(watch_state.receive(event("set"), "MODIFIED")) == [], "the controller tries again"
    assert list(watch_state.receive(event("a former one's"), "ADDED")) == [], "another object had the name"
    snapshot = watch_state.snapshot(("default", "digits"))
    assert [c.refusal for c in snapshot.children.values()] == ["exceeded quota"]


def test_an_existing_pod_clears_the_message() -> None:
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


@pytest.mark.parametrize("pods_first", [True, False])
def test_a_message_before_the_creation_of_a_pod_is_not_reported(pods_first: bool) -> None:
    """A restarted operator lists pods, and the events of the last hour, in any order."""
    state, made = WatchState(), pod("ps")
    created = made["metadata"]["creationTimestamp"]
    made["metadata"]["ownerReferences"] = [{"kind": "StatefulSet", "name": "digits-ps", "uid": "set"}]
    for raw in (job(), stateful_set()):
        state.receive(raw, None)
    refused = event("set") | {"lastTimestamp": created.replace("20", "19", 1)}
    for raw in (made, refused) if pods_first else (refused, made):
        state.receive(raw, None)
    assert [c.refusal for c in state.snapshot(KEY).children.values()] == [""]
    state.receive(made, "DELETED")
    assert [c.refusal for c in state.snapshot(KEY).children.values()] == [""], "the pod is replaced"
    state.receive(refused | {"eventTime": created, "lastTimestamp": None}, "MODIFIED")
    assert [c.refusal for c in state.snapshot(KEY).children.values()] == ["exceeded quota"]


def test_a_message_after_the_creation_of_a_pod_is_kept() -> None:
    """The controller has created one pod, and a quota refuses the next one: a restarted operator reports it at once."""
    state, made = WatchState(), pod("ps")
    later = made["metadata"]["creationTimestamp"].replace("20", "21", 1)
    made["metadata"]["ownerReferences"] = [{"kind": "StatefulSet", "name": "digits-ps", "uid": "set"}]
    for raw in (job(), stateful_set(), event("set") | {"lastTimestamp": later}, made):
        state.receive(raw, None)
    assert [c.refusal for c in state.snapshot(KEY).children.values()] == ["exceeded quota"]


def test_events_about_a_name_drop_no_message_of_a_job() -> None:
    """A user may create events that name a job's object, with any uid."""
    state = WatchState()
    for raw in (job(), stateful_set(), event("set")):
        state.receive(raw, "ADDED")
    for number in range(WORKLOADS_MAX):
        state.receive(event(str(number)), "ADDED")
    assert [c.refusal for c in state.snapshot(KEY).children.values()] == ["exceeded quota"]


def workload(uid: str, namespace: str = "default") -> dict[str, Any]:
    return {"metadata": {"uid": uid, "namespace": namespace}}


def test_the_memory_for_messages_is_bounded() -> None:
    for is_ours, limit in ((True, WORKLOADS_MAX), (False, OTHERS_MAX)):
        failed_creates = FailedCreates()
        for number in range(limit + 1):
            failed_creates.observed(event(str(number), "x" * 10_000), is_ours=is_ours)
        failed_creates.observed({"kind": "Event", "metadata": {}}, is_ours=is_ours)
        kept = failed_creates.of(workload(str(n)) for n in range(limit + 1))
        assert len(kept) == limit
        assert "0" not in kept
        assert {len(message) for message in kept.values()} == {MESSAGE_MAX}


def test_a_flood_of_events_of_others_drops_no_message_of_a_job() -> None:
    failed_creates = FailedCreates()
    failed_creates.observed(event("ours"), is_ours=True)
    for number in range(2 * OTHERS_MAX):
        failed_creates.observed(event(str(number)), is_ours=False)
    assert failed_creates.of([workload("ours")])


def test_an_event_of_one_namespace_does_not_affect_another() -> None:
    failed_creates = FailedCreates()
    failed_creates.observed(event("uid", "words of a stranger"), is_ours=False)
    assert failed_creates.of([workload("uid", "another")]) == {}


@pytest.mark.parametrize("about", [{}, {"uid": "set"}, {"kind": "StatefulSet", "uid": "set"}])
def test_an_event_about_no_object_is_ignored(about: dict[str, str]) -> None:
    """The API server accepts such an event from any user who may create events."""
    watch_state = WatchState()
    assert list(watch_state.receive({**event("set"), "involvedObject": about}, "ADDED")) == []


def test_objects_that_belong_to_no_job_are_not_kept() -> None:
    state = WatchState()
    state.receive(stateful_set(), "ADDED")
    assert len(state.cache) == 0, "there is no such job"
    for raw in (job(), stateful_set()):
        state.receive(raw, "ADDED")
    stranger = stateful_set()
    stranger["metadata"] |= {"uid": "other", "name": "other"}
    stranger["metadata"]["labels"] = stranger["metadata"]["labels"] | {"pstraining.dev/job-uid": "other"}
    assert list(state.receive(stranger, "ADDED")) == []
    assert len(state.cache) == 2
    successor = job()
    successor["metadata"] |= {"uid": "successor", "resourceVersion": "99"}
    state.receive(job(), "DELETED")
    assert len(state.cache) == 0, "its children go with it"
    assert list(state.receive(successor, "ADDED")) == [("default", "digits")]
    assert list(state.receive(stateful_set(), "MODIFIED")) == []
    assert len(state.cache) == 1


def test_a_status_update_of_a_job_reads_none_of_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status update of a job reads none of its children: there may be ten thousand, and each writing pass brings such
    an event.
    """
    state = WatchState()
    for raw in (job(), stateful_set(), pod("ps")):
        state.receive(raw, "ADDED")
    changed = job()
    changed["metadata"]["resourceVersion"] = "99"
    changed["status"] = {"phase": "Running"}
    monkeypatch.setattr(informer_cache._Stored, "read", lambda stored: pytest.fail("it is parsed"))
    assert list(state.receive(changed, "MODIFIED")) == [("default", "digits")]
    assert len(state.cache) == 3
