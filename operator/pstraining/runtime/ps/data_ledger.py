"""The data ledger: the workers' splits and their progress, on the first parameter server beside the parameters.

A worker's position in the data advances in the critical section that applies its update, and a checkpoint holds both.
A sample is therefore trained again if and only if its update was lost. A process that replaces a worker continues after
the last applied update. The split of a worker without heartbeats for RECLAIM_SECONDS is assigned to another worker.

Splits are assigned in the order of requests. With ordered sums, all workers without a split receive one at the same
time, in the order of their numbers. Workers run in lockstep then, so a repeated run assigns the same splits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import tensorflow as tf

from pstraining.runtime.model.tensor import Operation, Tensor
from pstraining.runtime.ps.critical_section import applied, with_dependencies
from pstraining.runtime.ps.messages import (
    ASSIGNED,
    EXHAUSTED,
    DataLeft,
    HeldSplit,
    LedgerNews,
    SplitProgress,
    SplitReply,
)
from pstraining.runtime.ps.tensors import WORKER_SLOTS, put
from pstraining.runtime.ps.variables import PSVariable
from pstraining.runtime.ps.worker_registry import WorkerRegistry

RECLAIM_SECONDS: Final = 60.0
"""Seconds without a heartbeat after which a worker's split is assigned to another worker."""


@dataclass(frozen=True)
class SplitPosition:
    """A worker's position in its split after an update."""

    position: int
    done: int
    """Batches of the split that are trained after the update."""
    finished: bool
    """Whether the whole split is trained after the update."""

    def numbers(self) -> list[int]:
        """Return the vector that a worker sends; a server reads it by `messages.SplitProgress`. int64[3]."""
        return [self.position, self.done, int(self.finished)]


NO_PROGRESS: Final = [-1, 0, 0]
"""The progress of an update whose data is not in the ledger."""


