"""Which children have lost the job as their controller, and get it back?

A backup tool, or a deletion that leaves orphans, removes owner references. The label with the job's uid, which no other
job has, proves that an object is the job's own. Without an owner the garbage collector would not delete the object with
the job. The owners of claims are left to `retain_policy`, because the spec decides about them. The Workload that
MultiKueue sends with a job has no owner, and the labels of the job in the other cluster.
"""

from collections.abc import Iterator

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob
from pstraining.core.actions import Kind, Replace
from pstraining.core.policies.owner_lists import replaced_owners
from pstraining.core.snapshot import Snapshot
from pstraining.resources import kueue
from pstraining.resources.metadata import owner


def adoptions(job: PSTrainingJob, snapshot: Snapshot) -> Iterator[Replace]:
    """Make the job the controller of its children without one."""
    for child in snapshot.children.values():
        if child.kind is not Kind.CLAIM and not child.deleting and not child.has_controller:
            parts = replaced_owners(child, snapshot.uid, [owner(job)])
            if child.kind is Kind.WORKLOAD:
                labels = child.manifest["metadata"].get("labels") or {}
                own = {names.LABEL_JOB_UID: snapshot.uid, kueue.LABEL_JOB_UID: snapshot.uid}
                parts["/metadata/labels"] = {**labels, **own}
            yield Replace(child.kind, child.name, child.uid, parts, Reason.DRIFTED)
