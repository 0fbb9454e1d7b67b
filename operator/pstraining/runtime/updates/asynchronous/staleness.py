"""Staleness of asynchronous updates and its bound: the variables of mode Async on a server.

Every update carries its worker's number for it, and a server applies no number twice. An update whose reply was lost
can therefore be resent: servers that have applied it ignore it, and the remaining servers catch up.

A worker's clock counts its updates. With a bound, no worker is further ahead of the slowest live worker than the bound
(stale-synchronous parallel: Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server,
NIPS 2013). The clocks are on the first server; the critical section that applies an update reads and advances them.
"""

from typing import Final

import tensorflow as tf

from pstraining.runtime.model.tensor import Operation, Tensor, Variable
from pstraining.runtime.ps.critical_section import with_dependencies
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.tensors import WORKER_SLOTS, at, put
from pstraining.runtime.ps.variables import PSVariable
from pstraining.runtime.ps.worker_registry import WorkerRegistry
from pstraining.runtime.updates.asynchronous.pause import PAUSED, Pause
from pstraining.runtime.updates.mode_state import ModeState

_NEVER: Final = 2**62
"""A number greater than any clock."""


class Clocks(ModeState):
    """The variables on one server; create them where variables go to that server.

    Args:
        registry: the worker registry of that server.
        bound: maximum number of updates that a worker may be ahead; None for no limit.
        pauses: whether the chief may pause updates; the first server of a job with standbys.
    """

    def __init__(self, registry: WorkerRegistry, *, bound: int | None, pauses: bool = False) -> None:
        self._registry, self._bound = registry, bound
        self.made = tf.Variable(tf.zeros([WORKER_SLOTS], tf.int64))
        """For each worker the number of its last update that this server has applied; 0 for none."""
        self.clocks = tf.Variable(tf.zeros([WORKER_SLOTS], tf.int64))
        """For each worker its clock: updates applied, plus the clock at which the worker joined. First server only."""
        self.pause = Pause() if pauses else None

    @property
    def transient(self) -> list[Variable]:
        """Return those of the pause only: a returning member recognizes every update that was applied before."""
        return self.pause.variables if self.pause else []

    @property
    def carried(self) -> list[PSVariable]:
        """See `ModeVariables`: in another layout, a resent update that was applied before counts once as well."""
        return [self.made, self.clocks]

    def followers(self, segment: int) -> list[PSVariable]:
        """Return nothing: pulls have no shadow."""
        return []

    # The methods emit operations on the server's device, inside its critical section.

    def is_new(self, worker: Tensor, number: Tensor) -> Tensor:
        """Return whether this server has not applied the worker's update of this number yet. bool[]."""
        return number > at(self.made, worker)

    def note(self, worker: Tensor, number: Tensor) -> list[Operation]:
        """Mark an accepted update's number as applied, and advance the clock; return the operations to wait for."""
        tick = tf.cast(self.is_new(worker, number), tf.int64)
        moved = put(self.clocks, worker, self._caught_up(worker) + tick)
        with tf.control_dependencies([tick]):
            return [moved, put(self.made, worker, number)]

    def ahead(self, worker: Tensor) -> Tensor:
        """Return by how many updates the worker is ahead of the slowest live one; 0 without a bound. int64[]."""
        if self._bound is None:
            return tf.constant(0, tf.int64)
        slowest = tf.reduce_min(tf.where(self._others(worker), self.clocks.read_value(), _NEVER))
        return tf.maximum(at(self.clocks, worker) - slowest, 0)

    def begin(self, worker: Tensor, newcomer: Tensor) -> list[Operation]:
        """Reset an index for its new process: drop the former numbers, and start at the slowest live worker's clock.

        Args:
            worker: the index. int64[].
            newcomer: whether the process is new to the index. bool[].

        Returns:
            The operations to wait for.
        """
        others = self._others(worker)
        slowest = tf.reduce_min(tf.where(others, self.clocks.read_value(), _NEVER))
        clock, made = at(self.clocks, worker), at(self.made, worker)
        start = tf.where(newcomer & tf.reduce_any(others), slowest, clock)
        return [
            put(self.clocks, worker, start),
            put(self.made, worker, tf.where(newcomer, tf.constant(0, tf.int64), made)),
        ]

    def catch_up(self, worker: Tensor) -> Operation:
        """Advance the clock of a worker that was considered dead; return the operation to wait for."""
        return put(self.clocks, worker, self._caught_up(worker))

    def _caught_up(self, worker: Tensor) -> Tensor:
        """Return the worker's clock, raised to at most the bound behind the fastest live worker. int64[].

        The clock of a worker for which the others wait is within the bound, and does not change.
        """
        clock = at(self.clocks, worker)
        if self._bound is None:
            return clock
        fastest = tf.reduce_max(tf.where(self._others(worker), self.clocks.read_value(), 0))
        return tf.maximum(clock, fastest - self._bound)

    def _others(self, worker: Tensor) -> Tensor:
        """Return which other workers are alive. bool[WORKER_SLOTS]."""
        return self._registry.alive() & tf.not_equal(tf.range(WORKER_SLOTS, dtype=tf.int64), worker)

    def ahead_or_paused(self, worker: Tensor, fence: Tensor) -> Tensor:
        """Return `ahead`; `PAUSED` if updates are paused under this fence. int64[]."""
        ahead = self.ahead(worker)
        return tf.where(self.pause.is_on(fence), tf.constant(PAUSED, tf.int64), ahead) if self.pause else ahead


def pause_of(shard: Shard) -> Pause:
    """Return the pause on the first server.

    Raises:
        TypeError: the server has none.
    """
    if (pause := Clocks.of(shard).pause) is None:
        raise TypeError(f"shard {shard.number} has no pause")
    return pause


def ask(clocks: Clocks, worker: Tensor, fence: Tensor) -> Tensor:
    """Emit `catch_up`, and return what `Clocks.ahead_or_paused` does; the worker has no update under way. int64[]."""
    noted = [clocks.pause.note(worker)] if clocks.pause else []
    with tf.control_dependencies([clocks.catch_up(worker), *noted]):
        return with_dependencies([], clocks.ahead_or_paused(worker, fence))
