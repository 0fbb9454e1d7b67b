"""The number of the order of assigned data in the generation of a set of parameters, whose positions belong to it.

A chief that starts while the servers live compares it, because a checkpoint is not read then.

Pure: no clock, no TensorFlow.
"""

from collections.abc import Sequence
from typing import Final

from pstraining.runtime.config.settings import SettingsError
from pstraining.runtime.ps.record import ShardRecord

ORDER_BITS: Final = 20
"""The lowest bits of a generation: the number of the order of assigned data that the set's positions belong to, or 0.
The bits above are the time of the restore in milliseconds."""
_WITH_ORDER: Final = 1 << 50
"""Generations below are those of earlier versions, without an order."""


def has_other_order(shards: Sequence[ShardRecord], order: int) -> bool:
    """Return whether the positions of a set of parameters belong to another order of assigned data.

    Args:
        shards: the servers' records.
        order: see `recovery.decide`.
    """
    generations = [abs(shard.generation) for shard in shards]
    known = {generation % (1 << ORDER_BITS) for generation in generations if generation >= _WITH_ORDER} - {0}
    return bool(order and known - {order})


def check_order(shards: Sequence[ShardRecord], order: int) -> None:
    """Refuse to train all data from the initial values because its order has changed.

    Args:
        shards: the servers' records before a restore that has found no checkpoint.
        order: see `recovery.decide`.

    Raises:
        SettingsError: names the cause and the way out.
    """
    if has_other_order(shards, order):
        raise SettingsError(
            "data: the splits, or their order, have changed since training began, and there is no checkpoint from "
            "which training could continue. Give every start of a task the same paths, or size and block, and the "
            "same seed. Sort listed paths, as in Files(sorted(paths), read), or save checkpoints before you change them"
        )
