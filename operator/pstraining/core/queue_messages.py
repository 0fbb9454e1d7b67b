"""The messages of a job with a queue, which quote Kueue's messages where there are any."""

from typing import Final

from pstraining.api import names
from pstraining.core.actions import Kind
from pstraining.core.policies.admission import QueueState
from pstraining.core.queue_workload import QueueCondition, QueueWorkload
from pstraining.resources import kueue
from pstraining.resources.installation import KueueSupport
from pstraining.resources.kueue import WorkloadTerms

KEPT: Final = (
    f"The API server does not serve Workloads of {kueue.API_VERSION}: install Kueue. The job runs on without an "
    "admission. No worker and no attempt of the chief or the evaluator is created meanwhile. Changes of ps.replicas, "
    "ps.template and resources wait."
)
"""The message for a job that runs while Kueue is not installed."""
_STOPPED_BY_KUEUE: Final = "DeactivatedDueTo"
"""Begin of the reason of an eviction for which Kueue has set spec.active to false, such as a time limit."""


def ignored(state: QueueState) -> str:
    """Return the message for a job whose queue the operator ignores."""
    return (
        f"The label {kueue.LABEL_QUEUE} names the queue {state.queue}, but the operator ignores queues: the job runs "
        "without an admission. Set kueue.enabled in the values of the operator's chart, or remove the label."
    )


def admitted(state: QueueState) -> str:
    """Return the message for an admitted job."""
    current = state.current
    queue = "" if current is None else str((current.status.get("admission") or {}).get("clusterQueue", ""))
    wanted, workers = state.job.spec.worker.replicas, state.workers
    message = f"ClusterQueue {queue} has admitted the job"
    if workers != wanted:
        message += f" with {workers} of {wanted} workers"
        waits = state.next_slice if state.former is None else current
        if waits is not None:
            message += f"; Workload {waits.name} waits. {_reason(waits)}".rstrip().removesuffix(".")
    return f"{message}. {_postponed(state)}".strip()


def _postponed(state: QueueState) -> str:
    """Return what a running job waits for, or its changes that wait until it queues again; empty without any."""
    current, wanted = state.current, kueue.terms(state.job)
    if current is None or state.prebuilt or kueue.is_dispatched(state.job):
        return ""
    if state.unknown_flavors:
        return f"{_lacks_flavor(state)} No worker and no attempt of the chief or the evaluator is created meanwhile."
    if state.lacks_object and state.priority_class is not None:
        return _absent(state.priority_class)
    asked = current.terms
    changes = [
        *(["worker.minReplicas"] if (asked.fewest_workers, asked.is_elastic) != _elasticity(wanted) else []),
        *([f"the label {kueue.LABEL_MAX_SECONDS}"] if asked.max_seconds != wanted.max_seconds else []),
        *(["the priority class"] if not state.keeps_priority and not state.may_reprioritize else []),
    ]
    return f"These changes wait until the job queues again: {', '.join(changes)}." if changes else ""


def _elasticity(terms: WorkloadTerms) -> tuple[int | None, bool]:
    return terms.fewest_workers, terms.is_elastic


def _absent(found: tuple[Kind, str]) -> str:
    return f"{found[0]} {found[1]} does not exist or cannot be read: create it, or name another one."


def stopping(state: QueueState) -> str:
    """Return the message for a job that stops because it is no longer admitted."""
    first = "The chief" if state.job.spec.chief.enabled else "Worker 0"
    left = f"`kubectl get pods -l {names.LABEL_JOB}={state.job.metadata.name}` shows what is left"
    return f"{waiting(state).removesuffix('.')}. {first} stops first, then all others; {left}."


def waiting(state: QueueState) -> str:
    """Return why the job is not admitted."""
    current = state.current
    if state.support is KueueSupport.MISSING:
        return (
            f"The API server does not serve Workloads of {kueue.API_VERSION}: install Kueue, or suspend the job and "
            f"remove its label {kueue.LABEL_QUEUE}. The job waits, and starts automatically."
        )
    if current is None and state.prebuilt:
        return f"Workload {state.prebuilt}, which MultiKueue sends with the job, does not exist."
    # A Workload with quota, or one that stays as it is, keeps the priority that it was created with.
    keeps = current is not None and (current.has_quota or state.is_settled)
    if not keeps and state.priority is None and state.priority_class is not None:
        return _absent(state.priority_class)
    if current is None:
        return "The Workload of the job is being created."
    if not current.is_active:
        return _inactive(current)
    if current.may_run and not state.matches:
        return "The pods of the job have changed: it queues again."
    if state.is_admitted:
        return _cannot_start(state)
    return _reason(current) or f"Workload {current.name} waits for Kueue, which has not answered yet."


def _inactive(workload: QueueWorkload) -> str:
    """Return that a Workload was stopped, and why, if it was not its user who did it."""
    words = f"spec.active of Workload {workload.name} is false: the job queues again when it is true."
    found = workload.condition(QueueCondition.EVICTED)
    if found.get("status") != "True" or not str(found.get("reason", "")).startswith(_STOPPED_BY_KUEUE):
        return words
    return f"{found['reason']}: {found.get('message', '')}".removesuffix(".") + f". {words}"


def _cannot_start(state: QueueState) -> str:
    if state.unknown_flavors:
        return _lacks_flavor(state)
    return f"The admission cannot be applied: {state.conflict}. Suspend the job to return its quota."


def _lacks_flavor(state: QueueState) -> str:
    return f"ResourceFlavor {min(state.unknown_flavors)} of the admission does not exist or cannot be read."


def _reason(workload: QueueWorkload) -> str:
    """Return Kueue's message about a Workload that waits; empty without one."""
    evicted, reserved = workload.condition(QueueCondition.EVICTED), workload.condition(QueueCondition.QUOTA_RESERVED)
    # An evicted Workload stays evicted until it has quota again. Meanwhile, QuotaReserved says why it waits.
    is_past = not workload.has_quota and reserved.get("message", "") not in ("", evicted.get("message"))
    for kind in (QueueCondition.EVICTED, QueueCondition.QUOTA_RESERVED, QueueCondition.ADMITTED):
        found = workload.condition(kind)
        waits = found.get("status") == ("True" if kind is QueueCondition.EVICTED else "False")
        if waits and found.get("message") and not (is_past and kind is QueueCondition.EVICTED):
            return f"{found.get('reason', '')}: {found['message']}"
    checks = (c for c in workload.status.get("admissionChecks") or () if c.get("state") != "Ready")
    return next((f"Admission check {c['name']} is {c['state']}: {c.get('message', '')}" for c in checks), "")
