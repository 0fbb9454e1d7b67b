"""A worker's decisions: the active view by the statuses of members, the views that may follow, and other layouts.

Pure: no clock, no TensorFlow.
"""

from collections.abc import Mapping

from pstraining.runtime.ps.record import Assignment
from pstraining.runtime.replication.view import Observation, Process, ProcessStatus, View


def active_view(observation: Observation) -> View | None:
    """Return the newest view, if it is active on all its members, so that workers can train with it; else None."""
    statuses = {Process(task, a.incarnation): a for task, a in observation.items() if isinstance(a, ProcessStatus)}
    known = [status.view for status in statuses.values() if status.view]
    newest = max(known, key=lambda view: view.ballot, default=None)
    if newest is None:
        return None
    own = [statuses.get(process) for process in newest.members]
    is_active = all(a and a.active and a.promised == newest.ballot and a.view == newest for a in own)
    return newest if is_active else None


def anticipated_failures(assignment: Assignment, nodes: Mapping[tuple[int, int], str]) -> list[Assignment]:
    """Return the assignments that may remain after the next failure.

    One member fails, or all members on one node; every shard keeps one.

    Args:
        assignment: the members of each shard now.
        nodes: the node of each member, by shard and number, where it is known.
    """
    members = [(number, member) for number, own in enumerate(assignment) for member in own]
    groups = [{member} for member in members]
    for node in sorted(set(nodes.values())):
        groups.append({member for member in members if nodes.get(member) == node})
    left = [
        tuple(tuple(member for member in own if (number, member) not in group) for number, own in enumerate(assignment))
        for group in groups
    ]
    return [others for others in dict.fromkeys(left) if all(others) and others != assignment]
