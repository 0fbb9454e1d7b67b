"""The next step of a stop, and whether one is due: for a suspension, other servers, or a restart of the job."""

from dataclasses import replace
from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.api.status import PSTrainingJobStatus, StatusCondition
from pstraining.core.actions import Kind
from pstraining.core.policies import job_restart, resharding, teardown
from pstraining.core.policies.resharding import ReshardingStep
from pstraining.core.policies.teardown import Stop
from pstraining.core.snapshot import Child, Container, Pod, Termination
from tests.support.builders import NOW, job, pod, terminated, typed
from tests.support.snapshots import a_child, a_pod, facts_of, snapshot_of
from tests.unit.core.test_ends import facts

OVER = Container(terminated=Termination(0, "", "", None))
ALONE = {"chief": {"enabled": False}}
CHIEF, EVALUATOR = (
    a_child(Kind.JOB, f"digits-{role}-1", labels={names.LABEL_ROLE: role}) for role in (names.CHIEF, names.EVALUATOR)
)
SERVERS = a_child(Kind.STATEFUL_SET, "digits-ps")
WORKERS = tuple(a_child(Kind.DEPLOYMENT, f"digits-worker-{i}") for i in (0, 1))
GROUPS = tuple(a_child(kind, "digits") for kind in Kind.pod_groups())
ALL = (SERVERS, CHIEF, EVALUATOR, *WORKERS, *GROUPS, a_child(Kind.SERVICE, "digits-ps-0"))
IN_ORDER = (*WORKERS, CHIEF, EVALUATOR, SERVERS)


def runs(role: str, index: int = 0, **more: Any) -> Pod:
    return a_pod(role, index, "n", **more)


def going(child: Child) -> Child:
    return a_child(child.kind, child.name, labels=dict(child.labels), deleting=True)


STOPS: dict[str, tuple[dict[str, Any], tuple[Child | Pod, ...], Stop]] = {
    "the chief first": ({}, ALL, Stop((CHIEF,), leader_may_run=True)),
    "the chief's Job is going": ({}, (SERVERS, *WORKERS, going(CHIEF)), Stop((*WORKERS, SERVERS))),
    "the chief's pod is going": ({}, (SERVERS, runs("chief", deleting=True)), Stop(leader_may_run=True)),
    "the chief's pod is over": ({}, (SERVERS, runs("chief", container=OVER)), Stop((SERVERS,))),
    "one of its pods is not": (
        {},
        (SERVERS, runs("chief", container=OVER), runs("chief", term=2)),
        Stop(leader_may_run=True),
    ),
    "a worker's pod is no leader's": ({}, (SERVERS, runs("worker")), Stop((SERVERS,))),
    "the others, then their group": (
        {},
        (*GROUPS, SERVERS, *WORKERS, EVALUATOR),
        Stop((*WORKERS, EVALUATOR, SERVERS, *GROUPS)),
    ),
    "what is going is not deleted again": ({}, (going(SERVERS), going(WORKERS[0]), WORKERS[1]), Stop((WORKERS[1],))),
    "without a chief worker 0 first": (ALONE, (SERVERS, *WORKERS), Stop((WORKERS[0],), leader_may_run=True)),
    "without a chief, one from before": (
        ALONE,
        (SERVERS, CHIEF, *WORKERS),
        Stop((CHIEF, WORKERS[0]), leader_may_run=True),
    ),
    "without a chief, the pod of one from before": (ALONE, (SERVERS, runs("chief")), Stop(leader_may_run=True)),
    "without a chief, only one from before": (ALONE, (CHIEF,), Stop((CHIEF,), leader_may_run=True)),
    "the pod of worker 0 is going": (ALONE, (SERVERS, WORKERS[1], runs("worker")), Stop(leader_may_run=True)),
    "the pod of worker 1 runs": (ALONE, (SERVERS, runs("worker", 1)), Stop((SERVERS,))),
    "nothing is left": ({}, (), Stop()),
}


@pytest.mark.parametrize("when", STOPS)
def test_the_leader_stops_first_and_the_servers_last(when: str) -> None:
    spec, seen, expected = STOPS[when]
    manifest = job(spec=spec)
    assert teardown.next_step(typed(manifest), snapshot_of(manifest, *seen)) == expected


def test_a_stop_is_complete_when_nothing_runs_or_can_restart() -> None:
    assert teardown.workloads(snapshot_of(job(), *ALL)) == IN_ORDER
    assert teardown.is_over(snapshot_of(job(), *GROUPS, runs("ps", container=OVER, phase="Failed")))
    assert not teardown.is_over(snapshot_of(job(), *WORKERS))
    assert not teardown.is_over(snapshot_of(job(), runs("chief", container=OVER), runs("ps")))


def servers(shards: str | None, layout: str | None = None, replicas: int = 2, name: str = "digits-ps") -> Child:
    written = {names.ANNOTATION_SHARDS: shards, names.ANNOTATION_LAYOUT: layout}
    annotations = {key: text for key, text in written.items() if text is not None}
    return a_child(Kind.STATEFUL_SET, name, annotations=annotations, spec={"replicas": replicas})


