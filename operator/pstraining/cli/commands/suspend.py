"""`suspend JOB...` and `resume JOB...`: the two ways of one field, spec.runPolicy.suspend."""

from collections.abc import Iterable

import typer

from pstraining.api.conditions import Condition
from pstraining.cli.client import ClusterClient, KubeconfigClient, Object
from pstraining.cli.jobs import each, end_of, is_true, job_named
from pstraining.cli.options import Context, Jobs, Namespace, Timeout, Wait
from pstraining.cli.waiting import Patience, follow, is_suspended, running_or_ended


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
    """Suspend jobs or resume them, and say so, also when there is nothing to be done.

    Args:
        cluster: where the jobs are.
        jobs: their names.
        suspended: what they are to be.
        namespace: the jobs'; the context's own if not given.
        patience: how long to wait for each until it is so; None for not at all.

    Raises:
        CommandError: there is no such job, the change is refused, or it is not so in time.
    """
    where = namespace or cluster.namespace
    changed = each(jobs, lambda name: _changed(cluster, where, name, suspended))
    if patience is not None:
        reached = _stopped if suspended else running_or_ended
        each(filter(None, changed), lambda job: typer.echo(follow(cluster, job, reached, patience)))


def _changed(cluster: ClusterClient, namespace: str, name: str, suspended: bool) -> Object | None:
    """The job as it is stored then; None if it has ended."""
    job = job_named(cluster, namespace, name)
    end = end_of(job)
    if end is not None:
        typer.echo(f"{name} in {namespace}: has ended ({end}): nothing to do")
        return None
    if is_suspended(job) == suspended:
        typer.echo(f"{name} in {namespace}: {'is' if suspended else 'is not'} suspended: nothing to do")
        return job
    job = cluster.patch(namespace, name, {"spec": {"runPolicy": {"suspend": suspended}}})
    typer.echo(f"{name} in {namespace}: {'suspended' if suspended else 'resumed'}")
    return job


def _stopped(job: Object) -> str:
    """That nothing of a job runs any more; empty until then."""
    name, end = job["metadata"]["name"], end_of(job)
    if end is not None:
        return f"{name} has ended in the meantime ({end})."
    return f"{name} is suspended." if is_true(job, Condition.SUSPENDED) else ""
