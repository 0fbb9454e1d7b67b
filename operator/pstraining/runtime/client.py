"""A task's own connection to the parameter servers: connect, call, and reconnect after a server's restart.

The one place that knows which of TensorFlow's errors mean "a server is gone". Every call to a server goes through
`Client.call`; nothing else may hold a tensor that lives on a server (a remote handle kept over a restart fails for
ever). Reconnecting is `update_server_def`, by one thread, while no call is under way, and only when every server in the
map answers: with one of them down it would wait for ever.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager import context

from pstraining.runtime import network, recovery
from pstraining.runtime.cluster import Cluster
from pstraining.runtime.progress import event

EXIT_STUCK: Final = 75
"""The process's exit code when TensorFlow itself no longer comes back from connecting (EX_TEMPFAIL)."""
CALL_PATIENCE: Final = 60.0
"""Seconds after which a call's connections are cut; doubled each time, so an honestly long step is made in the end."""
CONNECT_PATIENCE: Final = 30.0
"""The same while connecting, and the grace after it before the process gives up."""
POLL: Final = 0.1
"""Seconds between probes of servers that are down."""


class ShardLostError(Exception):
    """A call failed as calls do when a server is gone or was replaced; `Client.recover` mends the connection."""

    def __init__(self, message: str, connection: int) -> None:
        super().__init__(message)
        self.connection = connection


class Client:
    """One process's eager context, shared by its threads."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        task = cluster.task
        self.local = f"/job:{task.type}/replica:0/task:{task.index}/device:CPU:0"
        """This task's device; enter it before building a model or running a function."""
        self.shards = [f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(len(cluster.ps))]
        self.container = f"pstraining.{cluster.job}"
        self._connection = 0
        self._failures: dict[Callable[..., Any], int] = {}
        self._idle = threading.Condition()
        self._calls = 0
        self._connecting = False
        self._watchdog = Watchdog(cluster)

    def connect(self) -> None:
        """Wait for the servers and open the context.

        Must run before the process creates any other tensor: connecting invalidates what exists.
        """
        task = self.cluster.task
        spec = tf.train.ClusterSpec({task.type: {task.index: self.cluster.own_address}, "ps": list(self.cluster.ps)})
        self._wait_for_servers()
        self._watchdog.start()
        tf.config.experimental_connect_to_cluster(spec, job_name=task.type, task_index=task.index, protocol="grpc")
        with self._exclusive():
            self._reach_all(first=True)

    def close(self) -> None:
        """End the watch over the connection; the process may go on with other things."""
        self._watchdog.stop()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a traced function and fetch what it returns, as numpy arrays.

        Raises:
            ShardLostError: a server is gone or was replaced; reconnect, and look at its state before going on.
        """
        with self._shared() as connection:
            try:
                with self._watchdog.watching("call", CALL_PATIENCE), tf.device(self.local):
                    result = function(*arguments)
                    fetched = tf.nest.map_structure(lambda tensor: tensor.numpy(), result)
                self._failures.pop(function, None)
            except tf.errors.OpError as error:
                name = _CODES.get(error.error_code, "OTHER")
                # Counted by function: the program's mistake is in one, while others go on succeeding. A server that
                # is surely lost explains what follows, so counting begins anew.
                failures = 0 if name in recovery.ALWAYS_RETRIED else self._failures.get(function, 0) + 1
                self._failures[function] = failures
                if not recovery.is_retried(name, failures):
                    raise
                # Without the cause: its traceback holds tensors of the lost server.
                raise ShardLostError(f"{name}: {_first_line(error)}", connection) from None
            return fetched

    def recover(self, lost: ShardLostError) -> None:
        """Reconnect, unless another thread already has since the call failed; returns when all servers answer."""
        with self._exclusive():
            if self._connection != lost.connection:
                return
            started = time.monotonic()
            self._wait_for_servers()
            self._reach_all(first=False)
            self._connection += 1
            event("reconnected", reason=str(lost), seconds=round(time.monotonic() - started, 3))

    def _reach_all(self, *, first: bool) -> None:
        """Open the context on every server; TensorFlow is lazy, so a first operation on each is part of it."""
        while True:
            try:
                with self._watchdog.watching("connect", CONNECT_PATIENCE, fatal=True):
                    if not first:
                        context.context().update_server_def(context.get_server_def())
                    for device in self.shards:
                        with tf.device(device):
                            tf.identity(tf.constant(0)).numpy()
                return
            except tf.errors.OpError:
                first = first and not context.context()._initialized
                time.sleep(POLL)
                self._wait_for_servers()

    def _wait_for_servers(self) -> None:
        """Return when every server accepts connections; says who is missing every 10 seconds."""
        told = time.monotonic()
        while missing := network.silent(self.cluster.ps):
            if time.monotonic() - told >= 10:
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


class Watchdog:
    """Keeps sockets to the servers alive-checked, and cuts them when a call takes longer than its patience."""

    def __init__(self, cluster: Cluster) -> None:
        self._addresses = cluster.ps
        self._lock = threading.Lock()
        self._watched: dict[int, _Watched] = {}
        self._number = 0
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin, in a thread that ends with the process."""
        threading.Thread(target=self._run, name="pstraining-watchdog", daemon=True).start()

    @contextmanager
    def watching(self, what: str, patience: float, *, fatal: bool = False) -> Iterator[None]:
        """Watch what runs inside; with `fatal`, end the process if cutting the connections does not help."""
        with self._lock:
            self._number += 1
            number = self._number
            self._watched[number] = _Watched(what, patience, fatal)
        try:
            yield
        finally:
            with self._lock:
                del self._watched[number]

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(1):
            network.keep_alive(self._addresses)
            with self._lock:
                watched = list(self._watched.values())
            for item in watched:
                item.look(self._addresses)


class _Watched:
    """Something under way that talks to the servers."""

    def __init__(self, what: str, patience: float, fatal: bool) -> None:
        self.what, self.patience, self.fatal = what, patience, fatal
        self.since = time.monotonic()
        self.cuts = 0

    def look(self, addresses: tuple[str, ...]) -> None:
        waited = time.monotonic() - self.since
        if waited < self.patience:
            return
        if self.fatal and self.cuts:
            event("stuck", what=self.what, seconds=round(waited, 1))
            sys.stdout.flush()
            os._exit(EXIT_STUCK)
        self.cuts += 1
        self.patience *= 2
        event("cut", what=self.what, seconds=round(waited, 1), connections=network.cut(addresses))


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
    return (str(getattr(error, "message", error)).splitlines() or [""])[0][:200]