GOING = replace(servers("2", "5"), deleting=True)
NEW = tuple(runs("ps", index) for index in (2, 3))


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        # without a layout's number: all pods are replaced
        ((), (ReshardingStep.STEADY, 4, 1)),
        ((servers("4"),), (ReshardingStep.STEADY, 4, 1)),
        ((servers("4", replicas=3),), (ReshardingStep.STEADY, 4, 1)),
        ((servers("3"),), (ReshardingStep.REPLACE_ALL, 4, 1)),
        ((servers("4"), servers("1", name="digits-standby")), (ReshardingStep.REPLACE_ALL, 4, 1)),
        ((servers(None, replicas=4),), (ReshardingStep.STEADY, 4, 1)),
        ((servers(None, "1", replicas=1),), (ReshardingStep.REPLACE_ALL, 4, 1)),
        ((servers("many", "1", replicas=1),), (ReshardingStep.REPLACE_ALL, 4, 1)),
        ((servers("2", "many"),), (ReshardingStep.REPLACE_ALL, 4, 1)),
        ((GOING, CHIEF), (ReshardingStep.REPLACE_ALL, 4, 1)),
        # with it: the pods stay
        ((servers("4", "7"),), (ReshardingStep.STEADY, 4, 7)),
        ((servers("2", "5"), CHIEF), (ReshardingStep.START_SERVERS, 2, 5)),
        ((servers("2", "5"),), (ReshardingStep.START_SERVERS, 2, 5)),
        ((servers("2", "5"), runs("ps", 0), runs("ps", 1), CHIEF), (ReshardingStep.START_SERVERS, 2, 5)),
        ((servers("2", "5"), NEW[0], CHIEF), (ReshardingStep.START_SERVERS, 2, 5)),
        ((servers("2", "5"), *NEW, CHIEF), (ReshardingStep.STOP_LEADER, 2, 5)),
        ((servers("2", "5"), *NEW, runs("chief")), (ReshardingStep.STOP_LEADER, 2, 5)),
        ((servers("2", "5"), *NEW), (ReshardingStep.SWITCH, 2, 5)),
        ((servers("6", "5"), CHIEF), (ReshardingStep.STOP_LEADER, 6, 5)),
        ((servers("6", "5"),), (ReshardingStep.SWITCH, 6, 5)),
    ],
)
def test_the_next_step_towards_another_number_of_servers(
    seen: tuple[Child | Pod, ...], expected: tuple[ReshardingStep, int, int]
) -> None:
    manifest = job(ps=4)
    found = resharding.observed(typed(manifest), snapshot_of(manifest, *seen))
    assert (found.step, found.current, found.number) == expected
    assert found.stops is (found.step not in (ReshardingStep.STEADY, ReshardingStep.START_SERVERS))
    assert found.layout.starting == (2 if found.current == 2 else 0)
    assert resharding.effective(typed(manifest), found).spec.ps.replicas == found.current


@pytest.mark.parametrize(
    "missing",
    [
        {"deleting": True},
        {"phase": "Failed"},
        {"silent": True},
        {"lost": True},
        {"container": Container(running=False)},
    ],
)
def test_a_new_server_that_does_not_run_is_waited_for(missing: dict[str, Any]) -> None:
    manifest = job(ps=4)
    seen = (servers("2", "1"), CHIEF, NEW[0], replace(NEW[1], **missing))
    assert resharding.observed(typed(manifest), snapshot_of(manifest, *seen)).step is ReshardingStep.START_SERVERS


def test_the_next_layout_has_the_number_of_the_spec_and_the_next_number() -> None:
    manifest = job(ps=4)
    found = resharding.observed(typed(manifest), snapshot_of(manifest, servers("2", "5")))
    assert found.next_annotations == {names.ANNOTATION_SHARDS: "4", names.ANNOTATION_LAYOUT: "6"}
    progress = resharding.progress(typed(manifest), found, None, runs=True)
    assert progress is not None
    assert progress[2].endswith("Set ps.replicas to 2 to withdraw the change."), "nothing keeps a server from running"


