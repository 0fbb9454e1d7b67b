"""Waiting until a job reaches a state, with a line for each change in between."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import typer

from pstraining.api import names
from pstraining.api.conditions import WITHOUT_PODS, Condition, Reason
from pstraining.cli.client import ClusterClient, Object
from pstraining.cli.errors import CommandError, RequestError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.jobs import attempted, condition, end_of, is_sent, is_true, last_state, manager
from pstraining.cli.tasks import desired

EVERY, SELDOM = 0.5, 5.0
"""Initial and maximum seconds between two polls."""
GROWTH = 1.2
"""Factor from one pause to the next."""
UNSEEN = 30.0
"""Seconds after which a wait reports that the job's last change has no status yet."""


@dataclass(frozen=True)
class Patience:
    """The timeout of a wait, its clock, and the receiver of its messages."""

    seconds: float = 300
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    report: Callable[[str], None] = typer.echo


def follow(cluster: ClusterClient, job: Object, reached: Callable[[Object], str], patience: Patience) -> str:
    """Poll a job until it reaches a state, and return the message about it.

    A broken connection or a restart of the API server does not end the wait.

    Args:
        cluster: the job's cluster.
        job: the job as it was last stored; states of older generations are ignored. A job that MultiKueue sends to
            another cluster has the status from before its change, or none if it was not changed. The job is not read
            again if it has ended.
        reached: returns a message once the stored job is in the state, and "" before. May raise CommandError.
        patience: timeout, clock and receiver of messages.

    Returns:
        The result of `reached`.

    Raises:
        CommandError: the job was deleted before its end, or the timeout has expired.
    """
    if _is_over(job) and (found := reached(job)):
        return found
    begin, pause, last, seen = patience.clock(), EVERY, "", job
    while True:
        found, line, seen = _look(cluster, job, seen, reached)
        if found:
            return found
        passed = patience.clock() - begin
        left = patience.seconds - passed
        if not line and passed >= UNSEEN:
            line = _unseen(job)
        if left <= 0:
            message = f"{job['metadata']['name']}: timed out after {patience.seconds:.10g} s. {line or _unseen(job)}"
            raise CommandError(message, ExitCode.TIMED_OUT)
        if line and line != last:
            patience.report(line)
            last = line
        patience.sleep(min(pause, left))
        pause = min(SELDOM, pause * GROWTH)


def follow_each(
    cluster: ClusterClient,
    jobs: Iterable[Object],
    wait: Callable[[ClusterClient, Object, Patience], str],
    patience: Patience,
    refused: Iterable[CommandError] = (),
) -> list[CommandError]:
    """Wait for one job after the other, print the result of each, and return the errors.

    The pauses of a wait look at the later jobs as well. A job that ends meanwhile may be deleted before its turn, by
    runPolicy.ttlSecondsAfterFinished, and its end counts.

    Args:
        cluster: the jobs' cluster.
        jobs: the jobs, as for `follow`.
        wait: waits for one of them by `follow`, and returns the message about it.
        patience: timeout, clock and receiver of messages of each wait.
        refused: the errors of jobs that the command could not change. They are printed before the waits, which may be
            long or be interrupted, and returned with the others.
    """
    later, errors = list(jobs), list(refused)
    if later:
        for message in dict.fromkeys(map(str, errors)):
            typer.echo(f"Error: {message}", err=True)

    def sleep(seconds: float) -> None:
        _note_ends(cluster, later)
        patience.sleep(seconds)

    def turns() -> Iterator[Object]:
        while later:
            yield later.pop(0)

    attentive = replace(patience, sleep=sleep)
    return errors + attempted(turns(), lambda job: typer.echo(wait(cluster, job, attentive)))[1]


def _note_ends(cluster: ClusterClient, jobs: list[Object]) -> None:
    """Replace the jobs that have ended by what is stored of them."""
    with suppress(CommandError):  # the wait for the job reports it
        for index, job in enumerate(jobs):
            if _is_over(job):
                continue
            metadata = job["metadata"]
            now = cluster.job(metadata["namespace"], metadata["name"])
            if now is not None and now["metadata"]["uid"] == metadata["uid"] and _is_over(now):
                jobs[index] = now


def _is_over(job: Object) -> bool:
    """Return whether the job has ended, which is final. The status is that of the stored spec."""
    return end_of(job) is not None and _describes(job, job)


def _look(
    cluster: ClusterClient, job: Object, seen: Object, reached: Callable[[Object], str]
) -> tuple[str, str, Object]:
    """Return the result of `reached`, a line about the job's state, and the job as it was read last.

    The result and the line are empty before the job's generation is seen.
    """
    namespace, name, uid = (job["metadata"][f] for f in ("namespace", "name", "uid"))
    try:
        now = cluster.job(namespace, name)
    except RequestError as error:
        if not error.passing:
            raise
        return "", f"{error} Retrying.", seen
    if now is None or now["metadata"]["uid"] != uid:
        return _after_deletion(cluster, seen, reached), "", seen
    if not _describes(now, job):
        return "", "", now
    return reached(now), state(now), now


