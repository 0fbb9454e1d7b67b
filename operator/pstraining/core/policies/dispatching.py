"""Which writes are due for a job that MultiKueue sends to another cluster (spec.managedBy)?

The job has no pods here, and its status is a copy of the status in the other cluster. Its Workload requests quota in
this cluster. Kueue then sends the Workload and the job, and removes both when the Workload here is deleted or loses its
quota.

    no Workload                          create it
    suspended by its user                delete it: the job leaves the other cluster
    the job has changed                  with quota: delete it; without: correct it: the job is sent again
    evicted, and stopped there           clear the admission: quota is returned
    ended                                nothing: Kueue marks the Workload as finished
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from pstraining.api.conditions import Reason
from pstraining.core.actions import Action
from pstraining.core.facts import Facts
from pstraining.core.observe import parse_time
from pstraining.core.policies.queue_writes import corrected, created, deletions, quota_returned
from pstraining.core.queue_workload import QueueCondition, QueueWorkload
from pstraining.resources import kueue
from pstraining.resources.installation import KueueSupport

STOP_SECONDS: Final = 120
"""Seconds after which an evicted job counts as stopped, although the other cluster does not report it."""
_STOPPED = ("", "Queued", "Suspended", "Succeeded", "Failed")


def changes(facts: Facts) -> Iterator[Action]:
    """Yield the writes for a job that another cluster runs."""
    state = facts.queue
    if state.support is not KueueSupport.ON or facts.recorded_end is not None:
        return
    if not state.decides or state.job.spec.run_policy.suspend:
        yield from deletions((*state.live, *state.finished), Reason.NOT_DESIRED)
    elif not state.workloads:
        name = kueue.workload_name(state.job)
        yield from created(facts, name)
    elif state.current is not None:
        yield from _kept(facts, state.current)


def _kept(facts: Facts, current: QueueWorkload) -> Iterator[Action]:
    state = facts.queue
    until = _due(facts)
    if not current.has_quota:
        yield from () if state.is_up_to_date() else corrected(facts, current)
    elif not (state.matches and state.keeps_priority):
        yield from deletions([current], Reason.SPEC_CHANGED)
    elif until is not None and until <= facts.now:
        yield quota_returned(facts, current)


def requeue_at(facts: Facts) -> datetime | None:
    """Return when an evicted job that may still stop returns its quota.

    What is due already is written in this pass. If that is refused, the next attempt must not follow at once.
    """
    until = _due(facts)
    return None if until is None or until <= facts.now else until


def _due(facts: Facts) -> datetime | None:
    """Return when an evicted job returns its quota; None if it is not evicted."""
    current = facts.queue.current
    if current is None or not current.has_quota or not current.is_evicted:
        return None
    since = parse_time(current.condition(QueueCondition.EVICTED).get("lastTransitionTime"))
    if since is None or facts.status.phase in _STOPPED:
        return facts.now
    return since + timedelta(seconds=STOP_SECONDS)
