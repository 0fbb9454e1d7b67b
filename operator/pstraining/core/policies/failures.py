"""What is the consequence of a replica's failure? A table of causes, and the rules that map them to consequences.

The first matching rule of spec.failurePolicy decides. Without one, a replica that Kubernetes ended restarts without
being counted, wrong settings fail the job, and the role's restartPolicy decides about all other failures.
docs/reference/failures.md is generated from this table.
"""

from dataclasses import dataclass
from enum import StrEnum

from pstraining.api import contract, names
from pstraining.api.models import PSTrainingJob, Role
from pstraining.api.run_policy import FailureAction, FailureReason, FailureRule, RestartPolicy
from pstraining.core.observe import NOT_ADMITTED
from pstraining.core.snapshot import Pod, Termination

FIRST_RETRYABLE = 128
"""Under restartPolicy ExitCode, smaller exit codes are the program's own, and final."""


class Consequence(StrEnum):
    """The consequence of a failure."""

    RESTART = "Restart"
    """The replica restarts, and the failure counts against its budget."""
    RESTART_FREE = "RestartFree"
    """The replica restarts, and the failure is not counted."""
    RESTART_JOB = "RestartJob"
    FAIL_JOB = "FailJob"


@dataclass(frozen=True)
class Row:
    """One cause of failures."""

    what: str
    """Description for the documentation."""
    seen: str
    """The observation that identifies the cause."""
    disruption: bool = False
    """Whether Kubernetes ended the replica; never counted, under any restartPolicy."""
    retryable: bool = True
    """Whether restartPolicy ExitCode restarts the replica; only the row Error depends on the exit code."""
    final: bool = False
    """Whether the job fails under any restartPolicy, because another run would fail as well."""


TABLE: dict[FailureReason, Row] = {
    FailureReason.ERROR: Row("the program exits with a code other than 0", "exit code"),
    FailureReason.OOM_KILLED: Row("the kernel kills the program at its memory limit", "container reason OOMKilled"),
    FailureReason.START_TIMEOUT: Row(
        "the launcher or the runtime has waited too long for the parameter servers",
        f"exit code {contract.EXIT_START_TIMEOUT}",
    ),
    FailureReason.BAD_SETTINGS: Row(
        "the program or the job's settings are wrong, so another run would fail as well",
        f"exit code {contract.EXIT_BAD_SETTINGS}",
        final=True,
    ),
    FailureReason.INIT_FAILED: Row("an init container fails", "status of the init container", retryable=False),
    FailureReason.EVICTED: Row(
        "the pod is evicted, drained, or ended or rejected by its kubelet",
        "condition DisruptionTarget: EvictionByEvictionAPI, TerminationByKubelet, and any reason that is not named "
        "below; pod reason Evicted, Shutdown, UnexpectedAdmissionError, OutOfcpu, NodeAffinity and the like",
        disruption=True,
    ),
    FailureReason.PREEMPTED: Row(
        "the pod is preempted by a pod of higher priority",
        "condition DisruptionTarget: PreemptionByScheduler; pod reason Preempting",
        disruption=True,
    ),
    FailureReason.NODE_LOST: Row(
        "the node no longer responds, was deleted or was restarted",
        "condition DisruptionTarget: DeletionByTaintManager, DeletionByPodGC; pod reason NodeLost; container reason "
        "ContainerStatusUnknown or Unknown",
        disruption=True,
    ),
    FailureReason.DELETED: Row(
        "the pod is deleted by a user or a controller other than the operator", "deletionTimestamp", disruption=True
    ),
}
"""Every cause that spec.failurePolicy can name."""

_DISRUPTIONS = {
    "EvictionByEvictionAPI": FailureReason.EVICTED,
    "TerminationByKubelet": FailureReason.EVICTED,
    "Evicted": FailureReason.EVICTED,
    NOT_ADMITTED: FailureReason.EVICTED,
    "Shutdown": FailureReason.EVICTED,
    "Terminated": FailureReason.EVICTED,
    "PreemptionByScheduler": FailureReason.PREEMPTED,
    "Preempting": FailureReason.PREEMPTED,
    "DeletionByTaintManager": FailureReason.NODE_LOST,
    "DeletionByPodGC": FailureReason.NODE_LOST,
    "NodeLost": FailureReason.NODE_LOST,
}
_UNOBSERVED = ("ContainerStatusUnknown", "Unknown")
"""The reasons of a container whose end was not observed, as after a restart of its node. The exit code is then 137 from
the kubelet, and 255 from the container runtime."""
STOPPED = (128 + 9, 128 + 15)
"""The exit codes after SIGKILL and SIGTERM."""
_ACTIONS = {
    FailureAction.FAIL_JOB: Consequence.FAIL_JOB,
    FailureAction.RESTART_REPLICA: Consequence.RESTART,
    FailureAction.RESTART_JOB: Consequence.RESTART_JOB,
    FailureAction.IGNORE: Consequence.RESTART_FREE,
}


