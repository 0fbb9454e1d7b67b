"""`suspend JOB` and `resume JOB`: the two ways of one field, spec.runPolicy.suspend."""

import typer

from pstraining.api.conditions import Condition
from pstraining.cli.client import ClusterClient, KubeconfigClient, Object
from pstraining.cli.jobs import end_of, is_true, job_named
from pstraining.cli.options import Context, Job, Namespace, Timeout, Wait
from pstraining.cli.waiting import Patience, follow, is_suspended, running_or_ended


def suspend(
    job: Job, namespace: Namespace = None, context: Context = None, wait: Wait = False, timeout: Timeout = 300
) -> None:
    """Stop a job and delete its pods. The chief stops first and may save its state; `resume` loads the checkpoint.

    Fields that are immutable while a job runs can change while it is suspended. With --wait, the command waits until
    no pod runs.
    """
    set_suspended(KubeconfigClient(context), job, True, namespace, Patience(timeout) if wait else None)


def resume(
    job: Job, namespace: Namespace = None, context: Context = None, wait: Wait = False, timeout: Timeout = 300
) -> None:
    """Resume a suspended job from its newest checkpoint.

    With --wait, the command waits until the job runs. The exit status is 1 if the job fails.
    """
    set_suspended(KubeconfigClient(context), job, False, namespace, Patience(timeout) if wait else None)


def set_suspended(
    cluster: ClusterClient, name: str, suspended: bool, namespace: str | None = None, patience: Patience | None = None
) -> None:
    """Suspend a job or resume it, and say so, also when there is nothing to be done.

    Args:
        cluster: where the job is.
        name: the job.
        suspended: what it is to be.
        namespace: the job's; the context's own if not given.
        patience: how long to wait until it is so; None for not at all.

    Raises:
        CommandError: there is no such job, the change is refused, or it is not so in time.
    """
    namespace = namespace or cluster.namespace
    job = job_named(cluster, namespace, name)
    end = end_of(job)
    if end is not None:
        typer.echo(f"{name} in {namespace}: has ended ({end}): nothing to do")
        return
    if is_suspended(job) == suspended:
        typer.echo(f"{name} in {namespace}: {'is' if suspended else 'is not'} suspended: nothing to do")
    else:
        job = cluster.patch(namespace, name, {"spec": {"runPolicy": {"suspend": suspended}}})
        typer.echo(f"{name} in {namespace}: {'suspended' if suspended else 'resumed'}")
    if patience is not None:
        typer.echo(follow(cluster, job, _stopped if suspended else running_or_ended, patience))


def _stopped(job: Object) -> str:
    """That nothing of a job runs any more; empty until then."""
    name, end = job["metadata"]["name"], end_of(job)
    if end is not None:
        return f"{name} has ended in the meantime ({end})."
    return f"{name} is suspended." if is_true(job, Condition.SUSPENDED) else ""
