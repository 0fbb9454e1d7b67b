"""Finds the causes of a job's problem in its evidence, the most likely one first. Pure: no requests.

Conditions come before pods and logs. Causes that stop a job come before causes that slow it or end by themselves, and
remarks come last.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.cli.client import Object
from pstraining.cli.doctor.advice import (
    LAUNCHER_WAITS,
    NAMESPACE,
    NOT_READY,
    NOTHING_HAPPENS,
    OF_EVENTS,
    OF_FAILURES,
    OF_REASONS,
    RESTARTS,
    STANDS_STILL,
    STOPS,
    Advice,
    of_waiting,
)
from pstraining.cli.doctor.checks import Check, CheckResult
from pstraining.cli.jobs import condition, is_true, manager, one_line
from pstraining.cli.status.pod_state import state, why
from pstraining.cli.tasks import TaskPod, TaskRole
from pstraining.cli.waiting import is_seen, is_suspended
from pstraining.core.policies.spec_warnings import CORRECTED
from pstraining.resources import kueue

_STOPPED = (Condition.INVALID_TEMPLATE, Condition.NAME_CONFLICT, Condition.STALLED, Condition.STATUS_INCOMPLETE)
"""Conditions that stop a job until its spec or the cluster is corrected."""
_PASSING = (Condition.RESCALING, Condition.RESTARTING, Condition.UPDATING)
"""Conditions that end by themselves."""
_REMARKS = (Condition.DEGRADED, *CORRECTED)
_BY_ITSELF = {
    *(Reason.WAITING_FOR_PODS, Reason.CHILDREN_MISSING, Reason.SCHEDULING_GATED, Reason.WAITING_FOR_GANG),
    *(Reason.SUSPENDED, Reason.STOPPING, Reason.AWAITS_ADMISSION, Reason.QUEUE_IGNORED),
}
"""Reasons that are not faults: the job waits as requested, or for other jobs."""


@dataclass(frozen=True)
class JobEvidence:
    """The data of a job that `doctor` has read."""

    job: Object
    tasks: Sequence[TaskPod] = ()
    events: Mapping[str, Sequence[Object]] = field(default_factory=dict)
    """Events of pending pods without a reason in their status, by the pod's uid."""
    logs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Last lines of tasks' logs, by the pod's uid."""
    steps_per_second: float | None = None
    """The job's rate; None if it is unknown."""
    installation: Sequence[Check] = ()
    """Failed checks of CRD and operator; read if no operator has processed the job."""
    namespace: str = ""
    """The namespace that commands must name; empty if it is the context's."""

    def cause(self, name: str, message: str, advice: Advice | None, result: CheckResult = CheckResult.FAIL) -> Check:
        """Return a cause, with the action for this job."""
        return Check(name, result, one_line(message), advice.text(self.namespace) if advice else "")


def causes(found: JobEvidence) -> list[Check]:
    """Return the causes of a job's problem, the most likely one first; empty without any.

    Args:
        found: the job's evidence.
    """
    ordered = [*_unmanaged(found), *_ended(found), *_unseen(found)]
    if not ordered and not is_true(found.job, Condition.SUCCEEDED):
        ordered = [*_conditions(found), *_pods(found), *_logs(found), *_standstill(found), *_failures(found)]
    # The sort is stable: each of the two groups keeps its order.
    return sorted(dict.fromkeys([*ordered, *_remarks(found)]), key=lambda check: check.result is not CheckResult.FAIL)


def _unmanaged(found: JobEvidence) -> Iterator[Check]:
    metadata = found.job["metadata"]
    other, field = manager(found.job)
    if other == names.MULTIKUEUE:
        message = f"Kueue sends this job to another cluster ({field}), where its pods are."
        yield found.cause("managedBy", message, _elsewhere(metadata), CheckResult.WARN)
    elif other != names.MANAGED_BY:
        message = f"{other} manages this job ({field}), and the operator does not."
        yield found.cause("managedBy", message, Advice(f"Ask {other}.", NOTHING_HAPPENS), CheckResult.WARN)
    elif metadata.get("deletionTimestamp"):
        left = [task.pod.name for task in found.tasks]
        message = f"The job is being deleted. Its pods: {', '.join(left) or 'none'}."
        yield found.cause("deleted", message, Advice("Wait for the pods' grace period.", STOPS), CheckResult.WARN)