SAVED: dict[str, Any] = {"checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "c"}}}}
LOST: dict[str, Any] = {"checkpoint": {"volume": {"emptyDir": {}}}}
FROM_IT = "training resumes from the newest checkpoint."
FROM_NOTHING = "spec.checkpoint is not set: training restarts from the beginning."


def rescaling(status: str, reason: Reason = Reason.RESUMING) -> StatusCondition:
    return StatusCondition(type=Condition.RESCALING, status=status, reason=reason, message="", last_transition_time=NOW)


PROGRESS: dict[str, tuple[dict[str, Any], tuple[Child | Pod, ...], str | None, bool, tuple[bool, str, str] | None]] = {
    "new servers start": (
        SAVED,
        (servers("1", "1"), CHIEF),
        None,
        True,
        (
            True,
            "StartingServers",
            "0 of 1 new parameter servers run; until all do, training continues with 1. "
            "Set ps.replicas to 1 to withdraw the change. No room.",
        ),
    ),
    "the chief saves": (
        SAVED,
        (servers("3", "1"), CHIEF),
        None,
        True,
        (True, "Checkpointing", f"For ps.replicas 2, the chief stops first and may save its state; {FROM_IT}"),
    ),
    "the chief saves, and all pods go": (
        SAVED,
        (servers("3"), CHIEF),
        None,
        True,
        (True, "Checkpointing", f"For ps.replicas 2, the chief stops first and may save its state; {FROM_IT}"),
    ),
    "worker 0 ends": (
        ALONE,
        (servers("3", "1"), *WORKERS),
        "True",
        False,
        (True, "Checkpointing", f"For ps.replicas 2, worker 0 stops first and may save its state; {FROM_NOTHING}"),
    ),
    "the others go": (
        SAVED,
        (servers("3"),),
        "True",
        False,
        (True, "Resharding", f"All pods are replaced for ps.replicas 2; {FROM_IT}"),
    ),
    "the others go, and the checkpoints with them": (
        LOST,
        (servers("3"),),
        "True",
        False,
        (
            True,
            "Resharding",
            "All pods are replaced for ps.replicas 2; spec.checkpoint.volume does not outlive its pod: training "
            "restarts from the beginning.",
        ),
    ),
    "the next layout is recorded": (
        SAVED,
        (servers("3", "1"),),
        "True",
        True,
        (True, "Resuming", f"Waiting for the pods with ps.replicas 2; {FROM_IT}"),
    ),
    "the pods come": (
        SAVED,
        (),
        "True",
        False,
        (True, "Resuming", f"Waiting for the pods with ps.replicas 2; {FROM_IT}"),
    ),
    "training runs": (SAVED, (), "True", True, (False, "Rescaled", "Training continues with ps.replicas 2.")),
    "it ran already": (SAVED, (), "False", True, None),
    "nothing was changed": (SAVED, (), None, True, None),
}


@pytest.mark.parametrize("step", PROGRESS)
def test_each_step_of_a_change_is_reported(step: str) -> None:
    spec, seen, stored, runs, expected = PROGRESS[step]
    manifest = job(ps=2, spec=spec)
    condition = None if stored is None else rescaling(stored)
    found = resharding.observed(typed(manifest), snapshot_of(manifest, *seen))
    assert resharding.progress(typed(manifest), found, condition, runs=runs, trouble="No room.") == expected


def test_a_change_has_begun_while_its_condition_is_true() -> None:
    other = rescaling("True").model_copy(update={"type": Condition.RUNNING})
    for conditions, expected in (
        ([], None),
        ([other], None),
        ([rescaling("False")], None),
        ([rescaling("True", Reason.STARTING_SERVERS)], None),
        ([other, rescaling("True")], rescaling("True")),
    ):
        assert resharding.began(PSTrainingJobStatus(conditions=conditions)) == expected


RESTARTED = {"failurePolicy": {"rules": [{"action": "RestartJob"}]}, "runPolicy": {"maxRestarts": 1}}


@pytest.mark.parametrize(("recorded", "fails", "count"), [(0, False, 0), (0, True, 1), (1, False, 1), (1, True, 2)])
def test_restarts_of_the_job_include_the_one_decided_now(recorded: int, fails: bool, count: int) -> None:
    seen = pod("worker", restarts=int(fails), last=terminated(1) if fails else None)
    seen["metadata"]["labels"][names.LABEL_RESTART_ATTEMPT] = str(recorded)
    found = facts(RESTARTED, seen, jobRestarts=recorded)
    assert (job_restart.count(found), job_restart.is_exceeded(found)) == (count, count > 1)


def made_in(attempt: str | None, kind: Kind = Kind.DEPLOYMENT) -> Child:
    return a_child(kind, f"{kind}-{attempt}", labels={} if attempt is None else {names.LABEL_RESTART_ATTEMPT: attempt})


@pytest.mark.parametrize(
    ("restarts", "seen", "due"),
    [
        (0, (made_in(None),), False),
        (0, (made_in("x"),), False),
        (1, (), False),
        (1, (made_in("1"), made_in("2")), False),
        (1, (made_in("1"), made_in(None)), True),
        (2, (made_in("1"),), True),
        (1, (made_in(None, Kind.SERVICE),), False),
    ],
)
def test_a_restart_is_due_while_an_older_workload_exists(restarts: int, seen: tuple[Child, ...], due: bool) -> None:
    assert job_restart.is_due(facts_of({}, *seen, jobRestarts=restarts)) is due


def test_only_workloads_are_labelled_with_the_number_of_restarts() -> None:
    def made(**spec: Any) -> dict[str, Any]:
        return {"metadata": {"labels": {"a": "b"}}, **spec}

    holds = made(spec={"template": made()})
    for unchanged in (made(), made(spec={"ports": []})):
        assert job_restart.labelled(dict(unchanged), 2) == unchanged
    assert job_restart.labelled(made(spec={"template": made()}), 0) == holds
    labels = {"a": "b", names.LABEL_RESTART_ATTEMPT: "2"}
    found = job_restart.labelled(holds, 2)
    assert (found["metadata"]["labels"], found["spec"]["template"]["metadata"]["labels"]) == (labels, labels)
