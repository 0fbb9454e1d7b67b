"""What to do about the parameter servers' state and about a failed call: decisions on plain values.

Every server keeps a small record of its shard. Its fence is the term of the chief that rules it; an update or a
restore that carries another term is refused on the server. Its generation names one restored set: a shard that lost
its state, or that is being overwritten, has generation 0, and an update carries the generation that it was computed
on. So no update ever mixes two sets. A set whose generation is negative is whole and takes no updates: a chief that was
told to stop has saved it, and the next one lets updates in again.

Pure: no clock, no TensorFlow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

ALWAYS_RETRIED: Final = frozenset({"UNAVAILABLE", "ABORTED"})
"""TensorFlow's errors that only a lost or replaced parameter server explains."""
RETRIED: Final = ALWAYS_RETRIED | {"FAILED_PRECONDITION", "INVALID_ARGUMENT", "CANCELLED", "INTERNAL", "UNKNOWN"}
"""Errors that a lost server also shows itself by, and the program's own mistakes too."""
ATTEMPTS: Final = 5
"""How often in a row, with every server present and unchanged, an ambiguous error is taken for a lost server."""


@dataclass(frozen=True)
class Shard:
    """A parameter server's record of itself; all 0 when the server is empty."""

    fence: int = 0
    generation: int = 0
    done: bool = False
    step: int = 0
    """Updates applied on this server; the first server's is the job's global step."""
    layout: int = 0
    """Fingerprint of the layout that the shard was written with."""
    early: bool = False
    """Training is done before its time, because the program wanted it so."""


@dataclass(frozen=True)
class Session:
    """What a worker's updates carry: the fence and the set of parameters that they belong to."""

    term: int
    """The chief's; where shards have standbys the number of the roster's ballot."""
    generation: int


class ChiefAction(Enum):
    """What the chief has to do next about the shards."""

    SUPERSEDED = "a newer chief rules"
    RAISE_FENCE = "a shard is not under this chief's term yet"
    RESTORE = "a shard has no state, or a state of another set"
    LET_IN = "all shards hold one set, and a chief that stopped has shut updates out"
    PROCEED = "all shards hold one set"


def decide(shards: Sequence[Shard], *, term: int, layout: int) -> ChiefAction:
    """The chief's next action: the fence everywhere first, then one set everywhere."""
    if any(shard.fence > term for shard in shards):
        return ChiefAction.SUPERSEDED
    if any(shard.fence < term for shard in shards):
        return ChiefAction.RAISE_FENCE
    whole = len({abs(shard.generation) for shard in shards}) == 1 and shards[0].generation != 0
    if not whole or any(shard.layout != layout for shard in shards):
        return ChiefAction.RESTORE
    return ChiefAction.LET_IN if any(shard.generation < 0 for shard in shards) else ChiefAction.PROCEED


class LayoutMismatchError(RuntimeError):
    """This task built another model, or counts other servers, than the chief."""


def session(shards: Sequence[Shard], *, layout: int) -> Session | None:
    """What a worker may push with, or None while the set is not whole.

    Raises:
        LayoutMismatchError: the set is whole and is not of this task's model.
    """
    first = shards[0]
    if any((shard.fence, shard.generation) != (first.fence, first.generation) for shard in shards):
        return None
    if not first.fence or first.generation <= 0:
        return None
    if any(shard.layout != layout for shard in shards):
        raise LayoutMismatchError(
            "this task's model or optimizer differs from the chief's: all tasks must run the same program"
        )
    return Session(first.fence, first.generation)


def is_retried(code: str, attempts: int) -> bool:
    """Whether a failed call is answered by reconnecting, after `attempts` failures in a row without a success."""
    return code in ALWAYS_RETRIED or (code in RETRIED and attempts < ATTEMPTS)
