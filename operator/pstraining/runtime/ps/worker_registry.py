"""The registry of workers on every parameter server.

A worker's incarnation is the time at which its process began, and the newest process of an index counts. Kubernetes may
run two pods of one index for a while (a node was lost, and returns); the requests of the older one are rejected.
Every request counts as a heartbeat, and workers send heartbeats once a second in between.

If no worker is heard for longer, this server did not run, or its clock has jumped, and heartbeats may already be there.
So the time between the requests of any two workers counts as HEARTBEAT_SECONDS at most. It counts as 0 if the clock was
set back: otherwise, a lost worker would stay alive until the clock has its former time again.
"""

from typing import Final

import tensorflow as tf

from pstraining.runtime.model.tensor import Operation, Tensor
from pstraining.runtime.ps.critical_section import applied, clock, not_applied, with_dependencies
from pstraining.runtime.ps.tensors import WORKER_SLOTS, at, put
from pstraining.runtime.ps.variables import PSVariable

HEARTBEAT_SECONDS: Final = 1.0
"""Seconds between a worker's heartbeats while it computes."""
LAPSE_SECONDS: Final = 3.0
"""Seconds without a heartbeat, on the server's clock, after which no request waits for a worker."""


class WorkerRegistry:
    """The registry's variables on one server; create it inside `variables_on` for that server."""

    def __init__(self) -> None:
        self.incarnations = tf.Variable(tf.zeros([WORKER_SLOTS], tf.int64))
        """Start of each index's newest process, in nanoseconds since 1970; 0: none, or it has deregistered."""
        self.heard = tf.Variable(lambda: tf.fill([WORKER_SLOTS], clock()), dtype=tf.float64)
        """Time of each worker's last heartbeat, in seconds since 1970 on the server's clock; initially the present."""

        self.workers = tf.Variable(tf.zeros([], tf.int64))
        """The job's number of workers, as the last registered one has read it; 0: none knows it."""
        self.reports = tf.Variable(lambda: tf.fill([WORKER_SLOTS], ""), dtype=tf.string)
        """The newest report of each worker, encoded by `telemetry.aggregation`; empty: none yet."""

    @property
    def transient(self) -> list[PSVariable]:
        """Return the variables that each member has from its own clock and calls, and that are not copied to others."""
        return [self.heard, self.reports, self.workers]

    def read_reports(self) -> Tensor:
        """Emit the newest report of each worker up to the last one with a report, outside the section. string[n].

        Their number may differ from the job's number of workers, because the job may have been scaled.
        """
        reports = self.reports.read_value()
        last = tf.reduce_max(tf.where(tf.not_equal(reports, ""), tf.range(1, WORKER_SLOTS + 1), 0))
        return reports[:last]

    def list_alive(self) -> Tensor:
        """Emit the indices of the workers that are alive, in ascending order, outside the section. int64[n]."""
        return tf.where(self.present())[:, 0]

    # Every method below emits operations on the server's device, inside its critical section.

    def is_current(self, worker: Tensor, incarnation: Tensor) -> Tensor:
        """Return whether this process is the registered one of its index. bool[]."""
        return tf.equal(at(self.incarnations, worker), incarnation)

    def is_newer(self, worker: Tensor, incarnation: Tensor) -> Tensor:
        """Return whether the process began after the registered one of its index. bool[]."""
        return at(self.incarnations, worker) < incarnation

    def now(self) -> Tensor:
        """Return the time on the server's clock, at most HEARTBEAT_SECONDS after the last heartbeat, never before it.

        The result is float64[].
        """
        return self._counted(clock())

    def _counted(self, time: Tensor) -> Tensor:
        newest = tf.reduce_max(self.heard.read_value())
        return tf.clip_by_value(time, newest, newest + HEARTBEAT_SECONDS)

    def touch(self, worker: Tensor) -> Operation:
        """Record that the worker is alive; the time that `now` leaves out makes no other worker silent."""
        time = clock()
        uncounted = tf.fill([WORKER_SLOTS], time - self._counted(time))
        with tf.control_dependencies([self.heard.assign_add(uncounted, read_value=False)]):
            return put(self.heard, worker, time)

    def record_report(self, worker: Tensor, report: Tensor) -> list[Operation]:
        """Record that the worker is alive, and store its report."""
        return [self.touch(worker), put(self.reports, worker, report)]

    def register(self, worker: Tensor, incarnation: Tensor, workers: Tensor) -> Tensor:
        """Register a process unless a newer process has its index; return 1 if it is registered. int64[].

        Args:
            worker: the worker's index. int64[].
            incarnation: start of the process, in nanoseconds since 1970. int64[].
            workers: the job's number of workers; 0: the process does not know it. int64[].
        """

        def enter() -> Tensor:
            noted = self.workers.assign(workers, read_value=False)
            return with_dependencies(
                [put(self.incarnations, worker, incarnation), self.touch(worker), noted], applied()
            )

        return tf.cond(at(self.incarnations, worker) <= incarnation, enter, not_applied)

    def deregister(self, worker: Tensor, incarnation: Tensor) -> Tensor:
        """Deregister a process; return 1 if it was registered. int64[]."""

        def leave() -> Tensor:
            return with_dependencies([put(self.incarnations, worker, tf.constant(0, tf.int64))], applied())

        return tf.cond(self.is_current(worker, incarnation), leave, not_applied)

    def alive(self) -> Tensor:
        """Return which workers are registered and have a recent heartbeat; for a worker. bool[WORKER_SLOTS]."""
        return self._heard_since(self.now() - LAPSE_SECONDS)

    def present(self) -> Tensor:
        """Return what `alive` does for the chief, which may be alone: then all workers lapse. bool[WORKER_SLOTS].

        A heartbeat in the future was before the clock was set back: no worker has been heard since.
        """
        return self._heard_since(clock() - LAPSE_SECONDS) & (self.heard.read_value() < clock() + LAPSE_SECONDS)

    def _heard_since(self, moment: Tensor) -> Tensor:
        return (self.heard.read_value() > moment) & tf.not_equal(self.incarnations.read_value(), 0)
