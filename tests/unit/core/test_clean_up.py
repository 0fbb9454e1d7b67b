"""The children that a finished job deletes, keeps and narrows, by one observation of its children, pods and records."""

from datetime import timedelta
from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.conditions import Condition
from pstraining.core.actions import Kind
from pstraining.core.policies.clean_up import CleanUpStep, clean_up, expiry, frees, policy
from pstraining.core.snapshot import Child, Container, Pod, Termination
from tests.support.builders import NOW, job, stamp, typed
from tests.support.snapshots import a_child, a_pod, facts_of

SUCCEEDED, FAILED = Condition.SUCCEEDED, Condition.FAILED
OVER = Container(terminated=Termination(0, "", "", None))


def attempt(role: str, number: int, **more: Any) -> Child:
    label = names.LABEL_TERM if role == names.CHIEF else names.LABEL_ATTEMPT
    return a_child(Kind.JOB, f"{role}-{number}", labels={names.LABEL_ROLE: role, label: str(number)}, **more)


def worker(index: int, **more: Any) -> Child:
    labels = {names.LABEL_ROLE: names.WORKER, names.LABEL_INDEX: str(index)}
    return a_child(Kind.DEPLOYMENT, f"worker-{index}", labels=labels, **more)


def servers(name: str = "digits-ps", **more: Any) -> Child:
    return a_child(Kind.STATEFUL_SET, name, **{"spec": {"replicas": 3}, **more})


OTHERS = tuple(a_child(kind, str(kind)) for kind in Kind if kind not in (Kind.STATEFUL_SET, Kind.DEPLOYMENT, Kind.JOB))
FOR_OTHERS = ["PodDisruptionBudget", "Service", "PodGroup", "PodGroup.scheduling.volcano.sh"]
FOR_PODS = ["ConfigMap", "NetworkPolicy"]
WORKLOADS = ["digits-ps", "worker-0", "worker-1"]
CHIEF = a_pod(names.CHIEF, 0, "n", term=1, container=OVER)


def step(end: Condition, *seen: Child | Pod, now: Any = NOW, spec: Any = None, **status: Any) -> CleanUpStep:
    known = {"completionTime": stamp(NOW), **status}
    return clean_up(facts_of({"evaluator": {"enabled": True}} | (spec or {}), *seen, now=now, **known), end)


def deleted(found: CleanUpStep) -> list[str]:
    return [child.name for child in found.delete]


EVERYTHING = (servers(), worker(0), worker(1), *OTHERS)
RESOLVED = [
    # the end, the role's own policy, the job's policy, the action
    (SUCCEEDED, {}, {}, "Running"),
    (SUCCEEDED, {}, {"onSuccess": "All"}, "All"),
    (SUCCEEDED, {"onSuccess": "None"}, {"onSuccess": "All"}, "None"),
    (SUCCEEDED, {"onSuccess": "Failed"}, {"onSuccess": "All"}, "Running"),
    (SUCCEEDED, {}, {"onSuccess": "Failed"}, "Running"),
    (SUCCEEDED, {"onFailure": "None"}, {"onFailure": "All"}, "Running"),
    (FAILED, {}, {}, "Failed"),
    (FAILED, {}, {"onFailure": "All"}, "All"),
    (FAILED, {"onFailure": "None"}, {"onFailure": "All"}, "None"),
    (FAILED, {"onSuccess": "None"}, {"onSuccess": "All"}, "Failed"),
]


@pytest.mark.parametrize(("end", "own", "general", "expected"), RESOLVED)
def test_a_roles_policy_overrides_the_jobs(end: Condition, own: Any, general: Any, expected: str) -> None:
    spec = typed(job(spec={"chief": {"cleanPodPolicy": own}, "runPolicy": {"cleanPodPolicy": general}}))
    assert policy(spec, names.CHIEF, end) == expected
    assert frees(spec, names.CHIEF, end) is (expected != "None")
    assert not frees(spec, names.CHIEF, None)
    assert policy(spec, names.PS, end) == policy(typed(job(spec={"runPolicy": {"cleanPodPolicy": general}})), "ps", end)


def test_a_job_expires_after_its_time_to_live() -> None:
    limited, unlimited = typed(job(spec={"runPolicy": {"ttlSecondsAfterFinished": 60}})), typed(job())
    ended, runs = facts_of({}, completionTime=stamp(NOW)).status, facts_of({}).status
    assert expiry(limited, ended) == NOW + timedelta(seconds=60)
    assert expiry(limited, runs) is None
    assert expiry(unlimited, ended) is None


def test_success_deletes_all_but_the_ended_attempts_and_the_claims() -> None:
    found = step(SUCCEEDED, *EVERYTHING, attempt("chief", 1), CHIEF)
    assert deleted(found) == [*WORKLOADS, *FOR_OTHERS, *FOR_PODS]
    assert (found.narrow, found.idle, found.until) == ((), False, None)


def test_an_object_in_deletion_is_not_deleted_again() -> None:
    going = [a_child(Kind.SERVICE, "s", deleting=True), servers(deleting=True), worker(0)]
    assert deleted(step(SUCCEEDED, *going)) == ["worker-0"]