@dataclass(frozen=True)
class Decision:
    """The consequence of a failure, with the rule that decided."""

    consequence: Consequence
    cause: FailureReason
    rule: int | None = None
    """Position of the deciding rule in spec.failurePolicy; None if no rule matched."""
    is_failure: bool = True
    """Whether the end is a failure, and not one that the operator or the program has intended."""


def role_spec(job: PSTrainingJob, role: str) -> Role:
    """Return the part of the spec for a role."""
    roles: dict[str, Role] = {
        names.PS: job.spec.ps,
        names.WORKER: job.spec.worker,
        names.CHIEF: job.spec.chief,
        names.EVALUATOR: job.spec.evaluator,
    }
    return roles[role]


def newest_end(pod: Pod) -> Termination | None:
    """Return the last end of the training container, or of the init container that blocks it; None without one."""
    init = pod.blocked_init
    if init is not None and (end := init.terminated or init.last) is not None:
        return end
    return pod.container.terminated or pod.container.last


def cause(pod: Pod) -> FailureReason:
    """Return the cause of the end of a pod's newest run, which must have ended."""
    if not _had_ended(pod):
        if pod.disruption:
            return _DISRUPTIONS.get(pod.disruption, FailureReason.EVICTED)
        if pod.deleting:
            return FailureReason.DELETED
    end = newest_end(pod)
    if end is not None and end.reason in _UNOBSERVED:
        return FailureReason.NODE_LOST
    if pod.blocked_init is not None:
        return FailureReason.INIT_FAILED
    if end is not None and end.reason == "OOMKilled":
        return FailureReason.OOM_KILLED
    if end is not None and end.exit_code == contract.EXIT_START_TIMEOUT:
        return FailureReason.START_TIMEOUT
    if end is not None and end.exit_code == contract.EXIT_BAD_SETTINGS:
        return FailureReason.BAD_SETTINGS
    return FailureReason.ERROR


def _had_ended(pod: Pod) -> bool:
    """Whether the program had ended before the deletion of its pod, whose other containers kept running."""
    end = pod.container.terminated
    if not pod.finished or end is None or end.finished_at is None or pod.deleted_at is None:
        return False
    # The signals of the kubelet follow the deletion, also by a node's clock that is behind that of the API server.
    if end.exit_code in STOPPED and end.reason != "OOMKilled":
        return False
    return end.finished_at < pod.deleted_at


def is_given_up_with_its_node(pod: Pod) -> bool:
    """Whether Kubernetes has ended a pod because its node is lost."""
    return _DISRUPTIONS.get(pod.disruption) is FailureReason.NODE_LOST


def decide(job: PSTrainingJob, role: str, why: FailureReason, exit_code: int | None) -> Decision:
    """Return the consequence of a failure.

    Args:
        job: the job.
        role: the role of the failed replica.
        why: the cause.
        exit_code: exit code of the training container; None without one.
    """
    for position, rule in enumerate(job.spec.failure_policy.rules):
        if matches(rule, role, why, exit_code):
            return Decision(_ACTIONS[rule.action], why, position)
    return Decision(_by_policy(role_spec(job, role).restart_policy, why, exit_code), why)


def is_final(policy: RestartPolicy, why: FailureReason, exit_code: int | None) -> bool:
    """Whether a restartPolicy makes this failure final, so that the launcher does not run the program again."""
    return _by_policy(policy, why, exit_code) is Consequence.FAIL_JOB


def _by_policy(policy: RestartPolicy, why: FailureReason, exit_code: int | None) -> Consequence:
    row = TABLE[why]
    if row.disruption:
        return Consequence.RESTART_FREE
    if row.final:
        return Consequence.FAIL_JOB
    match policy:
        case RestartPolicy.NEVER:
            return Consequence.FAIL_JOB
        case RestartPolicy.EXIT_CODE:
            is_own_code = why is FailureReason.ERROR and exit_code is not None and exit_code < FIRST_RETRYABLE
            return Consequence.RESTART if row.retryable and not is_own_code else Consequence.FAIL_JOB
    return Consequence.RESTART


def matches(rule: FailureRule, role: str, why: FailureReason, exit_code: int | None) -> bool:
    """Return whether a rule matches a failure.

    Args:
        rule: the rule.
        role: the role of the failed replica.
        why: the cause.
        exit_code: exit code of the training container; None without one.
    """
    if rule.role is not None and rule.role != role:
        return False
    if rule.reasons is not None and why not in rule.reasons:
        return False
    if rule.exit_codes is None:
        return True
    # A pod that Kubernetes ended has the exit code of the signal, which is not the program's.
    if TABLE[why].disruption or not exit_code:
        return False
    return (exit_code in rule.exit_codes.values) is not rule.exit_codes.negate
