"""The programs that have finally succeeded, the end of the job's time, and the retired workers."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from pstraining.api import names
from pstraining.core.actions import Kind
from pstraining.core.policies import deadline, retired_workers
from pstraining.core.policies.failure_counts import count_failures
from pstraining.core.policies.success import is_former, runs_for_ever, succeeded, workers
from pstraining.core.snapshot import Child, Container, Pod, Termination
from tests.support.builders import NOW, job, stamp, typed
from tests.support.simulation import World, phase, running
from tests.support.snapshots import a_child, a_pod, facts_of, snapshot_of

SECOND = timedelta(seconds=1)
ALWAYS = {"worker": {"restartPolicy": "Always"}}
ALONE = {"chief": {"enabled": False}}


def end(code: int, at: datetime | None = None) -> Termination:
    return Termination(code, "", "", at)


def ended(role: str, index: int = 0, *, now: int | None = None, before: int | None = None, **more: Any) -> Pod:
    """Return a pod whose program has ended with these codes: in the last run, and in the previous one."""
    terminated, last = (None if code is None else end(code, NOW) for code in (now, before))
    return a_pod(role, index, "n", container=Container(terminated=terminated, last=last), **more)


LOST: dict[str, Any] = {"disruption": "DeletionByTaintManager", "deleting": True}
SUCCESSES: dict[str, tuple[Pod, dict[str, Any], bool]] = {
    "it runs": (ended("worker"), {}, False),
    "it has ended with 0": (ended("worker", now=0), {}, True),
    "it had ended with 0 and idles": (ended("worker", before=0), {}, True),
    "it has failed": (ended("worker", now=1, before=1), {}, False),
    "its pod has succeeded": (ended("worker", phase="Succeeded"), {}, True),
    "a server": (ended("ps", now=0), {}, False),
    "a server's pod": (ended("ps", phase="Succeeded"), {}, False),
    "a chief": (ended("chief", now=0), ALWAYS, True),
    "a worker that always runs": (ended("worker", now=0, phase="Succeeded"), ALWAYS, False),
    "a worker in the chief's place": (ended("worker", now=0), ALWAYS | ALONE, True),
    "another worker beside it": (ended("worker", 1, now=0), ALWAYS | ALONE, False),
    "before its node was lost": (ended("worker", now=0, deleted_at=NOW + SECOND, **LOST), {}, True),
    "in the second in which its node was lost": (ended("worker", now=0, deleted_at=NOW, **LOST), {}, True),
    "after its node was lost": (
        ended("worker", now=0, phase="Succeeded", deleted_at=NOW - SECOND, **LOST),
        {},
        False,
    ),
    "at an unknown time": (
        a_pod("worker", 0, "n", container=Container(terminated=end(0)), deleted_at=NOW, **LOST),
        {},
        False,
    ),
    "a failure before its node was lost": (ended("worker", now=1, deleted_at=NOW + SECOND, **LOST), {}, False),
    "a chief after its node was lost": (ended("chief", now=0, deleted_at=NOW - SECOND, **LOST), {}, True),
    "after its pod was evicted": (
        ended("worker", now=0, disruption="EvictionByEvictionAPI", deleting=True, deleted_at=NOW - SECOND),
        {},
        True,
    ),
}


@pytest.mark.parametrize("when", SUCCESSES)
def test_a_program_that_has_ended_with_0_for_good(when: str) -> None:
    seen, spec, expected = SUCCESSES[when]
    assert succeeded(typed(job(spec=spec)), seen) is expected


def test_only_workers_run_forever() -> None:
    assert runs_for_ever(typed(job(spec=ALWAYS)), names.WORKER, 0)
    assert not runs_for_ever(typed(job()), names.WORKER, 0)
    assert not runs_for_ever(typed(job(spec=ALWAYS)), names.CHIEF, 0)


def deployment(index: int, **more: Any) -> Child:
    labels = {names.LABEL_INDEX: str(index), **more.pop("labels", {})}
    return a_child(Kind.DEPLOYMENT, f"digits-worker-{index}", labels=labels, **more)


MARK = {names.ANNOTATION_SUCCEEDED: "true"}
AGAIN = {names.LABEL_RESTART_ATTEMPT: "1"}
WORKERS: dict[str, tuple[tuple[Pod | Child, ...], int, set[int]]] = {
    # the observation, the restarts of the job, the workers that have succeeded
    "none": ((deployment(0), a_pod("worker", 0, "n")), 0, set()),
    "by their pods": ((ended("worker", 0, now=0), ended("worker", 1, now=1)), 0, {0}),
    "one that is scaled away": ((ended("worker", 2, now=0),), 0, set()),
    "by their Deployments": ((deployment(1, annotations=MARK),), 0, {1}),
    "another mark": ((deployment(1, annotations={names.ANNOTATION_SUCCEEDED: "no"}),), 0, set()),
    "from before the job was restarted": ((deployment(1, annotations=MARK), ended("worker", 0, now=0)), 1, set()),
    "since the job was restarted": (
        (deployment(1, annotations=MARK, labels=AGAIN), ended("worker", 0, now=0, job_restarts=1)),
        1,
        {0, 1},
    ),
    "a pod since it was restarted": (
        (deployment(0, annotations=MARK), ended("worker", 0, now=0, job_restarts=1)),
        1,
        {0},
    ),
}


@pytest.mark.parametrize("which", WORKERS)
def test_workers_have_succeeded_by_pod_or_by_record(which: str) -> None:
    seen, restarts, expected = WORKERS[which]
    manifest = {**job(), "status": {"jobRestarts": restarts}}
    found = snapshot_of(manifest, *seen)
    assert workers(typed(manifest), found, found.typed_status) == expected


def test_a_retired_worker_has_succeeded_or_was_given_up() -> None:
    records = [{"role": "worker", "index": index, "givenUp": index < 2} for index in range(3)]
    status = facts_of({}, replicaRecords=records).status
    assert retired_workers.given_up(status) == {0, 1}
    assert retired_workers.reasons(status, [1, 3]) == {
        0: names.ANNOTATION_GIVEN_UP,
        1: names.ANNOTATION_SUCCEEDED,
        3: names.ANNOTATION_SUCCEEDED,
    }


def test_the_pods_of_retired_workers_do_not_fail_if_their_last_run_is_no_longer_in_their_status() -> None:
    deleted = [
        a_pod("worker", index, "n", container=Container(restarts=1), deleting=True, deleted_at=NOW, job_restarts=1)
        for index in range(3)
    ]
    facts = facts_of(
        {"worker": {"replicas": 3}},
        *deleted,
        deployment(0, annotations=MARK, labels=AGAIN),
        deployment(2, annotations=MARK),
        jobRestarts=1,
        replicaRecords=[{"role": "worker", "index": 1, "restarts": 4, "failures": 4, "givenUp": True}],
    )
    found = count_failures(facts.job, facts.snapshot, facts.status)
    assert [(r.index, r.restarts, r.failures) for r in found.records] == [(1, 4, 4), (2, 2, 1)]


@pytest.mark.parametrize("code", [0, 1])
def test_a_worker_that_has_succeeded_is_not_counted_while_its_pod_ends(code: int) -> None:
    world = World(job())
    world.settle()
    world.lingering.add(names.WORKER)
    world.end(names.WORKER, 1, code)
    world.settle()
    assert world.job is not None
    status = world.job["status"]["worker"]
    assert (status["succeeded"], status["restarts"]) == (1 - code, code)


LIMITED = {"runPolicy": {"activeDeadlineSeconds": 100}}


@pytest.mark.parametrize(
    ("spec", "started", "before", "at"),
    [(LIMITED, NOW, 0, 100), (LIMITED, NOW, 60, 40), (LIMITED, None, 60, None), ({}, NOW, 0, None)],
)
def test_the_deadline_counts_active_time(spec: Any, started: datetime | None, before: int, at: int | None) -> None:
    status = facts_of(spec, startTime=started and stamp(started), activeSeconds=before).status
    assert deadline.ends_at(typed(job(spec=spec)), status) == (None if at is None else NOW + at * SECOND)


@pytest.mark.parametrize(
    ("started", "suspended", "after", "expected"),
    [(NOW, True, 30, 37), (NOW, False, 30, 7), (None, True, 30, 7), (NOW, True, -5, 7), (NOW, True, 0, 7)],
)
def test_a_suspension_adds_the_time_since_the_start(
    started: datetime | None, suspended: bool, after: int, expected: int
) -> None:
    status = facts_of({}, startTime=started and stamp(started), activeSeconds=7).status
    now = NOW + after * SECOND
    assert deadline.active_seconds(status, now, None if suspended else started or now) == expected


@pytest.mark.parametrize(
    ("started", "reasons", "before", "expected"),
    [
        (None, ["Training", "Stopping"], 100, 60),
        (None, ["Stopping"], 10, 0),
        (None, ["Suspended"], 100, 100),
        (NOW, ["Stopping"], 100, 100),
    ],
)
def test_a_job_that_is_resumed_while_it_stops_was_active_all_the_time(
    started: datetime | None, reasons: list[str], before: int, expected: int
) -> None:
    conditions = [
        {"type": "Running", "status": "False", "reason": reason, "message": "", "lastTransitionTime": stamp(NOW)}
        for reason in reasons
    ]
    stored: dict[str, Any] = {
        "startTime": started and stamp(started),
        "activeSeconds": before,
        "conditions": conditions,
    }
    assert deadline.active_seconds(facts_of({}, **stored).status, NOW + 40 * SECOND, NOW) == expected


def test_runs_whose_end_the_kubelet_no_longer_shows_count_with_the_next_one() -> None:
    def counted(container: Container) -> list[tuple[int, int]]:
        facts = facts_of({"worker": {"replicas": 1}}, a_pod("worker", 0, "n", container=container))
        found = count_failures(facts.job, facts.snapshot, facts.status)
        return [(record.restarts, record.failures) for record in found.records]

    assert counted(Container(restarts=1, running=True)) == []
    assert counted(Container(restarts=2, running=True, last=end(0))) == []
    assert counted(Container(restarts=2, running=True, last=end(1))) == [(2, 2)]


ALL = {"successPolicy": "AllWorkers", "checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "c"}}}}


def settle_beside(world: World, role: str) -> None:
    """Let the operator act while the present pods of a role, which have lost their owners, stay for some passes."""
    staying = {n: p for n, p in world.pods.items() if p["metadata"]["labels"][names.LABEL_ROLE] == role}
    for _ in range(8):
        world.reconcile()
        for child in world.children.values():
            child["metadata"].setdefault("creationTimestamp", stamp(world.now))
        world.controllers()
        world.pods |= staying
    world.controllers()
    world.settle()


@pytest.mark.parametrize("deleted", [False, True])
def test_worker_0_leads_again_after_another_number_of_servers(*, deleted: bool) -> None:
    """The new servers get the parameters from it, also if it had succeeded."""
    world = running(**ALL, **ALONE)
    world.end("worker", 0)
    world.end("worker", 1, code=1)
    world.settle()
    assert world.job is not None
    assert world.job["status"]["completedIndexes"] == "0"
    if deleted:
        del world.children["Deployment", "digits-worker-0"]
        world.settle()
    world.edit({"ps": {"replicas": 2}})
    world.settle()
    assert world.children["Deployment", "digits-worker-0"]["spec"]["replicas"] == 1
    assert world.job["status"]["completedIndexes"] == ""


def test_a_chief_that_has_succeeded_leads_again_although_its_pod_outlives_its_job() -> None:
    world = running(**ALL)
    world.end("chief")
    world.settle()
    world.edit({"ps": {"replicas": 2}})
    settle_beside(world, "chief")
    assert world.names_of("Job") == ["digits-chief-2"]
    assert phase(world) == "Running"


def test_a_worker_that_has_succeeded_runs_again_although_its_pod_outlives_a_suspension() -> None:
    world = running(worker={"replicas": 3})
    world.end("worker", 1)
    world.reconcile()
    assert world.job is not None
    assert world.job["status"]["completedIndexes"] == "1"
    staying = dict(world.pods)
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    world.pods = {n: p for n, p in staying.items() if p["metadata"]["labels"][names.LABEL_ROLE] == "worker"}
    world.now += timedelta(seconds=20)
    world.edit({"runPolicy": {"suspend": False}})
    settle_beside(world, "worker")
    assert world.names_of("Deployment") == ["digits-worker-0", "digits-worker-1", "digits-worker-2"]
    assert world.job["status"]["completedIndexes"] == ""


def test_a_success_shown_by_a_pod_older_than_its_deployment_does_not_count() -> None:
    world = running(worker={"replicas": 2})
    snapshot = world.snapshot()
    pod, owner = snapshot.pods_of("worker", 1)[0], snapshot.child(Kind.DEPLOYMENT, "digits-worker-1")
    made_of = snapshot.typed_job
    assert owner is not None
    assert not isinstance(made_of, str)
    for seconds, expected in ((-1, False), (0, False), (1, True)):
        metadata = {**owner.manifest["metadata"], "creationTimestamp": stamp(pod.created + seconds * SECOND)}
        made = replace(owner, manifest={**owner.manifest, "metadata": metadata})
        assert is_former(made_of, snapshot, snapshot.typed_status, pod, made) is expected
