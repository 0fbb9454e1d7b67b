"""Does a job without a queue get the default queue of its namespace?

In a namespace with a LocalQueue named `default`, Kueue puts jobs of its own kinds into this queue, and also every pod
whose job is in no queue. It would admit the pods of a job one by one. So the job gets the label before it has pods.
"""

from pstraining.api.conditions import Reason
from pstraining.core.actions import Kind, Replace
from pstraining.core.facts import Facts
from pstraining.core.policies import teardown
from pstraining.resources import kueue
from pstraining.resources.installation import KueueSupport


def is_due(facts: Facts) -> bool:
    """Whether the job is about to start without a queue, and its namespace has a default queue."""
    state = facts.queue
    may_start = facts.recorded_end is None and not state.job.spec.run_policy.suspend
    has_default = facts.snapshot.namespace in state.objects.default_queues
    is_queueless = state.support is KueueSupport.ON and not state.queue
    return may_start and has_default and is_queueless and teardown.is_over(facts.snapshot)


def label(facts: Facts) -> Replace:
    """Put the job into the default queue, unless it has changed since."""
    job = facts.snapshot
    labels = {**(job.job["metadata"].get("labels") or {}), kueue.LABEL_QUEUE: kueue.DEFAULT_QUEUE}
    parts = {"/metadata/resourceVersion": job.job["metadata"]["resourceVersion"], "/metadata/labels": labels}
    return Replace(Kind.PS_TRAINING_JOB, job.name, job.uid, parts, Reason.AWAITS_ADMISSION)
