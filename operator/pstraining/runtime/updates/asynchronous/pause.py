"""A pause of asynchronous updates, in which every worker completes the update that it has sent, and sends no other one.

Servers apply an update independently of each other. The parameters can only be cut at other borders while every update
is on all servers or on none, so the chief pauses updates before it leads training to another layout. The first server
has the pause, which ends by itself: after its time, or under another fence. The chief compares the servers afterwards,
so a worker that has not seen the pause costs an attempt, and no update.
"""

from typing import Final

import tensorflow as tf

from pstraining.runtime.model.tensor import Operation, Tensor, Variable
from pstraining.runtime.ps.critical_section import applied, clock, critical, is_ahead, not_applied, with_dependencies
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.tensors import WORKER_SLOTS, field, put

PAUSED: Final = 2**40
"""Sent instead of the number of updates by which a worker is ahead: it may not send a new update."""


class Pause:
    """The variables of the pause on one server; create them where variables go to that server."""

    def __init__(self) -> None:
        self._until = tf.Variable(tf.zeros([], tf.float64))
        """End of the pause, in seconds since 1970 on the server's clock."""
        self._fence = tf.Variable(tf.zeros([], tf.int64))
        """The fence under which the pause counts."""
        self._seen = tf.Variable(tf.zeros([WORKER_SLOTS], tf.float64))
        """For each worker the end of the pause in which it waits; it has no update under way."""

    @property
    def variables(self) -> list[Variable]:
        """Return all variables."""
        return [self._until, self._fence, self._seen]

    # The methods emit operations on the server's device, inside its critical section.

    def begin(self, fence: Tensor, seconds: Tensor) -> list[Operation]:
        """Begin a pause; return the operations to wait for."""
        until = self._until.assign(clock() + seconds, read_value=False)
        return [until, self._fence.assign(fence, read_value=False)]

    def is_on(self, fence: Tensor) -> Tensor:
        """Return whether updates are paused under this fence. bool[]."""
        return is_ahead(self._until.read_value()) & tf.equal(self._fence.read_value(), fence)

    def note(self, worker: Tensor) -> Operation:
        """Note that a worker waits in this pause; return the operation to wait for."""
        return put(self._seen, worker, self._until.read_value())

    def is_seen(self, fence: Tensor) -> Tensor:
        """Return which workers wait in this pause. bool[WORKER_SLOTS]."""
        return self.is_on(fence) & tf.equal(self._seen.read_value(), self._until.read_value())


def begin(shard: Shard, pause: Pause, fence: Tensor, seconds: Tensor) -> Tensor:
    """Emit beginning a pause on the first server under a fence; 1 if the server has that fence. int64[].

    Args:
        shard: the first server.
        pause: its pause.
        fence: the chief's fence. int64[].
        seconds: maximum duration; 0 ends a pause. float64[].
    """

    def body(fence: Tensor, seconds: Tensor) -> Tensor:
        allowed = tf.equal(field(shard.record.read_value(), RecordField.FENCE), fence)
        return tf.cond(allowed, lambda: with_dependencies(pause.begin(fence, seconds), applied()), not_applied)

    return critical(shard.device, shard.container, [fence, seconds], body)


def not_waiting(shard: Shard, pause: Pause) -> Tensor:
    """Emit the indices of the live workers that do not wait in a pause, in ascending order. int64[n]."""

    def body() -> Tensor:
        fence = field(shard.record.read_value(), RecordField.FENCE)
        return tf.where(shard.registry.present() & ~pause.is_seen(fence))[:, 0]

    return critical(shard.device, shard.container, [], body)
