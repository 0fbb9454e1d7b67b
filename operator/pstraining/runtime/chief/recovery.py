"""The chief's next action for the parameter servers' state, decided from their records, see `ps.record`.

Pure: no clock, no TensorFlow.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final

from pstraining.runtime.config.settings import SettingsError
from pstraining.runtime.ps.record import ShardRecord

ORDER_BITS: Final = 20
"""The lowest bits of a generation: the number of the order of assigned data that the set's positions belong to, or 0.
The bits above are the time of the restore in milliseconds."""
_WITH_ORDER: Final = 1 << 50
"""Generations below are those of earlier versions, without an order."""


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


def has_other_order(shards: Sequence[ShardRecord], order: int) -> bool:
    """Return whether the positions of a set of parameters belong to another order of assigned data.

    Args:
        shards: the servers' records.
        order: see `decide`.
    """
    generations = [abs(shard.generation) for shard in shards]
    known = {generation % (1 << ORDER_BITS) for generation in generations if generation >= _WITH_ORDER} - {0}
    return bool(order and known - {order})


def check_order(shards: Sequence[ShardRecord], order: int) -> None:
    """Refuse to train all data from the initial values because its order has changed.

    Args:
        shards: the servers' records before a restore that has found no checkpoint.
        order: see `decide`.

    Raises:
        SettingsError: names the cause and the way out.
    """
    if has_other_order(shards, order):
        raise SettingsError(
            "data: the splits, or their order, have changed since training began, and there is no checkpoint from "
            "which training could continue. Give every start of a task the same paths, or size and block, and the "
            "same seed. Sort listed paths, as in Files(sorted(paths), read), or save checkpoints before you change them"
        )
