"""`scale JOB... --workers N`: change the number of workers. Workers that stay continue to train."""

from collections.abc import Iterable
from functools import partial
from typing import Annotated

import typer

from pstraining.api.conditions import Condition
from pstraining.cli.client import ClusterClient, KubeconfigClient, Object
from pstraining.cli.errors import CommandError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.jobs import attempted, condition, end_of, is_true, job_named, raise_all
from pstraining.cli.options import Context, Jobs, Namespace, Timeout, Wait
from pstraining.cli.validation.scaling import check_workers
from pstraining.cli.waiting import Patience, follow, follow_each, is_held, is_suspended, refuse_invalid, unchanged


def scale(
    jobs: Jobs,
    workers: Annotated[int, typer.Option(help="New number of workers.")],
    namespace: Namespace = None,
    context: Context = None,
    wait: Wait = False,
    timeout: Timeout = 300,
) -> None:
    """Change the number of workers of jobs (spec.worker.replicas). All other tasks keep running.

    The API's rules are checked before the change is sent. With --wait, the command waits until every worker is ready,
    has succeeded or was given up.
    """
    scale_to(KubeconfigClient(context), jobs, workers, namespace, Patience(timeout) if wait else None)


def scale_to(
    cluster: ClusterClient,
    jobs: Iterable[str],
    workers: int,
    namespace: str | None = None,
    patience: Patience | None = None,
) -> None:
    """Change the number of workers of jobs, and print the changes.

    Args:
        cluster: the jobs' cluster.
        jobs: their names.
        workers: the new number of workers of each job.
        namespace: the jobs' namespace; by default the context's.
        patience: timeout of the wait for each job's workers; None does not wait.

    Raises:
        CommandError: a job does not exist or has ended, the API's rules refuse the number, or the timeout expired.
    """
    where = namespace or cluster.namespace
    changed, errors = attempted(jobs, lambda name: _changed(cluster, where, name, workers))
    if patience is not None:
        errors = follow_each(cluster, changed, partial(_awaited, workers), patience, errors)
    raise_all(errors)


def _changed(cluster: ClusterClient, namespace: str, name: str, workers: int) -> Object:
    """Scale a job if necessary and return the stored one, for `follow`."""
    job = job_named(cluster, namespace, name)
    before = int(job["spec"]["worker"]["replicas"])
    end = end_of(job)
    if end is not None:
        raise CommandError(f"{name} has ended ({end}) and has no workers.")
    if before == workers:
        typer.echo(f"{name} in {namespace}: already has {workers} {_workers(workers)}: nothing to do")
        return unchanged(job)
    check_workers(job, workers)
    cluster.scale(namespace, name, workers)
    typer.echo(f"{name} in {namespace}: scaled from {before} to {workers} {_workers(workers)}")
    return job_named(cluster, namespace, name)


def _awaited(workers: int, cluster: ClusterClient, job: Object, patience: Patience) -> str:
    """Wait until the workers of a scaled job are ready, and return the message about them."""
    if is_held(job):
        return _held(job, workers)
    return follow(cluster, job, lambda now: _scaled(now, workers), patience)


def _held(job: Object, workers: int) -> str:
    return f"{job['metadata']['name']} is suspended and will start its {_workers(workers)} when it resumes."


def _scaled(job: Object, workers: int) -> str:
    """Return a message once the workers are ready, and "" before.

    Raises:
        CommandError: the job has failed, or its template is invalid.
    """
    name, status = job["metadata"]["name"], job["status"].get("worker") or {}
    if is_true(job, Condition.FAILED):
        message = condition(job, Condition.FAILED)["message"]
        raise CommandError(f"{name} has failed in the meantime: {message}", ExitCode.JOB_FAILED)
    if is_true(job, Condition.SUCCEEDED):
        return f"{name} has succeeded in the meantime."
    refuse_invalid(job)
    if is_suspended(job):
        return _held(job, workers)
    # status.worker.replicas leaves out workers that have succeeded or were given up.
    asked, ready = int(status.get("replicas") or 0), int(status.get("ready") or 0)
    if status.get("desired") != workers or ready != asked:
        return ""
    return f"{name}: {ready} of {workers} {_workers(workers)} ready" + (
        f", {workers - asked} done." if asked < workers else "."
    )


def _workers(number: int) -> str:
    return "worker" if number == 1 else "workers"
