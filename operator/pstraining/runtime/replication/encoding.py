"""A ballot, a roster and what a member says of itself as numbers, as servers keep them.

Pure: no clock, no TensorFlow.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from pstraining.runtime.model.partition import Array
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.replication.view import NOTHING, Answer, Ballot, Process, Roster

LIFE: Final = 0
VOTES: Final = 1
COPIED: Final = 2
BALLOT: Final = 3
LEARNED: Final = 4
HEAD: Final = 5
"""Places in a seat; then the roster's processes, place and life of each, places counted from 1, a learner's below 0."""
EPOCH_BITS: Final = 20
ATTEMPT_BITS: Final = 20


def number(ballot: Ballot) -> int:
    """A ballot as servers compare it, in their record's fence."""
    return (ballot.term << EPOCH_BITS) + ballot.epoch


def ballot(fence: int) -> Ballot:
    """The same the other way round."""
    return Ballot(fence >> EPOCH_BITS, fence % (1 << EPOCH_BITS))


def size(shards: int, members: int) -> int:
    """Length of a seat's vector."""
    return HEAD + 2 * shards * members


def encode(roster: Roster, places: Sequence[str], members: int) -> Array:
    """A roster as it is kept in a seat. int64[2 * shards * members], of the shards that it has.

    Args:
        roster: what is kept.
        places: of all servers, in their order; server i + m n is member m of shard i of n.
        members: how many each shard may have.
    """
    shards = len(places) // members
    found = np.zeros([len(roster.shards), members, 2], np.int64)
    for shard, processes in enumerate(roster.shards):
        learners = [process for process in roster.learners if places.index(process.place) % shards == shard]
        for rank, process in enumerate((*processes, *learners)):
            sign = 1 if rank < len(processes) else -1
            found[shard, rank] = sign * (1 + places.index(process.place)), process.life
    return found.reshape([-1])


def answer(
    record: Array, seat: Array, places: Sequence[str], *, shards: int, members: int, leased: bool, leaving: bool
) -> Answer:
    """What a member says of itself.

    Args:
        record: see `Shard.record`. int64[5].
        seat: see `Shard.seat`.
        places: of all servers, in their order.
        shards: how many there are.
        members: how many each may have.
        leased: whether its lease holds.
        leaving: whether its pod has been told to end.
    """
    generation = int(record[RecordField.GENERATION])
    roster = None
    if seat[BALLOT]:
        rows = seat[HEAD:].reshape([-1, members, 2])[:shards]
        told = tuple(tuple(Process(places[int(p) - 1], int(life)) for p, life in row if p > 0) for row in rows)
        learners = sorted(Process(places[-int(p) - 1], int(life)) for row in rows for p, life in row if p < 0)
        roster = Roster(ballot(int(seat[BALLOT])), told, tuple(learners))
    return Answer(
        life=int(seat[LIFE]),
        promised=ballot(int(record[RecordField.FENCE])),
        votes=bool(seat[VOTES]),
        roster=roster,
        opened=generation > 0 and leased,
        step=int(record[RecordField.STEP]) if generation else None,
        generation=Ballot(abs(generation), 0) if generation else NOTHING,
        copied=ballot(int(seat[COPIED])),
        learned=int(seat[LEARNED]),
        leaving=leaving,
    )
