"""How old asynchronous updates are, and how far workers may run apart: the mode Async's own variables on a server.

Every update carries its worker's number for it, and a server applies no number twice. So one whose reply was lost can
be sent again: the servers that have it leave it, the others catch up.

A worker's clock is how many updates it has made. With a bound, no worker is more updates ahead of the slowest living
one than that (stale-synchronous parallel: Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel
Parameter Server, NIPS 2013). Clocks are on the first server, read and moved in the critical section that applies the
update.
"""

from typing import Final, Self

import tensorflow as tf

from pstraining.runtime.model.tensor import Operation, Tensor
from pstraining.runtime.ps.critical_section import with_dependencies
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.tensors import WORKER_SLOTS, at, put
from pstraining.runtime.ps.worker_registry import WorkerRegistry

_NEVER: Final = 2**62
"""More than any clock."""


class Clocks:
    """The variables on one server; create them where variables go to that server.

    Args:
        registry: the worker registry of that server.
        bound: how many updates a worker may be ahead; None: any number.
    """

    def __init__(self, registry: WorkerRegistry, *, bound: int | None) -> None:
        self._registry, self._bound = registry, bound
        self.made = tf.Variable(tf.zeros([WORKER_SLOTS], tf.int64))
        """Of every worker the number of its last update that this server has; 0: none."""
        self.clocks = tf.Variable(tf.zeros([WORKER_SLOTS], tf.int64))
        """How many updates each worker has made, or was taken to have made when it came; the first server's count."""

    @classmethod
    def of(cls, shard: Shard) -> Self:
        """Return a server's clocks.

        Raises:
            TypeError: the server has the variables of another update mode.
        """
        if not isinstance(shard.mode_state, cls):
            raise TypeError(f"shard {shard.number} has no {cls.__name__}")
        return shard.mode_state

    # The methods emit operations on the server's device, inside its critical section.

    def is_new(self, worker: Tensor, number: Tensor) -> Tensor:
        """Whether this server has yet to apply the worker's update of this number. bool[]."""
        return number > at(self.made, worker)

    def note(self, worker: Tensor, number: Tensor) -> list[Operation]:
        """An update was let in: its number counts as applied, and the clock goes on; the operations to wait for."""
        tick = tf.cast(self.is_new(worker, number), tf.int64)
        moved = put(self.clocks, worker, self._caught_up(worker) + tick)
        with tf.control_dependencies([tick]):
            return [moved, put(self.made, worker, number)]

    def ahead(self, worker: Tensor) -> Tensor:
        """How many updates the worker is ahead of the slowest other one that lives; 0 without a bound. int64[]."""
        if self._bound is None:
            return tf.constant(0, tf.int64)
        slowest = tf.reduce_min(tf.where(self._others(worker), self.clocks.read_value(), _NEVER))
        return tf.maximum(at(self.clocks, worker) - slowest, 0)

    def begin(self, worker: Tensor, newcomer: Tensor) -> list[Operation]:
        """A process takes the index: another one's numbers are void, and it starts where the slowest living one is.

        Args:
            worker: the index. int64[].
            newcomer: whether another process had it, or none. bool[].

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
        """Forgive what a worker has missed while it was taken for dead; the operation to wait for."""
        return put(self.clocks, worker, self._caught_up(worker))

    def _caught_up(self, worker: Tensor) -> Tensor:
        """The worker's clock, at most the bound behind the fastest living one: who was waited for never is. int64[]."""
        clock = at(self.clocks, worker)
        if self._bound is None:
            return clock
        fastest = tf.reduce_max(tf.where(self._others(worker), self.clocks.read_value(), 0))
        return tf.maximum(clock, fastest - self._bound)

    def _others(self, worker: Tensor) -> Tensor:
        """Which other workers live. bool[WORKER_SLOTS]."""
        return self._registry.alive() & tf.not_equal(tf.range(WORKER_SLOTS, dtype=tf.int64), worker)


def ask(clocks: Clocks, worker: Tensor) -> Tensor:
    """How far the worker is ahead, after it has caught up. int64[]."""
    with tf.control_dependencies([clocks.catch_up(worker)]):
        return with_dependencies([], clocks.ahead(worker))