def _after_deletion(cluster: ClusterClient, seen: Object, reached: Callable[[Object], str]) -> str:
    """Return the result of `reached` for a deleted job that has ended before.

    Raises:
        CommandError: its end is not known, or is not what the command waits for.
    """
    gone, now = f"{seen['metadata']['name']} was deleted in the meantime.", last_state(cluster, seen)
    if isinstance(now, str):
        raise CommandError(f"{gone} {now}".rstrip(), ExitCode.JOB_DELETED)
    if not (found := reached(now)):
        raise CommandError(gone, ExitCode.JOB_DELETED)
    return f"{found} It was deleted afterwards."


def _describes(now: Object, job: Object) -> bool:
    """Return whether the job's present status describes its last change, and not an older generation.

    The status of a job in another cluster has the generation of the copy there, which is created again after a change.
    The new copy has another start time, and none before it starts.
    """
    if not is_sent(now):
        return is_seen(now, int(job["metadata"].get("generation") or 0))
    if end_of(now) is not None:
        return True
    before, after = ((one.get("status") or {}).get("startTime") for one in (job, now))
    return is_seen(now, 1) and (before is None or before != after)


def unchanged(job: Object) -> Object:
    """Return a job that the command has not changed, for `follow`: any status of a copy elsewhere describes it."""
    return job if _is_over(job) else {key: value for key, value in job.items() if key != "status"}


def is_seen(job: Object, generation: int) -> bool:
    """Return whether the operator has processed a generation of the spec."""
    return int((job.get("status") or {}).get("observedGeneration") or 0) >= generation


def is_suspended(job: Object) -> bool:
    """Return whether the spec suspends the job."""
    return bool((job["spec"].get("runPolicy") or {}).get("suspend"))


def is_held(job: Object) -> bool:
    """Return whether MultiKueue sends the job once it resumes. Until then, no status of it comes back."""
    return is_sent(job) and is_suspended(job)


def ended(job: Object) -> str:
    """Return a message once the job has succeeded, and "" before its end.

    Raises:
        CommandError: the job has failed, or its template is invalid and it does not train.
    """
    name = job["metadata"]["name"]
    if is_true(job, Condition.FAILED):
        message = condition(job, Condition.FAILED)["message"]
        raise CommandError(f"{name} has failed: {message}", ExitCode.JOB_FAILED)
    if not continues(job):
        refuse_invalid(job)
    return f"{name} has succeeded." if is_true(job, Condition.SUCCEEDED) else ""


def continues(job: Object) -> bool:
    """Return whether the job trains, or restarts with the pods that it has, even if a change of it was refused."""
    restarting, rescaling = condition(job, Condition.RESTARTING), condition(job, Condition.RESCALING)
    restarts = restarting.get("status") == "True" and restarting.get("message") != WITHOUT_PODS
    rescales = rescaling.get("status") == "True" and rescaling.get("reason") != Reason.RESHARDING
    return is_true(job, Condition.RUNNING) or restarts or rescales


def refuse_invalid(job: Object) -> None:
    """Check that the API server has not rejected the job's template, which only a change of the job corrects.

    Raises:
        CommandError: the template is invalid.
    """
    if is_true(job, Condition.INVALID_TEMPLATE):
        message = condition(job, Condition.INVALID_TEMPLATE)["message"]
        how = "continues without its last change" if continues(job) else "cannot start"
        raise CommandError(f"{job['metadata']['name']} {how}: {message}", ExitCode.JOB_FAILED)


def runs(job: Object) -> str:
    """Return a message once the job is running or has succeeded, and "" before.

    Raises:
        CommandError: as `ended`.
    """
    name = job["metadata"]["name"]
    return ended(job) or (f"{name} is running." if is_true(job, Condition.RUNNING) else "")


def running_or_ended(job: Object) -> str:
    """Return a message once the job is running, has succeeded, or is suspended as its spec requires; "" before.

    Raises:
        CommandError: the job has failed, or its template is invalid.
    """
    name = job["metadata"]["name"]
    if end_of(job) is None:  # what the command has submitted or resumed was refused
        refuse_invalid(job)
    return runs(job) or (f"{name} is suspended." if is_suspended(job) and is_true(job, Condition.SUSPENDED) else "")


def state(job: Object) -> str:
    """Return one line about a job: its phase, and the reason that it does not run."""
    causes = (Condition.NAME_CONFLICT, Condition.INVALID_TEMPLATE, Condition.RESTARTING)
    why = next((c for c in causes if is_true(job, c)), Condition.QUEUED if _lacks_quota(job) else Condition.RUNNING)
    message = condition(job, why).get("message", "")
    phase = (job.get("status") or {}).get("phase") or "Pending"
    return f"{job['metadata']['name']}: {phase}{': ' if message else ''}{message}"


def _lacks_quota(job: Object) -> bool:
    """Return whether the job runs with fewer workers than its spec requests, because Kueue admits no more."""
    is_admitted = condition(job, Condition.QUEUED).get("reason") == Reason.ADMITTED
    return is_admitted and desired(job, names.WORKER) < int(job["spec"]["worker"]["replicas"])


def _unseen(job: Object) -> str:
    found, _ = manager(job)
    namespace = job["metadata"]["namespace"]
    if is_sent(job):  # it may wait in its queue for hours
        command = f"kubectl get workloads -n {namespace}"
        return f"Kueue has not reported the job's state in another cluster yet. Look at its Workload, with `{command}`."
    command = f"kubectl pstraining doctor -n {namespace}"
    return f"{found} has not processed the job yet. Check that it is running, with `{command}`."
