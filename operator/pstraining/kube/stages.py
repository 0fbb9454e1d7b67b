"""In which order, and how many at a time, the actions of a plan are sent: pure.

Everything keeps its place in the plan, one action after the other, but runs of creations: their order means nothing to
a job, whose launcher orders the start, so that most of them may be in flight together. Scouts go ahead of that crowd,
one by one: the first object of every role that holds pods, as it shows whether the API server takes that template, and
the NetworkPolicy, so that it is there before the ConfigMaps are, without which no container starts. The crowd begins
with those ConfigMaps, as a kubelet that misses them tries again only after a while, and with the Services, whose
addresses an API server is slow to find: what is slow must not be begun last.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from pstraining.api import names
from pstraining.core.actions import Action, Create, Kind

POD_BEARING: Final = frozenset({Kind.DEPLOYMENT, Kind.STATEFUL_SET, Kind.JOB})
SCOUTS: Final = POD_BEARING | {Kind.NETWORK_POLICY}
CROWD: Final = SCOUTS | {Kind.SERVICE, Kind.CONFIG_MAP, Kind.POD_DISRUPTION_BUDGET}
"""Kinds whose creations may overtake each other; one of any other kind holds up what comes after it."""
FIRST: Final = (Kind.CONFIG_MAP, Kind.SERVICE)
"""Where the crowd begins."""

Stage = tuple[int, ...]
"""Positions of actions in a plan that may be in flight together."""


def stages(actions: Sequence[Action]) -> Iterator[Stage]:
    """The stages of a plan: each begins when the one before it has succeeded."""
    known: set[tuple[Kind, str]] = set()
    crowd: list[int] = []
    for position, action in enumerate(actions):
        if not (isinstance(action, Create) and action.kind in CROWD):
            if crowd:
                yield _ordered(crowd, actions)
                crowd = []
            yield (position,)
        elif action.kind in SCOUTS and (role := _role(action)) not in known:
            known.add(role)
            yield (position,)
        else:
            crowd.append(position)
    if crowd:
        yield _ordered(crowd, actions)


def _ordered(crowd: list[int], actions: Sequence[Action]) -> Stage:
    """In the order of the plan, but for what comes first."""
    ranks = {kind: rank for rank, kind in enumerate(FIRST)}
    return tuple(sorted(crowd, key=lambda position: ranks.get(actions[position].kind, len(FIRST))))


def _role(action: Create) -> tuple[Kind, str]:
    labels = action.body["metadata"].get("labels") or {}
    return action.kind, str(labels.get(names.LABEL_APP_COMPONENT, ""))