def test_the_network_policy_is_deleted_after_the_pods() -> None:
    serving = a_pod(names.PS, 0, "n", deleting=True)
    assert "NetworkPolicy" not in deleted(step(SUCCEEDED, *EVERYTHING, CHIEF, serving))
    assert "ConfigMap" in deleted(step(SUCCEEDED, *EVERYTHING, CHIEF, serving))
    assert "NetworkPolicy" in deleted(step(SUCCEEDED, *EVERYTHING, CHIEF))


ATTEMPTS: dict[str, tuple[tuple[Child | Pod, ...], dict[str, Any], list[str]]] = {
    "ended": ((attempt("chief", 1), CHIEF), {}, []),
    "without a pod": ((attempt("chief", 1),), {}, []),
    "running": ((attempt("chief", 1), a_pod("chief", 0, "n")), {}, ["chief-1"]),
    "one of its pods runs": ((attempt("chief", 1), CHIEF, a_pod("chief", 0, "n")), {}, ["chief-1"]),
    "an older one has ended too": ((attempt("chief", 1), attempt("chief", 2), CHIEF), {}, ["chief-1"]),
    "an older one runs": (
        (attempt("chief", 2), a_pod("chief", 0, "n"), a_pod("chief", 0, "n", term=2, container=OVER)),
        {},
        [],
    ),
    "its success is on record": ((attempt("chief", 1), a_pod("chief", 0, "n")), {"chief": {"succeeded": 1}}, []),
    "it has no success on record": (
        (attempt("chief", 1), a_pod("chief", 0, "n")),
        {"chief": {"succeeded": 0}, "evaluator": {"succeeded": 1}},
        ["chief-1"],
    ),
    "a success is on record, and it is older": (
        (attempt("chief", 1), attempt("chief", 2), a_pod("chief", 0, "n")),
        {"chief": {"succeeded": 1}},
        ["chief-1"],
    ),
    "the evaluator's has ended": (
        (attempt("evaluator", 3), a_pod("evaluator", 0, "n", term=3, container=OVER), a_pod("chief", 0, "n", term=3)),
        {},
        [],
    ),
    "the evaluator's runs": ((attempt("evaluator", 3), a_pod("evaluator", 0, "n", term=3)), {}, ["evaluator-3"]),
    "the evaluator's success is on record": (
        (attempt("evaluator", 3), a_pod("evaluator", 0, "n", term=3)),
        {"evaluator": {"succeeded": 1}},
        [],
    ),
    "the evaluator's has no success on record": (
        (attempt("evaluator", 3), a_pod("evaluator", 0, "n", term=3)),
        {"chief": {"succeeded": 1}},
        ["evaluator-3"],
    ),
}


@pytest.mark.parametrize("which", ATTEMPTS)
def test_a_finished_attempt_keeps_its_log(which: str) -> None:
    seen, status, expected = ATTEMPTS[which]
    assert deleted(step(SUCCEEDED, *seen, **status)) == expected


ALL_STAY = {"runPolicy": {"cleanPodPolicy": {"onSuccess": "None"}}}


def test_retained_pods_keep_the_objects_that_they_need() -> None:
    chief_stays = {"chief": {"cleanPodPolicy": {"onSuccess": "None"}}}
    found = step(SUCCEEDED, *EVERYTHING, attempt("chief", 1), attempt("evaluator", 1), CHIEF, spec=chief_stays)
    assert deleted(found) == [*WORKLOADS, *FOR_PODS], "an attempt that has ended needs neither map nor launcher"
    assert not found.idle
    found = step(SUCCEEDED, *EVERYTHING, attempt("chief", 1), a_pod("chief", 0, "n"), spec=chief_stays)
    assert (deleted(found), found.narrow, found.idle, found.until) == (WORKLOADS, (), True, None)
    assert deleted(step(SUCCEEDED, *EVERYTHING, spec=ALL_STAY)) == []


@pytest.mark.parametrize("labels", [{}, {names.LABEL_ROLE: "stranger"}])
def test_a_workload_without_a_known_role_is_a_workers(labels: dict[str, str]) -> None:
    found = a_child(Kind.DEPLOYMENT, "broken", labels=labels)
    for role, expected in ((names.WORKER, []), (names.PS, ["broken"])):
        assert deleted(step(SUCCEEDED, found, spec={role: {"cleanPodPolicy": {"onSuccess": "None"}}})) == expected


def test_a_stateful_set_counts_as_servers_whatever_its_labels() -> None:
    found = servers(labels={names.LABEL_ROLE: names.WORKER})
    assert deleted(step(SUCCEEDED, found, spec={"ps": {"cleanPodPolicy": {"onSuccess": "None"}}})) == []


