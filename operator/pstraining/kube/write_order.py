"""Orders the actions of a plan for sending, and groups those that may be in flight together. Pure.

Actions are sent one after another in the order of the plan, except for runs of creations. The order of creations does
not matter to a job, whose launcher orders the start, so most of them are sent concurrently. Canaries are sent one by
one before the concurrent creations:

- the first object of every role that holds pods, because it shows whether the API server accepts that template;
- the NetworkPolicy, so that it exists before the ConfigMaps, without which no container starts.

Concurrent creations start with the ConfigMaps, because a kubelet that misses one retries only after a while. Services
follow, because an API server is slow to assign their addresses, and slow creations must not start last.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from pstraining.api import names
from pstraining.core.actions import WITH_PODS, Action, Create, Kind

CANARIES: Final = frozenset({*WITH_PODS, Kind.NETWORK_POLICY})
CONCURRENT: Final = CANARIES | {Kind.SERVICE, Kind.CONFIG_MAP, Kind.POD_DISRUPTION_BUDGET}
"""Kinds whose creations may be concurrent; the creation of any other kind is sent alone."""
FIRST: Final = (Kind.CONFIG_MAP, Kind.SERVICE)
"""Kinds that are created first among the concurrent ones."""

Stage = tuple[int, ...]
"""Positions of actions in a plan that may be in flight together."""


def stages(actions: Sequence[Action]) -> Iterator[Stage]:
    """Yield the stages of a plan. A stage starts when the previous one has succeeded."""
    roles: set[tuple[Kind, str]] = set()
    concurrent: list[int] = []
    for position, action in enumerate(actions):
        if not (isinstance(action, Create) and action.kind in CONCURRENT):
            if concurrent:
                yield _ordered(concurrent, actions)
                concurrent = []
            yield (position,)
        elif action.kind in CANARIES and (role := _role(action)) not in roles:
            roles.add(role)
            yield (position,)
        else:
            concurrent.append(position)
    if concurrent:
        yield _ordered(concurrent, actions)


def _ordered(positions: list[int], actions: Sequence[Action]) -> Stage:
    """Return the positions in the order of the plan, the kinds in FIRST before all others."""
    ranks = {kind: rank for rank, kind in enumerate(FIRST)}
    return tuple(sorted(positions, key=lambda position: ranks.get(actions[position].kind, len(FIRST))))


def _role(action: Create) -> tuple[Kind, str]:
    labels = action.body["metadata"].get("labels") or {}
    return action.kind, str(labels.get(names.LABEL_APP_COMPONENT, ""))
