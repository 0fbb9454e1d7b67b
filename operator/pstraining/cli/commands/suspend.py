"""`suspend JOB...` and `resume JOB...`: set spec.runPolicy.suspend to true or false."""

from collections.abc import Iterable

import typer

from pstraining.api.conditions import Condition
from pstraining.cli.client import ClusterClient, KubeconfigClient, Object
from pstraining.cli.errors import CommandError
from pstraining.cli.jobs import attempted, end_of, is_sent, is_true, job_named, raise_all
from pstraining.cli.options import Context, Jobs, Namespace, Timeout, Wait
from pstraining.cli.waiting import Patience, follow, follow_each, is_suspended, running_or_ended, unchanged


def suspend(
    jobs: Jobs, namespace: Namespace = None, context: Context = None, wait: Wait = False, timeout: Timeout = 300
) -> None:
    """Stop jobs and delete their pods. The chief stops first and may save its state; `resume` loads the checkpoint.

    Fields that are immutable while a job runs can change while it is suspended. With --wait, the command waits until
    no pod runs.
    """
    set_suspended(KubeconfigClient(context), jobs, True, namespace, Patience(timeout) if wait else None)


def resume(
    jobs: Jobs, namespace: Namespace = None, context: Context = None, wait: Wait = False, timeout: Timeout = 300
) -> None:
    """Resume suspended jobs from their newest checkpoints.

    With --wait, the command waits until the job runs.
    """
    set_suspended(KubeconfigClient(context), jobs, False, namespace, Patience(timeout) if wait else None)


def set_suspended(
    cluster: ClusterClient,
    jobs: Iterable[str],
    suspended: bool,
    namespace: str | None = None,
    patience: Patience | None = None,
) -> None:
    """Suspend or resume jobs, and print one line per job.

    Args:
        cluster: the jobs' cluster.
        jobs: their names.
        suspended: the new value of the field.
        namespace: the jobs' namespace; by default the context's.
        patience: timeout of the wait for each job; None does not wait.

    Raises:
        CommandError: a job does not exist, the change was refused, or the timeout expired.
    """
    where = namespace or cluster.namespace
    changed, errors = attempted(jobs, lambda name: _changed(cluster, where, name, suspended))
    if patience is not None:
        wait = _stop if suspended else _start
        errors = follow_each(cluster, filter(None, changed), wait, patience, errors)
    raise_all(errors)


def _changed(cluster: ClusterClient, namespace: str, name: str, suspended: bool) -> Object | None:
    """Suspend or resume a job if necessary and return the stored one, for `follow`; None if it has ended."""
    job = job_named(cluster, namespace, name)
    end = end_of(job)
    if end is not None:
        typer.echo(f"{name} in {namespace}: has ended ({end}): nothing to do")
        return None
    if is_suspended(job) == suspended:
        typer.echo(f"{name} in {namespace}: {'is' if suspended else 'is not'} suspended: nothing to do")
        return unchanged(job)
    job = cluster.patch(namespace, name, {"spec": {"runPolicy": {"suspend": suspended}}})
    typer.echo(f"{name} in {namespace}: {'suspended' if suspended else 'resumed'}")
    return job


def _start(cluster: ClusterClient, job: Object, patience: Patience) -> str:
    return follow(cluster, job, running_or_ended, patience)


def _stop(cluster: ClusterClient, job: Object, patience: Patience) -> str:
    if is_sent(job):
        raise CommandError(
            f"{job['metadata']['name']}: --wait: its pods are in another cluster, and their end is not reported here: "
            "wait until the job is gone there."
        )
    return follow(cluster, job, _stopped, patience)


def _stopped(job: Object) -> str:
    """Return a message once no pod of the job runs, and "" before."""
    name, end = job["metadata"]["name"], end_of(job)
    if end is not None:
        return f"{name} has ended in the meantime ({end})."
    return f"{name} is suspended." if is_true(job, Condition.SUSPENDED) else ""