UNTIL = NOW + timedelta(seconds=86400)
STANDBYS = servers("digits-standby")
FAILURES: dict[str, tuple[list[str], tuple[int, ...], bool]] = {
    # the failed replica: the deleted owners of pods, the kept server, whether its pod would run again
    "ps/2": (["digits-standby", "worker-0", "worker-1", "chief-1", "chief-2", "evaluator-1"], (2,), True),
    "worker/1": (["digits-ps", "digits-standby", "worker-0", "chief-1", "chief-2", "evaluator-1"], (), True),
    "chief/0": (["digits-ps", "digits-standby", "worker-0", "worker-1", "chief-1", "evaluator-1"], (), False),
    "evaluator/0": (["digits-ps", "digits-standby", "worker-0", "worker-1", "chief-1", "chief-2"], (), True),
}


@pytest.mark.parametrize("replica", FAILURES)
def test_a_failed_job_keeps_the_replica_that_failed_it(replica: str) -> None:
    goes, narrowed, idle = FAILURES[replica]
    attempts = attempt("chief", 1), attempt("chief", 2), attempt("evaluator", 1)
    pods = a_pod("chief", 0, "n", term=2, container=OVER), a_pod("evaluator", 0, "n")
    seen: tuple[Child | Pod, ...] = (servers(), STANDBYS, worker(0), worker(1), *OTHERS, *attempts, *pods)
    found = step(FAILED, *seen, failedReplica=replica)
    pods_need = [] if idle else FOR_PODS[:1]
    assert deleted(found) == [*goes, *FOR_OTHERS, *pods_need], "the evaluator runs, so the network stays closed"
    assert [(child.name, ordinal) for child, ordinal in found.narrow] == [("digits-ps", n) for n in narrowed]
    assert (found.idle, found.until) == (idle, UNTIL)


@pytest.mark.parametrize(
    ("failures", "kept"),
    [({1: 2}, ["digits-standby"]), ({0: 1, 1: 1}, ["digits-ps", "digits-standby"]), ({1: 0}, ["digits-standby"])],
)
def test_a_failed_shard_keeps_the_members_that_have_failed(failures: dict[int, int], kept: list[str]) -> None:
    records = [{"role": "ps", "index": 2, "member": m, "failures": n, "restarts": 2} for m, n in failures.items()]
    others = [{"role": "ps", "index": 1, "failures": 1}, {"role": "worker", "index": 2, "failures": 1}]
    spec = {"ps": {"replicas": 3, "standby": {"mode": "Warm"}}}
    seen = servers(), servers("digits-standby")
    found = step(FAILED, *seen, spec=spec, failedReplica="ps/2", replicaRecords=[*others, *records])
    assert [(child.name, ordinal) for child, ordinal in found.narrow] == [(name, 2) for name in kept]
    assert deleted(found) == [child.name for child in seen if child.name not in kept]


@pytest.mark.parametrize(
    ("spec", "narrowed"),
    [
        ({"replicas": 3}, True),
        ({"replicas": 1}, True),
        ({"replicas": 1, "ordinals": None}, True),
        ({"replicas": 1, "ordinals": {"start": 1}}, True),
        ({"replicas": 2, "ordinals": {"start": 2}}, True),
        ({"replicas": 1, "ordinals": {"start": 2}}, False),
    ],
)
def test_servers_are_narrowed_once(spec: dict[str, Any], narrowed: bool) -> None:
    assert bool(step(FAILED, servers(spec=spec), failedReplica="ps/2").narrow) is narrowed
    assert not step(FAILED, servers(spec=spec, deleting=True), failedReplica="ps/2").narrow


def test_a_set_without_ordinals_starts_at_server_0() -> None:
    for spec, narrowed in (({"replicas": 1}, False), (None, False), ({"replicas": 2}, True)):
        child = servers(spec=spec) if spec is not None else servers(spec={})
        assert bool(step(FAILED, child, failedReplica="ps/0").narrow) is narrowed


def test_the_failed_replica_is_deleted_after_its_retention() -> None:
    spec = {"runPolicy": {"cleanPodPolicy": {"keepFailedSeconds": 60}}}
    for seconds, kept in ((59, True), (60, False)):
        found = step(FAILED, worker(1), now=NOW + timedelta(seconds=seconds), spec=spec, failedReplica="worker/1")
        assert (found.until, deleted(found)) == ((NOW + timedelta(seconds=60), []) if kept else (None, ["worker-1"]))
    stays = spec | {"chief": {"cleanPodPolicy": {"onFailure": "None"}}}
    found = step(FAILED, attempt("chief", 1), now=NOW + timedelta(seconds=60), spec=stays, failedReplica="worker/1")
    assert found.until is None, "the other kept objects have no deadline"


def test_without_a_failed_replica_there_is_no_deadline() -> None:
    assert step(FAILED, worker(1), failedReplica="worker/0").until is None
    assert step(FAILED, worker(1)) == CleanUpStep(delete=(worker(1),))
    stays = step(FAILED, worker(1), *OTHERS, spec={"worker": {"cleanPodPolicy": {"onFailure": "None"}}})
    assert (deleted(stays), stays.until, stays.idle) == ([], None, True)
    found = step(FAILED, worker(1), failedReplica="worker/1", completionTime=None)
    assert (deleted(found), found.until) == ([], None)
