"""The variables of an update mode on one server, retrieved from the server's shard."""

from typing import Self

from pstraining.runtime.ps.member import ModeVariables
from pstraining.runtime.ps.shard import Shard


class ModeState(ModeVariables):
    """Base of the classes whose objects are a shard's `mode_state`."""

    @classmethod
    def of(cls, shard: Shard) -> Self:
        """Return the shard's variables of this class.

        Raises:
            TypeError: the server has the variables of another update mode.
        """
        if not isinstance(shard.mode_state, cls):
            raise TypeError(f"shard {shard.number} has no {cls.__name__}")
        return shard.mode_state
