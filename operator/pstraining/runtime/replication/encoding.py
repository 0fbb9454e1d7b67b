"""Ballots, views and statuses as vectors of integers, as servers keep them.

Pure: no clock, no TensorFlow.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from pstraining.runtime.model.partition import Array
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.replication.view import NO_BALLOT, Ballot, Process, ProcessStatus, View

INCARNATION: Final = 0
IS_VOTER: Final = 1
TRANSFERRED_IN: Final = 2
BALLOT: Final = 3
CHUNKS: Final = 4
HEAD: Final = 5
"""Fields of an acceptor's vector. Behind them come the view's processes, task and incarnation of each.

Tasks count from 1; a learner's is negative.
"""
EPOCH_BITS: Final = 20
ATTEMPT_BITS: Final = 20


def number(ballot: Ballot) -> int:
    """Return a ballot as an integer, as servers compare it: the fence of their record."""
    return (ballot.term << EPOCH_BITS) + ballot.epoch


def ballot(fence: int) -> Ballot:
    """Return the ballot that a fence stands for."""
    return Ballot(fence >> EPOCH_BITS, fence % (1 << EPOCH_BITS))


def size(shards: int, members: int) -> int:
    """Return the length of an acceptor's vector."""
    return HEAD + 2 * shards * members


def encode(view: View, tasks: Sequence[str], members: int) -> Array:
    """Return a view as an acceptor's vector holds it, for the shards that it has. int64[2 * shards * members].

    Args:
        view: the view to encode.
        tasks: of all servers, in their order; server i + m n is member m of shard i of n.
        members: the maximum number of members of each shard.
    """
    shards = len(tasks) // members
    found = np.zeros([len(view.shards), members, 2], np.int64)
    for shard, processes in enumerate(view.shards):
        learners = [process for process in view.learners if tasks.index(process.task) % shards == shard]
        for rank, process in enumerate((*processes, *learners)):
            sign = 1 if rank < len(processes) else -1
            found[shard, rank] = sign * (1 + tasks.index(process.task)), process.incarnation
    return found.reshape([-1])


def status(
    record: Array, acceptor: Array, tasks: Sequence[str], *, shards: int, members: int, leased: bool, draining: bool
) -> ProcessStatus:
    """Return a member's status, decoded from its server's vectors.

    Args:
        record: see `Shard.record`. int64[5].
        acceptor: see `Shard.acceptor`.
        tasks: of all servers, in their order.
        shards: the number of shards.
        members: the maximum number of members of each shard.
        leased: whether its lease holds.
        draining: whether its pod has been told to end.
    """
    generation = int(record[RecordField.GENERATION])
    view = None
    if acceptor[BALLOT]:
        rows = acceptor[HEAD:].reshape([-1, members, 2])[:shards]
        shard_members = tuple(
            tuple(Process(tasks[int(p) - 1], int(incarnation)) for p, incarnation in row if p > 0) for row in rows
        )
        learners = sorted(
            Process(tasks[-int(p) - 1], int(incarnation)) for row in rows for p, incarnation in row if p < 0
        )
        view = View(ballot(int(acceptor[BALLOT])), shard_members, tuple(learners))
    return ProcessStatus(
        incarnation=int(acceptor[INCARNATION]),
        promised=ballot(int(record[RecordField.FENCE])),
        is_voter=bool(acceptor[IS_VOTER]),
        view=view,
        active=generation > 0 and leased,
        step=int(record[RecordField.STEP]) if generation else None,
        generation=Ballot(abs(generation), 0) if generation else NO_BALLOT,
        transferred_in=ballot(int(acceptor[TRANSFERRED_IN])),
        chunks=int(acceptor[CHUNKS]),
        draining=draining,
    )
