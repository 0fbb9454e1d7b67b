"""Which workers take part, as every parameter server knows it.

A worker's incarnation is the time at which its process began, so the newest process of an index counts: Kubernetes may
run two pods of one index for a while (a node was lost, and comes back), and what the older one sends is refused.
Workers are heard of whenever they send something, and once a second in between.
"""

from typing import Any, Final

import tensorflow as tf

from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.critical_section import after, clock, one, zero
from pstraining.runtime.ps.tensors import WORKER_SLOTS, at, put

BEAT_SECONDS: Final = 1.0
"""Seconds between a worker's signs of life while it computes."""
LAPSE_SECONDS: Final = 3.0
"""Seconds of silence, on the server's clock, after which a worker is not waited for."""


class Membership:
    """The members' variables on one server; create it where variables go to that server."""

    def __init__(self) -> None:
        self.incarnations = tf.Variable(tf.zeros([WORKER_SLOTS], tf.int64))
        """Of the newest process of every index, in nanoseconds since 1970; 0: none, or it has said good-bye."""
        self.heard = tf.Variable(lambda: tf.fill([WORKER_SLOTS], clock()), dtype=tf.float64)
        """When each was last heard of, in seconds since 1970 on the server's clock; at first, when the state came."""

        self.reports = tf.Variable(lambda: tf.fill([WORKER_SLOTS], ""), dtype=tf.string)
        """What each tells of itself with its signs of life, as `telemetry.aggregation` writes it; empty: nothing
        yet."""

    @property
    def transient(self) -> list[Any]:
        """What is of this server's clock and of the moment."""
        return [self.heard, self.reports]

    # All of it emits operations on the server's device, inside its critical section.

    def is_current(self, worker: Tensor, incarnation: Tensor) -> Tensor:
        """Whether no newer process has taken the index. bool[]."""
        return tf.equal(at(self.incarnations, worker), incarnation)

    def is_newer(self, worker: Tensor, incarnation: Tensor) -> Tensor:
        """Whether the process began after the one that has the index. bool[]."""
        return at(self.incarnations, worker) < incarnation

    def hear(self, worker: Tensor) -> Any:
        """Note a sign of life."""
        return put(self.heard, worker, clock())

    def hear_report(self, worker: Tensor, report: Tensor) -> list[Any]:
        """Note a sign of life and what came with it."""
        return [self.hear(worker), put(self.reports, worker, report)]

    def hello(self, worker: Tensor, incarnation: Tensor) -> Tensor:
        """Let a process take its index, unless a newer one has; 1 if it has it now. int64[]."""

        def enter() -> Tensor:
            return after([put(self.incarnations, worker, incarnation), self.hear(worker)], one())

        return tf.cond(at(self.incarnations, worker) <= incarnation, enter, zero)

    def good_bye(self, worker: Tensor, incarnation: Tensor) -> Tensor:
        """Free a process's index, if it still has it; 1 if it had. int64[]."""

        def leave() -> Tensor:
            return after([put(self.incarnations, worker, zero())], one())

        return tf.cond(self.is_current(worker, incarnation), leave, zero)

    def alive(self) -> Tensor:
        """Which workers take part and were heard of lately. bool[WORKER_SLOTS]."""
        recent = self.heard.read_value() > clock() - LAPSE_SECONDS
        return recent & tf.not_equal(self.incarnations.read_value(), 0)
