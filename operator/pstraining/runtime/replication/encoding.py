"""Ballots and views as integers, as servers keep them.

Pure: no clock, no TensorFlow.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from pstraining.runtime.model.partition import Array
from pstraining.runtime.replication.view import NO_BALLOT, Ballot, Process, View

HEAD: Final = 5
"""Numbers of an acceptor's vector before its view; `messages.AcceptorState` names them."""
EPOCH_BITS: Final = 20
ATTEMPT_BITS: Final = 20


def number(ballot: Ballot) -> int:
    """Return a ballot as an integer that servers compare: the fence of their record."""
    return (ballot.term << EPOCH_BITS) + ballot.epoch


def ballot(fence: int) -> Ballot:
    """Return the ballot that a fence stands for."""
    return Ballot(fence >> EPOCH_BITS, fence % (1 << EPOCH_BITS))


def size(shards: int, members: int) -> int:
    """Return the length of an acceptor's vector."""
    return HEAD + 1 + 2 * shards * members


def encode(view: View, tasks: Sequence[str], members: int) -> Array:
    """Return a view in the form of an acceptor's vector, for the view's shards. int64[1 + 2 * shards * members].

    The first number is that of the successor's ballot. Each member of each shard has two numbers, its task and its
    incarnation. Tasks are numbered from 1; a learner's number is negative, and 0 stands for no process.

    Args:
        view: the view to encode.
        tasks: the tasks of all servers, in their order; server i + m n is member m of shard i of n.
        members: the maximum number of members of each shard.
    """
    shards = len(tasks) // members
    rows = np.zeros([len(view.shards), members, 2], np.int64)
    for shard, processes in enumerate(view.shards):
        learners = [process for process in view.learners if tasks.index(process.task) % shards == shard]
        for rank, process in enumerate((*processes, *learners)):
            sign = 1 if rank < len(processes) else -1
            rows[shard, rank] = sign * (1 + tasks.index(process.task)), process.incarnation
    return np.concatenate([[number(view.successor)], rows.reshape([-1])])


def decode(accepted: Ballot, entries: Array, tasks: Sequence[str], *, shards: int, members: int) -> View | None:
    """Return the view that `encode` encoded; None if none was accepted.

    Args:
        accepted: the view's ballot, NO_BALLOT if none was accepted.
        entries: see `encode`.
        tasks: the tasks of all servers, in their order.
        shards: the number of shards.
        members: the maximum number of members of each shard.
    """
    if accepted == NO_BALLOT:
        return None
    rows = [
        [(int(task), int(incarnation)) for task, incarnation in row]
        for row in entries[1:].reshape([-1, members, 2])[:shards]
    ]
    in_sync = tuple(
        tuple(Process(tasks[task - 1], incarnation) for task, incarnation in row if task > 0) for row in rows
    )
    learners = sorted(Process(tasks[-task - 1], incarnation) for row in rows for task, incarnation in row if task < 0)
    return View(accepted, in_sync, tuple(learners), ballot(int(entries[0])))
