"""The chief's next action for the parameter servers' state, decided from their records, see `ps.record`.

Pure: no clock, no TensorFlow.
"""

from collections.abc import Sequence
from enum import Enum

from pstraining.runtime.chief.state.origin.order_numbers import has_other_order
from pstraining.runtime.ps.record import ShardRecord


class ChiefAction(Enum):
    """The chief's next action for the shards."""

    SUPERSEDED = "a newer chief leads the job"
    RAISE_FENCE = "a shard is not under this chief's term yet"
    RESTORE = "a shard has no state, or the state of another set of parameters"
    REOPEN = "all shards hold one set of parameters, but a chief that stopped has shut out updates"
    PROCEED = "all shards hold one set of parameters"


def decide(shards: Sequence[ShardRecord], *, fence: int, layout: int, order: int = 0) -> ChiefAction:
    """Return the chief's next action: first every shard gets the fence, then one set of parameters.

    Args:
        shards: the servers' records.
        fence: the chief's fence.
        layout: the fingerprint of the chief's layout.
        order: the number of the order of the chief's assigned data; 0: the data is not assigned.
    """
    if any(shard.fence > fence for shard in shards):
        return ChiefAction.SUPERSEDED
    if any(shard.fence < fence for shard in shards):
        return ChiefAction.RAISE_FENCE
    whole = len({abs(shard.generation) for shard in shards}) == 1 and shards[0].generation != 0
    if not whole or any(shard.layout != layout for shard in shards) or has_other_order(shards, order):
        return ChiefAction.RESTORE
    return ChiefAction.REOPEN if any(shard.generation < 0 for shard in shards) else ChiefAction.PROCEED