def _elsewhere(metadata: Object) -> Advice:
    if kueue.LABEL_QUEUE not in (metadata.get("labels") or {}):
        return Advice(f"Name a queue in the label {kueue.LABEL_QUEUE}: Kueue ignores jobs without it.", NOTHING_HAPPENS)
    return Advice(
        f"Look at the job's Workload, `kubectl get workloads{NAMESPACE}`, and run this command in the other cluster.",
        NOTHING_HAPPENS,
    )


def _unseen(found: JobEvidence) -> Iterator[Check]:
    """Yield the causes if no operator has processed the job, or its last change."""
    job = found.job
    if not is_seen(job, int(job["metadata"].get("generation") or 0)) and not list(_unmanaged(found)):
        yield from found.installation
        subject = "the last change of the spec" if job.get("status") else "this job"
        advice = Advice("Check that an operator runs, and watches this namespace.", NOTHING_HAPPENS)
        yield found.cause("operator", f"No operator has processed {subject} yet.", advice)


def _ended(found: JobEvidence) -> Iterator[Check]:
    if not is_true(found.job, Condition.FAILED):
        return
    status, failed = found.job["status"], condition(found.job, Condition.FAILED)
    role, _, index = str(status.get("failedReplica") or "").partition("/")
    if role:
        yield from (f for f in _failure(found, TaskRole(role), index) if f.name != failed["reason"])
    yield found.cause(failed["reason"], failed.get("message", ""), _of_reason(failed["reason"]))


def _failure(
    found: JobEvidence, role: TaskRole, index: str = "", result: CheckResult = CheckResult.FAIL
) -> Iterator[Check]:
    """Yield the cause of the role's last failure, if it has one."""
    job = found.job
    failure = ((job.get("status") or {}).get(role.value) or {}).get("lastFailure")
    if not failure:
        return
    reason, code = failure.get("reason") or "Error", failure.get("exitCode")
    ended = "" if code is None else f" ended with exit code {code}"
    suffix = f": {failure['message']}" if failure.get("message") else ""
    advice = OF_FAILURES.get(reason)
    if advice is not None and reason == "Error":
        chosen = f" --index {index}" if index else ""
        logs = f"kubectl pstraining logs {job['metadata']['name']} --role {role.value}{chosen} --previous{NAMESPACE}"
        advice = Advice(f"Read its log: {logs}.", RESTARTS)
    yield found.cause(reason, f"{failure['pod']}{ended}{suffix}", advice, result)


def _of_reason(reason: str) -> Advice | None:
    return OF_REASONS.get(reason) or OF_FAILURES.get(reason)


def _conditions(found: JobEvidence) -> Iterator[Check]:
    job = found.job
    held = [condition(job, kind) for kind in _STOPPED if is_true(job, kind)]
    created, running = condition(job, Condition.CREATED), condition(job, Condition.RUNNING)
    if created.get("status") == "False" and created.get("reason") != Reason.CHILDREN_MISSING:
        held.append(created)
    queued = condition(job, Condition.QUEUED)
    is_alone = is_suspended(job) or queued.get("reason") != running.get("reason")
    if queued.get("reason") in (Reason.QUEUE_IGNORED, Reason.KUEUE_NOT_INSTALLED) and is_alone:
        held.append(queued)
    if is_suspended(job):
        held += [condition(job, Condition.SUSPENDED)]
    else:
        held += [condition(job, kind) for kind in _PASSING if is_true(job, kind)]
        if running.get("reason") != Reason.TRAINING:
            held.append(running)
    for one in (c for c in held if c):
        passes = one["reason"] in _BY_ITSELF or (one["type"] in _PASSING and one["reason"] != Reason.UPDATE_REFUSED)
        yield found.cause(
            one["reason"],
            one.get("message") or f"{one['type']} is {one['status']}.",
            _of_reason(one["reason"]),
            CheckResult.WARN if passes or (one is running and one["status"] == "True") else CheckResult.FAIL,
        )


