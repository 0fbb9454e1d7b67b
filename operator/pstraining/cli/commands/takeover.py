"""`takeover JOB --shard N`: switch a shard over to its standby, for example before its primary's node is drained.

The request is an annotation of the job with the shard and its epoch, so the operator acts on it once and the command
need not remove it. Training resumes from the newest checkpoint, as after any failover to a warm standby. With hot
standbys, the chief selects the primary, and the command is refused.
"""

import time
from collections.abc import Callable
from typing import Annotated

import typer

from pstraining.api import names
from pstraining.api.conditions import Condition
from pstraining.api.numbers import number
from pstraining.cli.client import ClusterClient, KubeconfigClient, Object
from pstraining.cli.errors import CommandError, RequestError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.jobs import condition, is_sent, is_true, job_named, without
from pstraining.cli.options import Context, Job, Namespace, Timeout
from pstraining.cli.tasks import possible

EVERY = 0.2
"""Seconds between two polls of the shard's Service."""


def takeover(
    job: Job,
    shard: Annotated[int, typer.Option(min=0, help="Index of the shard to switch over.")],
    namespace: Namespace = None,
    context: Context = None,
    timeout: Timeout = 60,
) -> None:
    """Switch a shard with warm standbys over to one of them. Training resumes from the newest checkpoint."""
    typer.echo(switch_over(KubeconfigClient(context), job, shard, namespace, timeout))


def switch_over(
    cluster: ClusterClient,
    name: str,
    shard: int,
    namespace: str | None = None,
    seconds: float = 60,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Request a switchover and wait for it.

    Args:
        cluster: the job's cluster.
        name: the job's name.
        shard: index of the shard.
        namespace: the job's namespace; by default the context's.
        seconds: timeout of the wait.
        clock: a monotonic clock, in seconds.
        sleep: waits for a number of seconds.

    Returns:
        A message about the new primary.

    Raises:
        CommandError: the shard cannot be switched over, or the timeout expired.
    """
    namespace = namespace or cluster.namespace
    job = _checked(job_named(cluster, namespace, name), name, shard)
    before, primary = _pointer(cluster, namespace, name, shard)
    if not _ready_standbys(job, shard):
        raise CommandError(f"Shard {shard} of {name} has no ready standby. {_degraded(job)}".rstrip())
    cluster.annotate(namespace, name, {names.ANNOTATION_TAKEOVER: f"{shard}@{before}"})
    end = clock() + seconds
    while True:
        try:
            epoch, now = _pointer(cluster, namespace, name, shard)
        except RequestError as error:
            # The request stays: the operator acts on it while the API server does not respond to this command.
            if not error.passing or clock() >= end:
                raise
            epoch, now = before, primary
        if epoch > before:
            return f"Shard {shard} of {name}: switched over from {primary} to {now} (epoch {epoch})."
        if clock() >= end:
            job = cluster.job(namespace, name) or {}
            _check_runs(job, name)
            why = _degraded(job) or "Check that the operator is running."
            raise CommandError(
                f"Shard {shard} of {name} was not switched over within {seconds:.0f} s: {primary} is still the "
                f"primary. {why}",
                ExitCode.TIMED_OUT,
            )
        sleep(EVERY)


def _checked(job: Object, name: str, shard: int) -> Object:
    if is_sent(job):
        raise CommandError(without(job, "no parameter servers"))
    servers = job["spec"]["ps"]
    if (servers.get("standby") or {}).get("mode", "None") == "None":
        raise CommandError(f"{name} has no standbys: spec.ps.standby.mode is None.")
    if servers["standby"]["mode"] == "Hot":
        raise CommandError(
            f"{name} has hot standbys, and its chief selects the primary. To move a member, delete its pod: no step "
            "is lost."
        )
    count = possible(job, names.PS)
    if not 0 <= shard < count:
        raise CommandError(f"{name} has no shard {shard}: its shards are 0 to {count - 1}.")
    _check_runs(job, name)
    return job


def _check_runs(job: Object, name: str) -> None:
    for kind in (Condition.SUCCEEDED, Condition.FAILED, Condition.SUSPENDED, Condition.QUEUED):
        if is_true(job, kind):
            raise CommandError(f"{name} is not running: it is {kind}.")


def _pointer(cluster: ClusterClient, namespace: str, name: str, shard: int) -> tuple[int, str]:
    """Return the shard's epoch and its primary."""
    service = cluster.service(namespace, names.ps_service(name, shard))
    if service is None:
        if (job := cluster.job(namespace, name)) is None:
            raise CommandError(f"{name} was deleted in the meantime.")
        _check_runs(job, name)
        raise CommandError(f"Shard {shard} of {name} has no Service {names.ps_service(name, shard)} yet.")
    epoch = (service["metadata"].get("annotations") or {}).get(names.ANNOTATION_EPOCH, "")
    primary = service["spec"]["selector"].get(names.LABEL_STS_POD, "")
    return number(epoch) or 0, str(primary)


def _ready_standbys(job: Object, shard: int) -> int:
    shards = (job.get("status") or {}).get("shards") or ()
    return next((int(s.get("readyStandbys") or 0) for s in shards if s["index"] == shard), 0)


def _degraded(job: Object) -> str:
    """Return the operator's message about missing standbys; empty without one."""
    return str(condition(job, Condition.DEGRADED)["message"]) if is_true(job, Condition.DEGRADED) else ""
