"""The differences that the campaign's oracle accepts, and those that it reports."""

from collections import Counter
from dataclasses import replace

import pytest

from tests.campaign import oracle
from tests.campaign.faults import OnWrite, Plan, Point
from tests.campaign.oracle import Run
from tests.campaign.proxy import Attempt

CREATE = Point("create", "deployments", "job-worker-1", 1)
TELL = Point("apply", "pods", "job-worker-1", 1)
DELETE = Point("delete", "deployments", "job-worker-1", 1)
WORKER = ("worker", "1", "0", "0")


def _run(plan: Plan, *points: Point, pods: int, left: bool = False) -> Run:
    attempts = [Attempt(p, float(n), 200) for n, p in enumerate(points)]
    state = {"deployments/job-worker-1": "there"} if left else {}
    return Run(plan, state=state, attempts=attempts, born=Counter({WORKER: pods}))


def _late(*more: Point, pods: int, fault: OnWrite = OnWrite.LATE) -> list[str]:
    undisturbed = _run(Plan("scale"), CREATE, TELL, DELETE, pods=1)
    run = _run(Plan("scale", fault, CREATE), CREATE, TELL, DELETE, *more, pods=pods)
    return oracle.compare(run, [undisturbed])


def test_a_late_creation_restores_its_object_once() -> None:
    assert not _late(pods=1)
    assert not _late(CREATE, DELETE, pods=1)
    assert not _late(CREATE, TELL, DELETE, pods=2)


@pytest.mark.parametrize(
    ("more", "pods", "what"),
    [
        ((CREATE, DELETE), 3, "pods"),
        ((CREATE, DELETE, DELETE), 1, "delete deployments/job-worker-1: 3 times"),
        ((CREATE, CREATE, DELETE), 1, "create deployments/job-worker-1: 3 times"),
        ((CREATE, TELL, TELL, DELETE), 2, "apply pods/job-worker-1: 3 times"),
    ],
)
def test_an_object_is_restored_at_most_once(more: tuple[Point, ...], pods: int, what: str) -> None:
    assert any(what in line for line in _late(*more, pods=pods))


def test_other_faults_restore_nothing() -> None:
    assert any("pods" in line for line in _late(CREATE, DELETE, pods=2, fault=OnWrite.LOST))


def test_an_expected_object_has_no_second_pod() -> None:
    undisturbed = _run(Plan("create"), CREATE, TELL, pods=1, left=True)
    run = replace(undisturbed, plan=Plan("create", OnWrite.LATE, CREATE), born=Counter({WORKER: 2}))
    assert any("pods" in line for line in oracle.compare(run, [undisturbed]))


def test_a_restored_object_must_be_deleted_again() -> None:
    undisturbed = _run(Plan("scale"), CREATE, TELL, DELETE, pods=1)
    run = _run(Plan("scale", OnWrite.LATE, CREATE), CREATE, TELL, DELETE, CREATE, pods=2, left=True)
    assert any("deployments/job-worker-1" in line for line in oracle.compare(run, [undisturbed]))


@pytest.mark.parametrize("refused", [True, False])
def test_a_job_reports_again_that_it_runs_after_the_webhook_of_kueue_has_refused_a_pod(refused: bool) -> None:
    runs, refusal = Point("create", "events", "Running", 1), Point("create", "events", "PodsRefused", 1)
    undisturbed = _run(Plan("slice"), CREATE, runs, pods=1, left=True)
    disturbed = _run(Plan("slice"), CREATE, runs, *([refusal] if refused else []), runs, pods=1, left=True)
    found = [line for line in oracle.compare(disturbed, [undisturbed]) if "events" in line]
    assert found == ([] if refused else ["create events/Running: 2 times instead of 1"])
