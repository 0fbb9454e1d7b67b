"""The record that a parameter server keeps of its shard, and the session that a worker's updates carry.

The record's fence is the term of the chief that rules the server; an update or a restore that carries another term is
refused there. Its generation names one restored set: a shard that lost its state, or that is being overwritten, has
generation 0, and an update carries the generation that it was computed on. So no update ever mixes two sets. A set
whose generation is negative is whole and takes no updates: a chief that was told to stop has saved it, and the next one
lets updates in again.

Pure: no clock, no TensorFlow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # a program that imports the runtime imports no numpy
    from pstraining.runtime.model.partition import Array

Assignment = tuple[tuple[int, ...], ...]
"""For each shard the numbers of the members that are in use, its primary first."""


class RecordField(IntEnum):
    """The places in a record's vector, which is read and written whole. int64[5]."""

    FENCE = 0
    GENERATION = 1
    DONE = 2
    STEP = 3
    LAYOUT = 4


RECORD_SIZE: Final = len(RecordField)
ANY_GENERATION: Final = -(1 << 63)
"""In place of an observed generation: no matter which; see `ps.shard.Shard.set_record`."""
EARLY: Final = 2
"""In the record's field DONE: training was ended before its time; 1: it is done, 0: it goes on."""


@dataclass(frozen=True)
class ShardRecord:
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

    @classmethod
    def from_vector(cls, row: "Array") -> "ShardRecord":
        """A server's record from its vector. int64[5]."""
        return cls(
            fence=int(row[RecordField.FENCE]),
            generation=int(row[RecordField.GENERATION]),
            done=bool(row[RecordField.DONE]),
            step=int(row[RecordField.STEP]),
            layout=int(row[RecordField.LAYOUT]),
            early=int(row[RecordField.DONE]) == EARLY,
        )


@dataclass(frozen=True)
class Session:
    """What a worker's updates carry: the fence and the set of parameters that they belong to."""

    fence: int
    """The fencing token: the chief's term, or with standbys the number of the view's ballot."""
    generation: int


class LayoutMismatchError(RuntimeError):
    """This task built another model, or counts other servers, than the chief."""


def session(shards: Sequence[ShardRecord], *, layout: int) -> Session | None:
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
