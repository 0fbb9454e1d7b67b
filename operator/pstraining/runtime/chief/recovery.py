"""The chief's next action for the parameter servers' state, decided from their records, see `ps.record`.

Pure: no clock, no TensorFlow.
"""

from collections.abc import Sequence
from enum import Enum

from pstraining.runtime.ps.record import ShardRecord


class ChiefAction(Enum):
    """The chief's next action for the shards."""

    SUPERSEDED = "a newer chief rules"
    RAISE_FENCE = "a shard is not under this chief's term yet"
    RESTORE = "a shard has no state, or a state of another set"
    REOPEN = "all shards hold one set, and a chief that stopped has shut updates out"
    PROCEED = "all shards hold one set"


def decide(shards: Sequence[ShardRecord], *, fence: int, layout: int) -> ChiefAction:
    """Return the chief's next action: first the fence on every shard, then one set on every shard."""
    if any(shard.fence > fence for shard in shards):
        return ChiefAction.SUPERSEDED
    if any(shard.fence < fence for shard in shards):
        return ChiefAction.RAISE_FENCE
    whole = len({abs(shard.generation) for shard in shards}) == 1 and shards[0].generation != 0
    if not whole or any(shard.layout != layout for shard in shards):
        return ChiefAction.RESTORE
    return ChiefAction.REOPEN if any(shard.generation < 0 for shard in shards) else ChiefAction.PROCEED
