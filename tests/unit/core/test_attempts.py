"""Counts of failures and restarts, and the ends that count as neither."""

from datetime import timedelta
from typing import Any

import pytest

from pstraining.api import contract, names
from pstraining.api.run_policy import FailureReason
from pstraining.api.status import PSTrainingJobStatus, ReplicaRecord
from pstraining.api.text import printable
from pstraining.core.observe import observe
from pstraining.core.policies.failure_counts import FailureCounts, count_failures, last_line
from tests.support.builders import NOW, job, pod, terminated, typed

STARTED = PSTrainingJobStatus(start_time=NOW)
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}


def count(
    *pods: dict[str, Any], status: PSTrainingJobStatus = STARTED, spec: dict[str, Any] | None = None
) -> FailureCounts:
    manifest = job(spec=spec)
    return count_failures(typed(manifest), observe(manifest, (), pods), status)


def numbers(counted: FailureCounts) -> list[tuple[str, int, int, int]]:
    return [(r.role, r.index, r.failures, r.restarts) for r in counted.records]


CASES = {
    "a running pod": (pod("worker"), []),
    "a container that failed and runs again": (pod("worker", restarts=1, last=terminated(1)), [("worker", 0, 1, 1)]),
    "a container that stands failed": (pod("worker", state=terminated(1)), [("worker", 0, 1, 1)]),
    "restarts that nobody saw": (pod("worker", restarts=3, last=terminated(1)), [("worker", 0, 3, 3)]),
    "one in the kubelet's back-off": (
        pod("worker", restarts=2, state=BACK_OFF, last=terminated(1)),
        [("worker", 0, 3, 3)],
    ),
    "a worker that succeeded": (pod("worker", state=terminated(0)), []),
    "a worker that succeeded and idles": (pod("worker", restarts=1, last=terminated(0)), []),
    "a PS that ended with 0": (pod("ps", restarts=1, last=terminated(0)), [("ps", 0, 1, 1)]),
    "a deleted pod": (pod("worker", deleting=True), [("worker", 0, 0, 1)]),
    "an evicted pod whose container was started once more meanwhile": (
        pod("worker", phase="Failed", disrupted=True, restarts=1, last=terminated(143)),
        [("worker", 0, 0, 2)],
    ),
    "an evicted pod that had failed before": (
        pod("worker", phase="Failed", disrupted=True, restarts=1, last=terminated(1)),
        [("worker", 0, 1, 2)],
    ),
    "an evicted pod": (pod("chief", term=1, phase="Failed", disrupted=True), [("chief", 0, 0, 1)]),
    "a pod that failed before it was deleted": (
        pod("worker", restarts=1, last=terminated(1), deleting=True),
        [("worker", 0, 1, 2)],
    ),
    "a failed chief": (pod("chief", term=1, phase="Failed", state=terminated(2)), [("chief", 0, 1, 1)]),
    "a worker that was scaled away": (pod("worker", 7, deleting=True), []),
    "a pod from before a suspension": (pod("worker", created=timedelta(seconds=-1), deleting=True), []),
}


@pytest.mark.parametrize("name", CASES)
def test_one_pod(name: str) -> None:
    seen, expected = CASES[name]
    assert numbers(count(seen)) == expected


@pytest.mark.parametrize("name", CASES)
def test_counting_again_adds_nothing(name: str) -> None:
    seen, _ = CASES[name]
    first = count(seen)
    again = count(seen, status=STARTED.model_copy(update={"replica_records": list(first.records)}))
    assert again.records == first.records
    assert again.failures == ()


def test_causes_of_restarts_that_count_against_no_budget_are_known_by_role() -> None:
    deleted, evicted = pod("worker", deleting=True), pod("ps", deleting=True, disrupted=True)
    found = count(deleted, evicted, pod("chief", term=1, state=terminated(1), phase="Failed"))
    assert found.uncounted == {"worker": FailureReason.DELETED, "ps": FailureReason.EVICTED}
    recorded = STARTED.model_copy(update={"replica_records": list(found.records)})
    assert count(deleted, evicted, status=recorded).uncounted == {}, "they are new once"
    deleted["metadata"]["annotations"] = {names.ANNOTATION_REPLACED: "true"}
    assert count(deleted).uncounted == {}, "the operator's own deletion is no failure"
    again = count(pod("worker", restarts=1, last=terminated(0)), spec={"worker": {"restartPolicy": "Always"}})
    assert ([r.restarts for r in again.records], again.uncounted) == ([1], {})


