"""In which order, and how many at a time, the actions of a plan are sent: pure.

Everything keeps its place in the plan, one action after the other, but runs of creations: their order means nothing to
a job, whose launcher orders the start, so that most of them may be in flight together. Scouts go ahead of that crowd,
one by one: the first object of every role that holds pods, as it shows whether the API server takes that template, and
the NetworkPolicy, so that it is there before the ConfigMaps are, without which no container starts.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from pstraining.api import names
from pstraining.core.actions import Action, Create, Kind

POD_BEARING: Final = frozenset({Kind.DEPLOYMENT, Kind.STATEFUL_SET, Kind.JOB})
SCOUTS: Final = POD_BEARING | {Kind.NETWORK_POLICY}
CROWD: Final = SCOUTS | {Kind.SERVICE, Kind.CONFIG_MAP, Kind.POD_DISRUPTION_BUDGET}
"""Kinds whose creations may overtake each other; one of any other kind holds up what comes after it."""

Stage = tuple[int, ...]
"""Positions of actions in a plan that may be in flight together."""


def stages(actions: Sequence[Action]) -> Iterator[Stage]:
    """The stages of a plan: each begins when the one before it has succeeded."""
    known: set[tuple[Kind, str]] = set()
    crowd: list[int] = []
    for position, action in enumerate(actions):
        if not (isinstance(action, Create) and action.kind in CROWD):
            if crowd:
                yield tuple(crowd)
                crowd = []
            yield (position,)
        elif action.kind in SCOUTS and (role := _role(action)) not in known:
            known.add(role)
            yield (position,)
        else:
            crowd.append(position)
    if crowd:
        yield tuple(crowd)


def _role(action: Create) -> tuple[Kind, str]:
    labels = action.body["metadata"].get("labels") or {}
    return action.kind, str(labels.get(names.LABEL_APP_COMPONENT, ""))
