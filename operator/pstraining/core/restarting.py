"""The cause in the condition Restarting, for a job that was training and makes no progress."""

from pstraining.api.conditions import WITHOUT_PODS, Reason
from pstraining.core import role_status
from pstraining.core.actions import Kind
from pstraining.core.facts import Facts
from pstraining.core.policies import job_restart, missed_change


def cause(facts: Facts, *, runs: bool, has_run: bool) -> tuple[Reason, str] | None:
    """Return why a job that has not ended or stopped restarts; None if it does not.

    Args:
        facts: the facts of this pass.
        runs: whether training runs.
        has_run: whether it has run before, or restarts already.
    """
    found = _cause(facts, runs=runs, has_run=has_run)
    snapshot = facts.snapshot
    waits = facts.refused_generation == snapshot.generation and not snapshot.of_kind(Kind.STATEFUL_SET)
    if found is not None and waits:
        return found[0], WITHOUT_PODS
    return found


def _cause(facts: Facts, *, runs: bool, has_run: bool) -> tuple[Reason, str] | None:
    continues = missed_change.began(facts.status) is not None and not runs
    if missed_change.is_due(facts.job, facts.snapshot) or continues:
        message = "Fields that are fixed while a job runs have changed: the job stops in order and is created again."
        return Reason.SPEC_CHANGED, message
    if runs or not has_run:
        return None
    if job_restart.is_due(facts):
        return Reason.JOB_RESTARTED, "The whole job is being restarted."
    if not role_status.ps_ready(facts):
        return Reason.PS_LOST, "A parameter server is being restarted."
    if not role_status.chief_works(facts):
        return Reason.CHIEF_REPLACED, f"{role_status.leader(facts).capitalize()} is being restarted."
    return Reason.WORKERS_LOST, _missing_workers(facts)


def _missing_workers(facts: Facts) -> str:
    """Return what a job without enough workers waits for: their restart, or a change by the user."""
    worker = facts.job.spec.worker
    given_up = sum(index < worker.replicas for index in facts.failures.given_up)
    fewest, left = worker.min_replicas, worker.replicas - given_up
    if fewest is None or left >= fewest:
        return "Missing workers are being restarted."
    return (
        f"{given_up} of {worker.replicas} workers were given up, and {left} are left, fewer than worker.minReplicas "
        f"{fewest}: increase worker.replicas, lower worker.minReplicas, or suspend and resume the job."
    )
