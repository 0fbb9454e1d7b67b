"""A task's own connection to the parameter servers: connect, call, and reconnect after a server's restart.

The one place that knows which of TensorFlow's errors mean "a server is gone". Every call to a server goes through
`Client.call`; nothing else may hold a tensor that lives on a server (a remote handle kept over a restart fails for
ever). Reconnecting is `update_server_def`, by one thread, while no call is under way, and only when every server in the
map answers: with one of them down it would wait for ever. The watchdog sees to it that a call to a server that falls
silent fails.

Where shards have several members, the map holds those that answer, one of each shard at least: calls to them go on
while another one is gone, and `reconnect_available` brings the map to what there is.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import tensorflow as tf
from tensorflow.python.eager import context

from pstraining.runtime.config.cluster import Cluster
from pstraining.runtime.model.tensor import Fetched, Structure, Tensor, TracedFunction
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.transport import errors, http2_probe, sockets
from pstraining.runtime.transport.traffic import Links
from pstraining.runtime.transport.watchdog import CONNECT_TIMEOUT_SECONDS, FIRST_CALL_TIMEOUT_SECONDS, Watchdog

POLL: Final = 0.1
"""Seconds between questions to servers that are down."""
FULL_RESET_EVERY: Final = 8
"""Of so many connections one makes the servers' contexts anew. They keep what functions they had for every connection
before, megabytes each; but with four servers and both cores busy that took 0.7 s, for which nobody trained."""
TELL_SECONDS: Final = 10.0
"""Seconds between words about who is missing."""


class ShardLostError(Exception):
    """A call failed as calls do when a server is gone or was replaced; `Client.recover` mends the connection."""

    def __init__(self, message: str, connection: int) -> None:
        super().__init__(message)
        self.connection = connection


class Client:
    """One process's eager context, shared by its threads.

    Args:
        cluster: the job and this task.
        ahead: what the servers were asked while TensorFlow was loaded.
    """

    def __init__(self, cluster: Cluster, ahead: http2_probe.Ahead | None = None) -> None:
        self.cluster, self._ahead = cluster, ahead
        task = cluster.task
        self.local = f"/job:{task.type}/replica:0/task:{task.index}/device:CPU:0"
        """This task's device; enter it before building a model or running a function."""
        self.shards = [f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(len(cluster.ps))]
        self.container = f"pstraining.{cluster.job}"
        self._connection = 0
        self._failures: dict[TracedFunction, int] = {}
        self._idle = threading.Condition()
        self._calls = 0
        self._connecting = False
        self._patience = http2_probe.probe_timeout(cluster.members)
        self._watchdog = Watchdog(cluster.ps, self._patience)
        self.links = Links(cluster.ps, sockets.split(cluster.own_address)[1])
        self.connected = frozenset(range(len(cluster.ps)))
        """Numbers of the servers that the client is connected to."""

    @property
    def reconnects(self) -> int:
        """How often the connection was mended."""
        return self._connection

    def connect(self) -> None:
        """Wait for the servers and open the context.

        Must run before the process creates any other tensor: connecting invalidates what exists.
        """
        self._wait_for_servers(self._ahead.unresponsive() if self._ahead else ())
        self._watchdog.start()
        eager = context.context()
        eager._config = tf.compat.v1.ConfigProto()
        eager._config.experimental.disable_thread_spinning = True  # as in the servers, see launcher/serve.py
        with self._exclusive():
            self._connect_all(first=True)

    def close(self) -> None:
        """End the watch over the connection; the process may go on with other things."""
        self._watchdog.stop()

    def leave(self) -> None:
        """Take leave of the servers, for good: of a client that is gone they keep everything for ten minutes."""
        with (
            self._exclusive(),
            self._watchdog.watching("leave", vital=CONNECT_TIMEOUT_SECONDS),
            suppress(tf.errors.OpError),
        ):
            context.context().update_server_def(self._definition([]))

    @property
    def connection(self) -> int:
        """Number of the connection. With a new one TensorFlow has to make ready anew what it runs."""
        return self._connection

    def call(self, function: TracedFunction, *arguments: Tensor) -> Fetched:
        """Run a traced function and fetch what it returns, as numpy arrays.

        Raises:
            ShardLostError: a server is gone or was replaced; reconnect, and look at its state before going on.
        """
        return self._guarded(function, arguments, lambda result: tf.nest.map_structure(lambda t: t.numpy(), result))

    def run(self, function: TracedFunction, *arguments: Tensor) -> Tensor:
        """The same for a function whose results are used here further: they stay tensors, on this task's device."""
        return self._guarded(function, arguments, lambda result: result)

    def _guarded(
        self, function: TracedFunction, arguments: Sequence[Tensor], use: Callable[[Tensor], Fetched]
    ) -> Fetched:
        with self._shared() as connection:
            try:
                with self._watchdog.watching("call"), tf.device(self.local):
                    fetched = use(function(*arguments))
                self._failures.pop(function, None)
            except tf.errors.OpError as error:
                name = _CODES.get(error.error_code, "OTHER")
                # Counted by function: the program's mistake is in one, while others go on succeeding. A server that
                # is surely lost explains what follows, so counting begins anew.
                failures = 0 if name in errors.ALWAYS_RETRIED else self._failures.get(function, 0) + 1
                self._failures[function] = failures
                if not errors.is_retried(name, failures):
                    raise
                # Without the cause: its traceback holds tensors of the lost server.
                raise ShardLostError(f"{name}: {_first_line(error)}", connection) from None
            return fetched

    def to_local(self, result: Structure) -> Structure:
        """Emit moving a function's results to this task: a tensor must not stay on a server.

        Not by an identity: TensorFlow takes those out, and what chooses among results would then be on the server,
        which would be sent the choice first.
        """
        with tf.device(self.local):
            moved: Structure = tf.nest.map_structure(
                lambda value: tf.raw_ops.EnsureShape(input=value, shape=value.shape), result
            )
            return moved

    def recover(self, lost: ShardLostError) -> None:
        """Reconnect, unless another thread already has since the call failed; returns when all servers answer.

        Where shards have several members nothing is waited for: others may go on with those that are left.
        """
        if self.cluster.members > 1:
            return
        with self._exclusive():
            if self._connection != lost.connection:
                return
            started = time.monotonic()
            self._wait_for_servers()
            self._connect_all(first=False)
            self._connection += 1
            event("reconnected", reason=str(lost), seconds=round(time.monotonic() - started, 3))

    def reconnect_available(self) -> frozenset[int]:
        """Reconnect to the servers that answer now; return their numbers."""
        with self._exclusive():
            started = time.monotonic()
            self._wait_for_servers()
            self._connect_all(first=False)
            self._connection += 1
            event("reconnected", servers=sorted(self.connected), seconds=round(time.monotonic() - started, 3))
            return self.connected

    def _definition(self, servers: Iterable[int]) -> tf.train.ServerDef:
        """This task and some servers.

        Not by tf.config.experimental_connect_to_cluster: it names a leader for collectives, which nobody uses here.
        """
        task, ps = self.cluster.task, self.cluster.ps
        addresses = {index: ps[index] for index in sorted(servers)}
        spec = tf.train.ClusterSpec({task.type: {task.index: self.cluster.own_address}, "ps": addresses})
        return tf.train.ServerDef(
            cluster=spec.as_cluster_def(),
            job_name=task.type,
            task_index=task.index,
            protocol="grpc",
            default_session_config=context.context().config,
        )

    def _connect_all(self, *, first: bool) -> None:
        """Open the context on every server; TensorFlow is lazy, so a first operation on each is part of it.

        A server that falls silent meanwhile may find both, the end of its former context and the news of the next one,
        in what it has yet to read. They have one name, and the end takes with it what tensors are fetched by: no call
        to that server comes back any more, however often the map is set. (Seen in one of four servers that were stopped
        for some seconds here.) So when a first operation fails, servers are taken out of the map before they are in it
        again: their contexts are made anew. That is done now and then in any case, see FULL_RESET_EVERY.
        """
        is_set, cuts, anew = not first, 0, self._connection % FULL_RESET_EVERY == 0
        while True:
            try:
                with self._watchdog.watching("connect", vital=CONNECT_TIMEOUT_SECONDS, cuts=cuts) as watched:
                    if is_set and anew:
                        context.context().update_server_def(self._definition([]))
                    if is_set:
                        context.context().update_server_def(self._definition(self.connected))
                    else:
                        context.set_server_def(self._definition(self.connected))
                        is_set = True
                for index in sorted(self.connected):
                    watching = self._watchdog.watching("greet", vital=FIRST_CALL_TIMEOUT_SECONDS, cuts=cuts)
                    with watching as watched, tf.device(self.shards[index]):
                        tf.identity(tf.constant(0)).numpy()
                return
            except tf.errors.OpError:
                cuts, anew = watched.cuts, True
                is_set = is_set and bool(context.context()._initialized)
                time.sleep(POLL)
                self._wait_for_servers()

    def _wait_for_servers(self, suspects: Sequence[str] = ()) -> None:
        """Return when enough servers answer; says who is missing, at once and every 10 seconds.

        Enough are all, or where shards have several members one of each. At first suspects, who were silent a moment
        ago, have little time to answer.
        """
        told, shards, everybody = -math.inf, self.cluster.shards, range(len(self.cluster.ps))
        while True:
            missing, suspects = http2_probe.unresponsive(self.cluster.ps, self._patience, suspects), ()
            self.connected = frozenset(index for index in everybody if self.cluster.ps[index] not in missing)
            if len({index % shards for index in self.connected}) == shards and (
                self.cluster.members > 1 or not missing
            ):
                return
            if time.monotonic() - told >= TELL_SECONDS:
                told = time.monotonic()
                event("waiting", what="parameter servers", missing=missing)
            time.sleep(POLL)

    @contextmanager
    def _shared(self) -> Iterator[int]:
        with self._idle:
            self._idle.wait_for(lambda: not self._connecting)
            self._calls += 1
            connection = self._connection
        try:
            yield connection
        finally:
            with self._idle:
                self._calls -= 1
                self._idle.notify_all()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        with self._idle:
            self._idle.wait_for(lambda: not self._connecting)
            self._connecting = True
            self._idle.wait_for(lambda: not self._calls)
        try:
            yield
        finally:
            with self._idle:
                self._connecting = False
                self._idle.notify_all()


_CODES: Final = {
    tf.errors.UNAVAILABLE: "UNAVAILABLE",
    tf.errors.ABORTED: "ABORTED",
    tf.errors.FAILED_PRECONDITION: "FAILED_PRECONDITION",
    tf.errors.INVALID_ARGUMENT: "INVALID_ARGUMENT",
    tf.errors.CANCELLED: "CANCELLED",
    tf.errors.INTERNAL: "INTERNAL",
    tf.errors.UNKNOWN: "UNKNOWN",
}


def _first_line(error: Exception) -> str:
    """The first line that says something: a graph's error begins with where it was."""
    lines = str(getattr(error, "message", error)).splitlines()
    telling = [line for line in lines if "assertion failed" in line] or lines or [""]
    return telling[0][:200]
