"""Every row of the failure table under every restartPolicy, and the effect of rules."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.run_policy import FailureReason, RestartPolicy
from pstraining.api.status import PSTrainingJobStatus
from pstraining.core.observe import observe
from pstraining.core.policies.failure_counts import FailureCounts, count_failures
from pstraining.core.policies.failures import (
    TABLE,
    Consequence,
    cause,
    decide,
    is_final,
    is_given_up_with_its_node,
)
from pstraining.core.snapshot import Container, Pod, Termination
from pstraining.launcher import contract as launcher_contract
from tests.support.builders import NOW, job, pod, terminated, typed
from tests.support.snapshots import a_pod

OOM = terminated(137, reason="OOMKilled")


def seen(made: dict[str, Any], **status: Any) -> dict[str, Any]:
    made["status"] |= status
    return made


def disrupted(reason: str) -> dict[str, Any]:
    made = pod("worker", state=terminated(137), disrupted=True)
    made["status"]["conditions"][-1]["reason"] = reason
    return made


def init_failed() -> dict[str, Any]:
    failed = {"name": "init", "restartCount": 0, "state": terminated(4, "no data"), "image": "img:1"}
    return seen(pod("worker", state={"waiting": {"reason": "PodInitializing"}}), initContainerStatuses=[failed])


CAUSES = {
    "exit code 1": (pod("worker", state=terminated(1)), FailureReason.ERROR),
    "killed by a signal": (pod("worker", state=terminated(139)), FailureReason.ERROR),
    "over its memory limit": (pod("worker", restarts=1, last=OOM), FailureReason.OOM_KILLED),
    "the launcher gave up": (pod("worker", state=terminated(75)), FailureReason.START_TIMEOUT),
    "a wrong contract": (pod("worker", state=terminated(72)), FailureReason.ERROR),
    "wrong settings": (pod("worker", state=terminated(78)), FailureReason.BAD_SETTINGS),
    "an init container": (init_failed(), FailureReason.INIT_FAILED),
    "drained": (disrupted("EvictionByEvictionAPI"), FailureReason.EVICTED),
    "evicted by its kubelet": (disrupted("TerminationByKubelet"), FailureReason.EVICTED),
    "its device tainted": (disrupted("DeletionByDeviceTaintManager"), FailureReason.EVICTED),
    "disrupted by another controller": (disrupted("Reclaimed"), FailureReason.EVICTED),
    "evicted, of an older kubelet": (seen(pod("worker"), phase="Failed", reason="Evicted"), FailureReason.EVICTED),
    **{
        f"rejected by its kubelet: {reason}": (
            seen(pod("worker"), phase="Failed", reason=reason, containerStatuses=[]),
            FailureReason.EVICTED,
        )
        for reason in ("UnexpectedAdmissionError", "OutOfcpu", "OutOfnvidia.com/gpu", "NodeAffinity", "NodeShutdown")
    },
    "rejected for good by its kubelet": (
        seen(pod("worker"), phase="Failed", reason="SysctlForbidden", containerStatuses=[]),
        FailureReason.ERROR,
    ),
    "preempted": (disrupted("PreemptionByScheduler"), FailureReason.PREEMPTED),
    "its node lost": (disrupted("DeletionByTaintManager"), FailureReason.NODE_LOST),
    "its node gone": (disrupted("DeletionByPodGC"), FailureReason.NODE_LOST),
    "its node restarted": (pod("worker", restarts=1, last=terminated(255, reason="Unknown")), FailureReason.NODE_LOST),
    "its container not found": (
        seen(pod("chief", term=1, state=terminated(137, reason="ContainerStatusUnknown")), phase="Failed"),
        FailureReason.NODE_LOST,
    ),
    "deleted": (pod("worker", deleting=True), FailureReason.DELETED),
}
FREE, RESTART, FAIL = Consequence.RESTART_FREE, Consequence.RESTART, Consequence.FAIL_JOB
POLICIES = list(RestartPolicy)
CONSEQUENCES: dict[tuple[FailureReason, int], tuple[Consequence, ...]] = {
    # cause, exit code: under Always, OnFailure, Never, ExitCode
    (FailureReason.ERROR, 1): (RESTART, RESTART, FAIL, FAIL),
    (FailureReason.ERROR, 127): (RESTART, RESTART, FAIL, FAIL),
    (FailureReason.ERROR, 128): (RESTART, RESTART, FAIL, RESTART),
    (FailureReason.ERROR, 143): (RESTART, RESTART, FAIL, RESTART),
    (FailureReason.OOM_KILLED, 137): (RESTART, RESTART, FAIL, RESTART),
    (FailureReason.START_TIMEOUT, 75): (RESTART, RESTART, FAIL, RESTART),
    (FailureReason.BAD_SETTINGS, 78): (FAIL, FAIL, FAIL, FAIL),
    (FailureReason.INIT_FAILED, 4): (RESTART, RESTART, FAIL, FAIL),
    (FailureReason.EVICTED, 137): (FREE, FREE, FREE, FREE),
    (FailureReason.PREEMPTED, 143): (FREE, FREE, FREE, FREE),
    (FailureReason.NODE_LOST, 137): (FREE, FREE, FREE, FREE),
    (FailureReason.DELETED, 143): (FREE, FREE, FREE, FREE),
}


@pytest.mark.parametrize("name", CAUSES)
def test_causes(name: str) -> None:
    manifest, expected = CAUSES[name]
    assert cause(observe(job(), (), (manifest,)).pods[0]) == expected


def test_every_cause_is_in_the_table_and_tested() -> None:
    assert set(TABLE) == set(FailureReason) == {why for _, why in CAUSES.values()} == {why for why, _ in CONSEQUENCES}


@pytest.mark.parametrize(("why", "code"), CONSEQUENCES)
@pytest.mark.parametrize("role", ["ps", "worker", "chief", "evaluator"])
def test_consequences(role: str, why: FailureReason, code: int) -> None:
    for policy, expected in zip(POLICIES, CONSEQUENCES[why, code], strict=True):
        spec = typed(job(spec={role: {"restartPolicy": policy}}))
        assert decide(spec, role, why, code).consequence is expected, policy
        assert is_final(policy, why, code) is (expected is FAIL), policy


SECOND = timedelta(seconds=1)


def ended(at: datetime | None, role: str = names.CHIEF, **more: Any) -> Pod:
    """Return a pod whose program has ended, and whose other containers run until the pod is deleted."""
    known = {"container": Container(terminated=Termination(1, "Error", "", at)), "deleting": True, "deleted_at": NOW}
    return a_pod(role, 0, "other", **{**known, **more})


def test_the_deletion_of_a_pod_explains_the_end_of_a_program_that_ran_until_then() -> None:
    assert cause(ended(NOW - SECOND)) is FailureReason.ERROR
    assert cause(ended(NOW - SECOND, disruption="EvictionByEvictionAPI")) is FailureReason.ERROR
    assert cause(ended(NOW)) is FailureReason.DELETED
    assert cause(ended(None)) is FailureReason.DELETED
    assert cause(ended(NOW - SECOND, container=Container(running=True))) is FailureReason.DELETED
    assert cause(ended(NOW - SECOND, deleted_at=None, disruption="EvictionByEvictionAPI")) is FailureReason.EVICTED


@pytest.mark.parametrize("code", [137, 143])
def test_a_signal_follows_the_deletion_also_on_a_node_whose_clock_is_behind(code: int) -> None:
    by_signal = Container(terminated=Termination(code, "Error", "", NOW - SECOND))
    drained = ended(None, phase="Failed", container=by_signal, disruption="EvictionByEvictionAPI")
    assert cause(drained) is FailureReason.EVICTED
    assert cause(ended(None, container=by_signal)) is FailureReason.DELETED
    killed = Container(terminated=Termination(137, "OOMKilled", "", NOW - SECOND))
    assert cause(ended(None, container=killed)) is FailureReason.OOM_KILLED


def test_deletion_of_its_pod_ends_a_program_that_would_have_restarted() -> None:
    assert cause(ended(NOW - SECOND, names.WORKER)) is FailureReason.DELETED
    assert cause(ended(NOW - SECOND, names.WORKER, phase="Failed")) is FailureReason.ERROR


@pytest.mark.parametrize(
    ("disruption", "with_its_node"),
    [
        ("DeletionByTaintManager", True),
        ("DeletionByPodGC", True),
        ("NodeLost", True),
        ("EvictionByEvictionAPI", False),
        ("", False),
    ],
)
def test_what_gives_a_pod_up_with_its_node(disruption: str, with_its_node: bool) -> None:
    assert is_given_up_with_its_node(a_pod(names.PS, 0, "other", disruption=disruption)) is with_its_node


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("code", [1, 72, 75, 78, 127, 128, 137, 255])
def test_the_launcher_and_the_table_agree(policy: RestartPolicy, code: int) -> None:
    """The launcher and the table agree on the ends that are final."""
    spec = typed(job(spec={"worker": {"restartPolicy": policy}}))
    why = cause(observe(job(), (), (pod("worker", state=terminated(code)),)).pods[0])
    assert launcher_contract.is_final(policy, code) is (decide(spec, "worker", why, code).consequence is FAIL)


RULES: dict[str, tuple[dict[str, Any], str, FailureReason, int, Consequence]] = {
    "a role": ({"role": "worker", "action": "FailJob"}, "worker", FailureReason.ERROR, 1, FAIL),
    "another role": ({"role": "chief", "action": "FailJob"}, "worker", FailureReason.ERROR, 1, RESTART),
    "a code": ({"exitCodes": {"values": [42]}, "action": "FailJob"}, "chief", FailureReason.ERROR, 42, FAIL),
    "another code": ({"exitCodes": {"values": [42]}, "action": "FailJob"}, "chief", FailureReason.ERROR, 43, RESTART),
    "all but a code": (
        {"exitCodes": {"values": [42], "negate": True}, "action": "FailJob"},
        "chief",
        FailureReason.ERROR,
        43,
        FAIL,
    ),
    "a code of a pod that was evicted": (
        {"exitCodes": {"values": [137]}, "action": "FailJob"},
        "chief",
        FailureReason.EVICTED,
        137,
        FREE,
    ),
    "a reason": ({"reasons": ["OOMKilled"], "action": "FailJob"}, "worker", FailureReason.OOM_KILLED, 137, FAIL),
    "another reason": ({"reasons": ["OOMKilled"], "action": "FailJob"}, "worker", FailureReason.ERROR, 1, RESTART),
    "a disruption": ({"reasons": ["Evicted"], "action": "RestartReplica"}, "ps", FailureReason.EVICTED, 137, RESTART),
    "ignored": ({"reasons": ["OOMKilled"], "action": "Ignore"}, "ps", FailureReason.OOM_KILLED, 137, FREE),
    "all anew": ({"action": "RestartJob"}, "ps", FailureReason.ERROR, 1, Consequence.RESTART_JOB),
}


@pytest.mark.parametrize("name", RULES)
def test_rules(name: str) -> None:
    rule, role, why, code, expected = RULES[name]
    found = decide(typed(job(spec={"failurePolicy": {"rules": [rule]}})), role, why, code)
    assert found.consequence is expected
    not_matching = ("another role", "another code", "another reason", "a code of a pod that was evicted")
    assert (found.rule == 0) is (name not in not_matching)


def test_the_first_rule_that_matches_decides() -> None:
    rules = [{"role": "chief", "action": "FailJob"}, {"action": "Ignore"}, {"action": "RestartJob"}]
    found = decide(typed(job(spec={"failurePolicy": {"rules": rules}})), "worker", FailureReason.ERROR, 1)
    assert (found.consequence, found.rule) == (FREE, 1)


STARTED = PSTrainingJobStatus(start_time=NOW)


def counted(spec: dict[str, Any], *pods: dict[str, Any]) -> FailureCounts:
    manifest = job(spec=spec)
    return count_failures(typed(manifest), observe(manifest, (), pods), STARTED)


def test_a_program_that_always_restarts_does_not_fail_by_exiting() -> None:
    spec = {"worker": {"restartPolicy": "Always"}}
    found = counted(spec, pod("worker", 1, restarts=2, last=terminated(0)))
    assert [(r.failures, r.restarts) for r in found.records] == [(0, 2)]


def test_worker_zero_in_the_chiefs_place_is_not_restarted() -> None:
    spec = {"worker": {"restartPolicy": "Always"}, "chief": {"enabled": False}}
    assert counted(spec, pod("worker", 0, state=terminated(0))).records == ()


def test_init_containers_count() -> None:
    found = counted({}, init_failed())
    assert [(r.failures, r.restarts) for r in found.records] == [(1, 1)]
    reported = found.failures[0].last_failure
    assert (reported.exit_code, reported.reason, reported.message) == (4, "InitFailed", "no data")


def test_an_ignored_failure_counts_only_as_a_restart() -> None:
    spec = {"failurePolicy": {"rules": [{"exitCodes": {"values": [9]}, "action": "Ignore"}]}}
    found = counted(spec, pod("worker", restarts=3, last=terminated(9)))
    assert [(r.failures, r.restarts) for r in found.records] == [(0, 3)]


def test_a_disruption_that_a_rule_counts_counts() -> None:
    spec = {"failurePolicy": {"rules": [{"reasons": ["Deleted"], "action": "RestartReplica"}]}}
    found = counted(spec, pod("worker", deleting=True))
    assert [(r.failures, r.restarts) for r in found.records] == [(1, 1)]


def test_failed_pods_before_a_restart_of_the_job_do_not_count() -> None:
    manifest, old = job(), pod("worker", state=terminated(1), created=timedelta(seconds=5))
    status = STARTED.model_copy(update={"job_restarts": 1})
    assert count_failures(typed(manifest), observe(manifest, (), (old,)), status).records == ()