def test_a_chief_that_has_saved_the_state_has_not_failed_before_the_change_is_in_status() -> None:
    hot = {"ps": {"standby": {"mode": "Hot"}}, "training": {"mode": "Sync"}}
    chief = pod("chief", term=1, state=terminated(contract.EXIT_SAVED), phase="Failed")
    found = count(chief, spec=hot)
    assert (numbers(found), [r.ended for r in found.records]) == ([("chief", 0, 0, 0)], [1])
    assert numbers(count(chief)) == [("chief", 0, 1, 1)]


def test_a_replaced_pod_keeps_its_count() -> None:
    old = ReplicaRecord(role="worker", index=0, failures=2, restarts=2, pod_uid="a", pod_created=NOW, ended=2)
    status = STARTED.model_copy(update={"replica_records": [old]})
    fresh = pod("worker", uid="b", created=timedelta(seconds=5))
    assert numbers(count(fresh, status=status)) == [("worker", 0, 2, 2)]
    failed = pod("worker", uid="b", created=timedelta(seconds=5), state=terminated(1))
    assert numbers(count(failed, status=status)) == [("worker", 0, 3, 3)]


@pytest.mark.parametrize("second", [timedelta(seconds=0), timedelta(seconds=5)])
def test_two_pods_of_one_index_never_count_in_turns(second: timedelta) -> None:
    """Two pods of one index never count alternately. A pod on a lost node stays visible beside its successor, and even
    in the same second each failure counts once.
    """
    pods = [pod("worker", uid=u, created=c, state=terminated(1)) for u, c in (("a", timedelta(0)), ("b", second))]
    status, total = STARTED, 0
    for _ in range(5):
        counted = count(*pods, status=status)
        status = STARTED.model_copy(update={"replica_records": list(counted.records)})
        total = counted.records[0].failures
    assert total == 2


@pytest.mark.parametrize("uids", [("a", "b"), ("b", "a")])
def test_two_terms_of_one_second_both_count(uids: tuple[str, str]) -> None:
    first, second = (
        pod("chief", term=t, uid=u, created=timedelta(0), phase="Failed", state=terminated(1))
        for t, u in zip((1, 2), uids, strict=True)
    )
    status = STARTED.model_copy(update={"replica_records": list(count(first).records)})
    assert numbers(count(first, second, status=status)) == [("chief", 0, 2, 2)]


@pytest.mark.parametrize("uids", [("a", "b"), ("b", "a")])
def test_a_pod_of_the_same_second_as_a_deleted_one_counts(uids: tuple[str, str]) -> None:
    first, second = (pod("worker", uid=u, created=timedelta(0), state=terminated(1)) for u in uids)
    status = STARTED.model_copy(update={"replica_records": list(count(first).records)})
    assert numbers(count(second, status=status)) == [("worker", 0, 2, 2)]


def test_nothing_is_counted_before_the_start_or_after_the_end() -> None:
    failed = pod("worker", state=terminated(1))
    assert count(failed, status=PSTrainingJobStatus()).records == ()
    assert count(failed, status=STARTED.model_copy(update={"completion_time": NOW})).records == ()


def test_the_failure_is_reported_with_its_last_line() -> None:
    counted = count(pod("chief", term=1, phase="Failed", state=terminated(1, "Traceback:\n  x\nKeyError: 'a'\n\n")))
    reported = counted.failures[0].last_failure
    assert (reported.pod, reported.exit_code, reported.message, reported.count) == (
        "digits-chief-1",
        1,
        "KeyError: 'a'",
        1,
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [("", ""), ("\n\n", ""), ("a\nb\n", "b"), ("x" * 500, "x" * 300), ("\x1b" * 300, printable("\x1b" * 300)[:300])],
)
def test_last_line(text: str, line: str) -> None:
    assert last_line(text) == line
