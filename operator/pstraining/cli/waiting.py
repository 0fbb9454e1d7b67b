"""Following a job until it is as a command wants it, with a line for whatever changes on the way."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import typer

from pstraining.api import names
from pstraining.api.conditions import Condition
from pstraining.cli.client import ClusterClient, Object
from pstraining.cli.errors import CommandError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.jobs import condition, is_true

EVERY = 0.5
"""Seconds between two looks."""


@dataclass(frozen=True)
class Patience:
    """How long to wait, by which clock, and who hears what happens meanwhile."""

    seconds: float = 300
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    report: Callable[[str], None] = typer.echo


def follow(cluster: ClusterClient, job: Object, reached: Callable[[Object], str], patience: Patience) -> str:
    """Wait until a job has reached something.

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
    namespace, name, uid = (job["metadata"][f] for f in ("namespace", "name", "uid"))
    end, last = patience.clock() + patience.seconds, ""
    while True:
        now = cluster.job(namespace, name)
        if now is None or now["metadata"]["uid"] != uid:
            raise CommandError(f"{name} was deleted in the meantime.", ExitCode.JOB_DELETED)
        # What is said of an older spec says nothing of this one.
        if is_seen(now, int(job["metadata"].get("generation") or 0)):
            found = reached(now)
            if found:
                return found
            line = state(now)
            if line != last:
                patience.report(line)
                last = line
        if patience.clock() >= end:
            message = f"{name}: timed out after {patience.seconds:g} s. {last or _unseen(now)}"
            raise CommandError(message, ExitCode.TIMED_OUT)
        patience.sleep(EVERY)


def is_seen(job: Object, generation: int) -> bool:
    """Whether the operator has acted on that generation of the spec."""
    return int((job.get("status") or {}).get("observedGeneration") or 0) >= generation


def is_suspended(job: Object) -> bool:
    """Whether the spec wants the job suspended."""
    return bool((job["spec"].get("runPolicy") or {}).get("suspend"))


def running_or_ended(job: Object) -> str:
    """That a job runs, has succeeded, or was suspended as it should be.

    Raises:
        CommandError: it has failed, or can never start as it is.
    """
    name = job["metadata"]["name"]
    for bad, words in ((Condition.FAILED, "has failed"), (Condition.INVALID_TEMPLATE, "cannot start")):
        if is_true(job, bad):
            raise CommandError(f"{name} {words}: {condition(job, bad)['message']}", ExitCode.JOB_FAILED)
    for good, words in ((Condition.SUCCEEDED, "has succeeded"), (Condition.RUNNING, "is running")):
        if is_true(job, good):
            return f"{name} {words}."
    return f"{name} is suspended." if is_suspended(job) and is_true(job, Condition.SUSPENDED) else ""


def state(job: Object) -> str:
    """One line on how a job stands: its phase, and why it does not run."""
    why = next((c for c in (Condition.NAME_CONFLICT, Condition.RESTARTING) if is_true(job, c)), Condition.RUNNING)
    message = condition(job, why).get("message", "")
    phase = (job.get("status") or {}).get("phase") or "Pending"
    return f"{job['metadata']['name']}: {phase}{': ' if message else ''}{message}"


def _unseen(job: Object) -> str:
    manager = (job["spec"].get("runPolicy") or {}).get("managedBy", names.MANAGED_BY)
    return f"{manager} has not processed the job yet. Check that it is running, with `kubectl pstraining doctor`."