def _pods(found: JobEvidence) -> Iterator[Check]:
    """Yield the problems of pods that no condition mentions."""
    stated = " ".join(str(c.get("message") or "") for c in (found.job.get("status") or {}).get("conditions") or ())
    runs = is_true(found.job, Condition.RUNNING)
    for task in found.tasks:
        reasons = (
            why(task)
            or [
                f"{event.get('reason', '')}: {event.get('message', '')}"
                for event in found.events.get(task.pod.uid, ())
                if event.get("type") == "Warning"
            ][-1:]
        )
        if reasons and task.pod.name not in stated and not task.pod.ready and not is_suspended(found.job):
            advice = Advice(f"kubectl describe pod {task.pod.name}{NAMESPACE}", NOT_READY)
            yield found.cause(
                state(task), f"{task.name} ({task.pod.name}): {'; '.join(reasons)}", advice, _unless(runs)
            )


def _unless(runs: bool) -> CheckResult:
    return CheckResult.WARN if runs else CheckResult.FAIL


def _logs(found: JobEvidence) -> Iterator[Check]:
    """Yield the problems in the last lines of the launcher and the runtime."""
    runs = is_true(found.job, Condition.RUNNING)
    for task in found.tasks:
        lines = found.logs.get(task.pod.uid, ())
        waits = next((m for line in reversed(lines) if (m := LAUNCHER_WAITS.search(line))), None)
        if waits is not None and not task.pod.ready:
            message = f"{task.name} waits for parameter servers: {waits['what']}"
            yield found.cause("waiting for PS", message, of_waiting(waits["what"]), _unless(runs))
        newest = {str(event["event"]): event for line in lines if (event := _event(line)) is not None}
        for name, event in newest.items():
            shown = ", ".join(f"{k} {v}" for k, v in event.items() if k not in ("event", "time", "monotonic"))
            yield found.cause(name, f"{task.name} has reported {name}: {shown}", OF_EVENTS[name], CheckResult.WARN)


def _event(line: str) -> Object | None:
    """Parse a line as an event of the runtime with advice; None if it is not one."""
    if not line.startswith('{"event"'):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    # A program may print lines of its own, in which the value is no text.
    return found if isinstance(found, dict) and str(found.get("event")) in OF_EVENTS else None


def _standstill(found: JobEvidence) -> Iterator[Check]:
    runs = is_true(found.job, Condition.RUNNING) and not is_true(found.job, Condition.STALLED)
    if found.steps_per_second == 0 and runs:
        name = found.job["metadata"]["name"]
        compared = f"compare the tasks with kubectl pstraining top {name}{NAMESPACE}, and read their logs"
        todo = f"If a step should be faster, {compared}."
        message = "The job runs, and training has made no step in the last seconds."
        yield found.cause("no steps", message, Advice(todo, STANDS_STILL), CheckResult.WARN)


def _failures(found: JobEvidence) -> Iterator[Check]:
    """Yield the last failures of roles with restarts."""
    runs = is_true(found.job, Condition.RUNNING)
    for role in TaskRole:
        if int(((found.job.get("status") or {}).get(role.value) or {}).get("restarts") or 0):
            yield from _failure(found, role, "", _unless(runs))


def _remarks(found: JobEvidence) -> Iterator[Check]:
    for kind in _REMARKS:
        if is_true(found.job, kind):
            one = condition(found.job, kind)
            yield found.cause(one["reason"], one.get("message", ""), _of_reason(one["reason"]), CheckResult.WARN)
