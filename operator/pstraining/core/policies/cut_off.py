"""May a part of a job with hot standbys continue by itself on nodes that do not answer?

A node that is only cut off still runs its pods. With hot standbys, a chief on such nodes continues training if a
majority of the voters (every member, and the first witnesses) or every member is there. No other part of the job can
then continue. If another process replaced a member meanwhile, both parts would continue, so no member and no chief is
deleted by force. A part that must not continue stops before Kubernetes gives up its nodes, because its leases last for
ten seconds.
"""

from datetime import datetime, timedelta

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.core.policies.failures import is_given_up_with_its_node
from pstraining.core.snapshot import Pod, Snapshot
from pstraining.resources import standbys

TOGETHER = timedelta(seconds=20)
"""Nodes that are cut off at one moment are given up within this time: kubelets report every 10 s, and the node
controller looks every 5 s. A node that is back is ready within this time after its first report on a pod."""
KNOWN = timedelta(seconds=60)
"""A member that was created this long before the loss is known to the tasks that are cut off."""


def may_go_on(silent: int, voters: int, *, members_elsewhere: bool) -> bool:
    """Return whether the tasks that are cut off together may continue by themselves.

    Args:
        silent: number of voters on the nodes that are cut off.
        voters: number of all voters.
        members_elsewhere: whether a member that these tasks know is on another node.
    """
    return 2 * silent > voters or not members_elsewhere


def is_held(job: PSTrainingJob, snapshot: Snapshot, pod: Pod, now: datetime) -> bool:
    """Return whether a lost member or chief may not be deleted by force now."""
    if not standbys.is_hot(job) or pod.node not in silent_nodes(snapshot):
        return False
    return goes_on(job, snapshot) or now < _all_are_known_at(snapshot, pod)


def requeue_at(job: PSTrainingJob, snapshot: Snapshot, now: datetime) -> datetime | None:
    """Return when all nodes are known that were lost together with a pod's node."""
    if not standbys.is_hot(job):
        return None
    moments = (_all_are_known_at(snapshot, p) for p in snapshot.pods if p.lost and not p.forced)
    return min((moment for moment in moments if moment > now), default=None)


def _all_are_known_at(snapshot: Snapshot, pod: Pod) -> datetime:
    """Return when the reports of all nodes show whether the pods of the silent ones may continue.

    A node that is back first reports the ends of pods, and only then that it is ready. Meanwhile, its last member may
    have the only copy of the state, and too few of its pods seem to be left to continue.
    """
    node = (snapshot.nodes or {}).get(pod.node)
    since = (node.silent_since if node is not None else None) or pod.deleted_at or pod.created
    return max(since, snapshot.last_reports.get(pod.node, since)) + TOGETHER


def goes_on(job: PSTrainingJob, snapshot: Snapshot) -> bool:
    """Return whether the pods on silent nodes may continue by themselves."""
    if not standbys.is_hot(job):
        return False
    nodes, voters = silent_nodes(snapshot), _voters(job)
    cut_off = {_task(p) for p in snapshot.pods if p.node in nodes and not p.terminal}
    return may_go_on(len(voters & cut_off), len(voters), members_elsewhere=_members_elsewhere(snapshot, nodes))


def silent_nodes(snapshot: Snapshot) -> frozenset[str]:
    """Return the nodes that may run pods but do not report; deleted nodes and nodes out of service run nothing."""
    silent = {p.node for p in snapshot.pods if p.silent or (snapshot.nodes is None and _is_given_up(p))}
    if snapshot.nodes is None:
        return frozenset(silent)
    there = {name for name, node in snapshot.nodes.items() if not node.out_of_service}
    return frozenset(silent & there)


def _is_given_up(pod: Pod) -> bool:
    return is_given_up_with_its_node(pod) and not pod.terminal


def _members_elsewhere(snapshot: Snapshot, silent: frozenset[str]) -> bool:
    """Whether a member runs on a node that answers, and did so when the silent nodes were lost."""
    since = min((p.deleted_at for p in snapshot.pods if p.node in silent and p.deleted_at is not None), default=None)
    members = (p for p in snapshot.pods_of(names.PS) if p.node not in silent and not (p.deleting or p.terminal))
    known = (p.ready or (since is not None and p.created + KNOWN <= since) for p in members if p.container.running)
    return any(known)


def _voters(job: PSTrainingJob) -> set[tuple[str, int, int]]:
    shards, members = range(job.spec.ps.replicas), range(standbys.members(job))
    witnesses = {(names.WORKER, index, 0) for index in range(standbys.witnesses(job))}
    return {(names.PS, index, member) for index in shards for member in members} | witnesses


def _task(pod: Pod) -> tuple[str, int, int]:
    return pod.role, pod.index, pod.member
