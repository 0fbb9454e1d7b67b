"""The record that a parameter server keeps of its shard, and the session that a worker's updates carry.

The fence is the term of the chief that leads the server, or with standbys the number of a view's ballot. An update or
a restore with another fence is rejected. The generation names one restored set of parameters. A shard that lost its
state, or that is being overwritten, has generation 0. An update carries the generation that it was computed on, so no
update mixes two sets. A set with a negative generation is consistent and inactive: a stopping chief has saved it, and
the next chief activates it again.

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
    """Indices of a record's vector, which is read and written as a whole. int64[5]."""

    FENCE = 0
    GENERATION = 1
    DONE = 2
    STEP = 3
    LAYOUT = 4


RECORD_SIZE: Final = len(RecordField)
ONE_STEP: Final = tuple(int(which is RecordField.STEP) for which in RecordField)
"""The vector that a step adds to a record."""
ANY_GENERATION: Final = -(1 << 63)
"""Matches every generation as the observed one; see `ps.shard.Shard.set_record`."""
EARLY: Final = 2
"""Value of the field DONE if the program ended training early; 1: training is complete, 0: it continues."""


@dataclass(frozen=True)
class ShardRecord:
    """The record of one server; all 0 if the server is empty."""

    fence: int = 0
    generation: int = 0
    done: bool = False
    step: int = 0
    """Updates applied on this server; the first server's is the job's global step."""
    layout: int = 0
    """Fingerprint of the layout that the shard was written with."""
    early: bool = False
    """Whether the program ended training early."""

    @classmethod
    def from_vector(cls, row: "Array") -> "ShardRecord":
        """Return the record from a server's vector. int64[5]."""
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
    """The session of a worker's updates: the fence and the set of parameters that they belong to."""

    fence: int
    """The fencing token: the chief's term, or with standbys the number of the view's ballot."""
    generation: int


class LayoutMismatchError(RuntimeError):
    """This task has another model, or another number of servers, than the chief."""


_ON_EQUAL_CONTENTS: Final = (
    ". The contents of {} must be equal as well: adapt layers to the same data in the same order on all tasks, list "
    "words in a fixed order, and draw integer weights with a seed"
)


def session(shards: Sequence[ShardRecord], *, layout: int, unshared: Sequence[str] = ()) -> Session | None:
    """Return the session that workers may train in; None while the shards do not form one consistent, active set.

    Args:
        shards: the servers' records.
        layout: fingerprint of this task's layout.
        unshared: names of layers and weights whose contents are in the fingerprint, and which tasks do not exchange.

    Raises:
        LayoutMismatchError: the set belongs to another model.
    """
    first = shards[0]
    if any((shard.fence, shard.generation) != (first.fence, first.generation) for shard in shards):
        return None
    if not first.fence or first.generation <= 0:
        return None
    if any(shard.layout != layout for shard in shards):
        raise LayoutMismatchError(
            "this task's model or optimizer differs from the chief's: all tasks must run the same program"
            + (_ON_EQUAL_CONTENTS.format(", ".join(unshared)) if unshared else "")
        )
    return Session(first.fence, first.generation)


def partly_applied(numbers: Sequence[Sequence[int]], incarnations: Sequence[int]) -> list[int]:
    """Return the registered workers whose last update some servers have applied, and others have not.

    Args:
        numbers: for each server the number of each worker's last update that it has applied.
        incarnations: the registered process of each worker; 0: none, so its last update is never resent.
    """
    return [
        worker for worker, own in enumerate(zip(*numbers, strict=True)) if incarnations[worker] and len(set(own)) > 1
    ]