class Ledger:
    """The ledger's variables; create it where variables go to the first server.

    Args:
        lockstep_workers: number of workers that receive splits together; 0 if each worker receives one on request.
        copied: whether standbys keep a copy, which receives rows in any order.
    """

    def __init__(self, lockstep_workers: int = 0, *, copied: bool = False) -> None:
        self._lockstep_workers = lockstep_workers
        self.next = tf.Variable(tf.zeros([], tf.int64))
        """The first position that was assigned to no worker."""
        self.held = tf.Variable(tf.zeros([WORKER_SLOTS, 2], tf.int64))
        """Each worker's split; see `messages.HeldSplit`. int64[WORKER_SLOTS, 2]."""
        self.pending = tf.Variable(tf.zeros([WORKER_SLOTS, 3], tf.int64))
        """In synchronous mode, the progress of each worker's gradient in the sums. int64[WORKER_SLOTS, 3]."""
        self.limit = tf.Variable(tf.fill([], tf.int64.max))
        """The first position that is never assigned, as the workers report it."""
        self.versions: PSVariable | None = tf.Variable(tf.zeros([WORKER_SLOTS], tf.int64)) if copied else None
        """How often each row of `held` has changed."""

    def saved(self) -> dict[str, PSVariable]:
        """Return the variables that are saved in a checkpoint, by name."""
        return {"ledger/next": self.next, "ledger/held": self.held}

    def not_saved(self) -> list[PSVariable]:
        """Return the variables that are not saved in a checkpoint."""
        return [self.pending, self.limit, *([] if self.versions is None else [self.versions])]

    # Every method below emits operations on the first server's device, inside its critical section.

    def assign(self, worker: Tensor, registry: WorkerRegistry, limit: Tensor) -> Tensor:
        """Assign a split to a worker: the one that it holds, an abandoned one, or the next.

        Returns:
            See `messages.SplitReply`. int64[3].
        """
        held = self.held.read_value()
        lapsed = (HeldSplit.unpack(held).number > 0) & (registry.heard.read_value() < registry.now() - RECLAIM_SECONDS)
        # Workers in lockstep are always waited for, and keep their splits.
        lapsed &= tf.range(WORKER_SLOTS) >= self._lockstep_workers
        orphan = tf.argmax(tf.cast(lapsed, tf.int32), output_type=tf.int64)

        def keep() -> Tensor:
            return held[worker]

        def adopt() -> Tensor:
            moved = [put(self.held, worker, held[orphan]), put(self.held, orphan, tf.zeros([2], tf.int64))]
            return with_dependencies(moved, held[orphan])

        def begin() -> Tensor:
            row = HeldSplit(self.next.read_value() + 1, tf.constant(0, tf.int64)).pack()
            return with_dependencies(
                [put(self.held, worker, row), self.next.assign_add(tf.constant(1, tf.int64), read_value=False)], row
            )

        def find() -> Tensor:
            more = self.next.read_value() < limit
            some = (lambda: self._assign_all(worker, limit)) if self._lockstep_workers else begin
            return tf.cond(
                tf.reduce_any(lapsed),
                adopt,
                lambda: tf.cond(more, some, lambda: tf.zeros([2], tf.int64)),
            )

        row = tf.cond(HeldSplit.unpack(held[worker]).number > 0, keep, find)
        with tf.control_dependencies([row]):
            counted = self._count_changes(held, self.held.read_value())
        with tf.control_dependencies([self.limit.assign(limit, read_value=False), *counted]):
            split = HeldSplit.unpack(tf.identity(row))
        state = tf.where(split.number > 0, ASSIGNED, EXHAUSTED)
        return SplitReply(state, split.number - 1, split.done).pack()

    def _assign_all(self, worker: Tensor, limit: Tensor) -> Tensor:
        """Assign the next splits to all workers without one; return the row of one worker. int64[2]."""
        held, first = self.held.read_value(), self.next.read_value()
        without = tf.equal(HeldSplit.unpack(held).number, 0) & (tf.range(WORKER_SLOTS) < self._lockstep_workers)
        positions = first + tf.cumsum(tf.cast(without, tf.int64), exclusive=True)
        given = without & (positions < limit)
        rows = tf.where(given[:, tf.newaxis], HeldSplit(positions + 1, tf.zeros_like(positions)).pack(), held)
        moved = [
            self.held.assign(rows, read_value=False),
            self.next.assign_add(tf.math.count_nonzero(given), read_value=False),
        ]
        return with_dependencies(moved, rows[worker])

    def active_workers(self, workers: int, present: Tensor) -> Tensor:
        """Return the number of workers that have a split or will receive one. int64[].

        Args:
            workers: number of workers that may have one.
            present: number of workers that may still receive one. int64[].
        """
        held = tf.math.count_nonzero(HeldSplit.unpack(self.held.read_value()[:workers]).number)
        return tf.where(self.next.read_value() < self.limit.read_value(), present, held)

    def is_expected(self, worker: Tensor, progress: Tensor) -> Tensor:
        """Return whether a progress continues the worker's split, or is not about a split. bool[].

        Otherwise the batches are already trained, and this is a late call, or they now belong to another worker.
        """
        held, after = HeldSplit.unpack(self.held.read_value()[worker]), SplitProgress.unpack(progress)
        return (after.position < 0) | (tf.equal(after.position + 1, held.number) & (after.done > held.done))

    def stage(self, worker: Tensor, progress: Tensor) -> Operation:
        """Stage the progress of a gradient that waits in the sums; return the operation to wait for."""
        return put(self.pending, worker, progress)

    def advance(self, worker: Tensor, progress: Tensor) -> Operation:
        """Advance the worker of an applied update; return the operation to wait for."""
        row = self._after(progress[tf.newaxis], self.held.read_value()[worker][tf.newaxis])
        return put(self.held, worker, row[0])

    def advance_all(self, admitted: Tensor) -> Operation:
        """Advance the workers of an applied step; return the operation to wait for.

        Args:
            admitted: 1 for each worker whose gradient is in the step. int64[WORKER_SLOTS].
        """
        held, rows = self.held.read_value(), self._after_all(admitted)
        return with_dependencies(
            [self.held.assign(rows, read_value=False), *self._count_changes(held, rows)], applied()
        )

    def news(self, admitted: Tensor | None = None) -> list[Tensor]:
        """Return the current changes for a copy of the ledger, or those after a step.

        Args:
            admitted: 1 for each worker whose gradient is in the step; None: the current state. int64[WORKER_SLOTS].

        Returns:
            See `messages.LedgerNews`. int64[n, 2], int64[n], int64[2].
        """
        held, versions = self.held.read_value(), self._counted().read_value()
        rows = held if admitted is None else self._after_all(admitted)
        versions += _changed(held, rows)
        number = tf.reduce_max(tf.where(versions > 0, tf.range(1, WORKER_SLOTS + 1), 0))
        return LedgerNews(rows[:number], versions[:number], self.next.read_value(), self.limit.read_value()).pack()

    def merge(self, news: Sequence[Tensor]) -> list[Operation]:
        """Merge news into a copy, which may arrive late or twice; return the operations to wait for."""
        rows, versions, following, limit = LedgerNews.unpack(news)
        held, own = self.held.read_value(), self._counted().read_value()
        number = tf.shape(versions)[0]
        newer = versions > own[:number]
        kept = tf.where(newer[:, tf.newaxis], rows, held[:number])
        later = following > self.next.read_value()
        return [
            self.held.assign(tf.concat([kept, held[number:]], 0), read_value=False),
            self._counted().assign(tf.concat([tf.maximum(versions, own[:number]), own[number:]], 0), read_value=False),
            self.next.assign(tf.where(later, following, self.next.read_value()), read_value=False),
            self.limit.assign(limit, read_value=False),
        ]

    def _counted(self) -> PSVariable:
        if self.versions is None:
            raise ValueError("a ledger that no standby copies does not count its changes")
        return self.versions

    def _after_all(self, admitted: Tensor) -> Tensor:
        """Return `held` after a step with the gradients of some workers. int64[WORKER_SLOTS, 2]."""
        held = self.held.read_value()
        moved = self._after(self.pending.read_value(), held)
        return tf.where(tf.equal(admitted, 1)[:, tf.newaxis], moved, held)

    def _count_changes(self, before: Tensor, rows: Tensor) -> list[Operation]:
        """Count changed rows; return the operations to wait for."""
        if self.versions is None:
            return []
        return [self.versions.assign_add(_changed(before, rows), read_value=False)]

    def left(self) -> Tensor:
        """Return the data that is not trained yet; see `messages.DataLeft`. int64[3]."""
        following, numbers = self.next.read_value(), HeldSplit.unpack(self.held.read_value()).number
        first = tf.reduce_min(tf.where(numbers > 0, numbers - 1, following))
        return DataLeft(following, tf.math.count_nonzero(numbers), first).pack()

    @staticmethod
    def _after(progress: Tensor, held: Tensor) -> Tensor:
        """Return rows of `held` after some progress; a row is unchanged if the progress is not about its split."""
        after = SplitProgress.unpack(progress)
        row = HeldSplit(after.position + 1, after.done).pack()
        row = tf.where(tf.equal(after.finished, 1)[:, tf.newaxis], tf.zeros_like(row), row)
        same = tf.equal(after.position + 1, HeldSplit.unpack(held).number) & (after.position >= 0)
        return tf.where(same[:, tf.newaxis], row, held)


def _changed(before: Tensor, rows: Tensor) -> Tensor:
    """Return 1 for each row that differs. int64[n]."""
    return tf.cast(tf.reduce_any(tf.not_equal(before, rows), 1), tf.int64)
