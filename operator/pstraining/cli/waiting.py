"""Following a job until it is as a command wants it, with a line for each change on the way."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import typer

from pstraining.api.conditions import Condition
from pstraining.cli.client import ClusterClient, Object
from pstraining.cli.errors import CommandError, RequestError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.jobs import condition, is_true, manager

EVERY, SELDOM = 0.5, 5.0
"""Seconds between two looks: between the first ones, and after a while."""
GROWTH = 1.2
"""Factor from one pause to the next."""


@dataclass(frozen=True)
class Patience:
    """How long to wait, by which clock, and the receiver of messages meanwhile."""

    seconds: float = 300
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    report: Callable[[str], None] = typer.echo


def follow(cluster: ClusterClient, job: Object, reached: Callable[[Object], str], patience: Patience) -> str:
    """Wait until a job has reached something.

    The job is read again and again: so a connection that breaks, or an API server that is replaced, ends no wait.

    Args:
        cluster: where it is.
        job: as it was written last.
        reached: what to say once it is so, from the job as it is stored; empty until then. May raise CommandError.
        patience: how long.

    Returns:
        What has been reached.

    Raises:
        CommandError: the job is gone, or time is up.
    """
    end, pause, last = patience.clock() + patience.seconds, EVERY, ""
    while True:
        found, line = _look(cluster, job, reached)
        if found:
            return found
        left = end - patience.clock()
        if left <= 0:
            message = f"{job['metadata']['name']}: timed out after {patience.seconds:g} s. {line or _unseen(job)}"
            raise CommandError(message, ExitCode.TIMED_OUT)
        if line and line != last:
            patience.report(line)
            last = line
        patience.sleep(min(pause, left))
        pause = min(SELDOM, pause * GROWTH)


def _look(cluster: ClusterClient, job: Object, reached: Callable[[Object], str]) -> tuple[str, str]:
    """What has been reached, and how the job stands; empty where nothing is known of it yet."""
    namespace, name, uid = (job["metadata"][f] for f in ("namespace", "name", "uid"))
    try:
        now = cluster.job(namespace, name)
    except RequestError as error:
        if not error.passing:
            raise
        return "", f"{error} Retrying."
    if now is None or now["metadata"]["uid"] != uid:
        raise CommandError(f"{name} was deleted in the meantime.", ExitCode.JOB_DELETED)
    # What is said of an older spec says nothing of this one.
    if not is_seen(now, int(job["metadata"].get("generation") or 0)):
        return "", ""
    return reached(now), state(now)


def is_seen(job: Object, generation: int) -> bool:
    """Whether the operator has acted on that generation of the spec."""
    return int((job.get("status") or {}).get("observedGeneration") or 0) >= generation


def is_suspended(job: Object) -> bool:
    """Whether the spec wants the job suspended."""
    return bool((job["spec"].get("runPolicy") or {}).get("suspend"))


def ended(job: Object) -> str:
    """That a job has succeeded; empty while it has not ended.

    Raises:
        CommandError: it has failed, or can never start as it is.
    """
    name = job["metadata"]["name"]
    for bad, words in ((Condition.FAILED, "has failed"), (Condition.INVALID_TEMPLATE, "cannot start")):
        if is_true(job, bad):
            raise CommandError(f"{name} {words}: {condition(job, bad)['message']}", ExitCode.JOB_FAILED)
    return f"{name} has succeeded." if is_true(job, Condition.SUCCEEDED) else ""


def runs(job: Object) -> str:
    """That a job runs, or has succeeded.

    Raises:
        CommandError: it has failed, or can never start as it is.
    """
    name = job["metadata"]["name"]
    return ended(job) or (f"{name} is running." if is_true(job, Condition.RUNNING) else "")


def running_or_ended(job: Object) -> str:
    """That a job runs, has succeeded, or was suspended as it should be.

    Raises:
        CommandError: it has failed, or can never start as it is.
    """
    name = job["metadata"]["name"]
    return runs(job) or (f"{name} is suspended." if is_suspended(job) and is_true(job, Condition.SUSPENDED) else "")


def state(job: Object) -> str:
    """One line on how a job stands: its phase, and why it does not run."""
    why = next((c for c in (Condition.NAME_CONFLICT, Condition.RESTARTING) if is_true(job, c)), Condition.RUNNING)
    message = condition(job, why).get("message", "")
    phase = (job.get("status") or {}).get("phase") or "Pending"
    return f"{job['metadata']['name']}: {phase}{': ' if message else ''}{message}"


def _unseen(job: Object) -> str:
    found, _ = manager(job)
    return f"{found} has not processed the job yet. Check that it is running, with `kubectl pstraining doctor`."
