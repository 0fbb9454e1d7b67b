"""A task's own connection to the parameter servers: connect, call, and reconnect after a server's restart.

Only this module maps TensorFlow's errors to lost servers. Every call to a server goes through
`PSClient.call`. No other code may hold a tensor on a server: a remote handle stays invalid after the server's restart.
One thread reconnects (`update_server_def`) while no call is under way, and only when every server in the map answers;
it would never return if one of them were down. The watchdog makes calls to unresponsive servers fail.

If shards have several members, the map holds the servers that answer, at least one per shard. Calls to them continue
while another server is lost, and `reconnect_available` updates the map.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final, TypeVar, cast

import tensorflow as tf
from tensorflow.python.eager import context

from pstraining.runtime.config.cluster import Cluster
from pstraining.runtime.config.devices import choose
from pstraining.runtime.model.tensor import Fetched, Structure, Tensor, TracedFunction
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.transport import devices, errors, http2_probe, layout_servers, sockets
from pstraining.runtime.transport.layout_servers import LayoutServers
from pstraining.runtime.transport.traffic import Links
from pstraining.runtime.transport.watchdog import CONNECT_TIMEOUT_SECONDS, FIRST_CALL_TIMEOUT_SECONDS, Watchdog

POLL: Final = 0.1
"""Seconds between probes of servers that are down."""
FULL_RESET_EVERY: Final = 8
"""Every 8th connection recreates the servers' contexts, which frees the functions cached there: megabytes per
connection. With four servers and both cores busy that took 0.7 s, in which no step was applied."""
REPORT_SECONDS: Final = 10.0
"""Seconds between two reports of missing servers."""


Made = TypeVar("Made")


class ShardLostError(Exception):
    """A call failed as it does when a server is lost or was replaced; `PSClient.recover` reconnects."""

    def __init__(self, message: str, connection: int) -> None:
        super().__init__(message)
        self.connection = connection


class PSClient:
    """One process's eager context, shared by its threads.

    Args:
        cluster: the job and this task.
        ahead: probes of the servers, sent while TensorFlow was loading.
        compute_on: the devices that compute, see `config.devices.choose`; None: all accelerators, or else the CPU.
    """

    def __init__(
        self, cluster: Cluster, ahead: http2_probe.Ahead | None = None, compute_on: Sequence[str] | None = None
    ) -> None:
        self.cluster, self._ahead, self._wanted = cluster, ahead, compute_on
        self.local = self._own("CPU:0")
        """This task's first CPU device: enter it before running a function."""
        self.devices: tuple[str, ...] = (self.local,)
        """This task's devices that compute: enter the first one, `compute`, before building a model."""
        self.addresses = list(cluster.ps)
        """host:port of every known server. A server keeps its number here, which other layouts do not know."""
        self.shards = [_device(number) for number in range(len(cluster.ps))]
        """The devices of the known servers."""
        self.container = layout_servers.container(cluster)
        self._connection = 0
        self._failures: dict[TracedFunction, int] = {}
        self._idle = threading.Condition()
        self._calls = 0
        self._connecting = False
        self._patience = http2_probe.probe_timeout(cluster.members)
        self._watchdog = Watchdog(self.addresses, self._patience)
        self.links = Links(self.addresses, sockets.split(cluster.own_address)[1])
        self.connected = frozenset(range(len(cluster.ps)))
        """Numbers of the connected servers."""
        self._to_connect = self.connected
        """Numbers of the servers to connect to."""
        self._next: Cluster | None = None
        """The job with the next layout, which may be in use before this task knows it."""

    def servers_of(self, cluster: Cluster) -> LayoutServers:
        """Return the servers of a layout, connected or not."""
        for address in cluster.ps:
            if address not in self.addresses:
                self.addresses.append(address)
                self.shards.append(_device(len(self.shards)))
        numbers = self._numbers(cluster)
        devices = tuple(self.shards[number] for number in numbers)
        return LayoutServers(cluster, numbers, devices, layout_servers.container(cluster))

    def connect_to(self, cluster: Cluster) -> LayoutServers:
        """Connect to the servers of the next layout as well, as far as they answer; return them."""
        servers, self._next = self.servers_of(cluster), cluster
        self._to_connect |= frozenset(servers.numbers)
        if not self.connected.issuperset(servers.numbers):
            self.reconnect_available()
        return servers

    @property
    def servers_in_use(self) -> LayoutServers:
        """Return the servers of the layout in use."""
        return replace(self.servers_of(self.cluster), container=self.container)

    def use(self, servers: LayoutServers) -> None:
        """Use this layout from now on: the next connection leaves all other servers out."""
        self.cluster, self.container, self._next = servers.cluster, servers.container, None
        self._to_connect = frozenset(servers.numbers)

    def _numbers(self, cluster: Cluster) -> tuple[int, ...]:
        return tuple(self.addresses.index(address) for address in cluster.ps)

    def _own(self, name: str) -> str:
        task = self.cluster.task
        return f"/job:{task.type}/replica:0/task:{task.index}/device:{name}"

    @property
    def compute(self) -> str:
        """Return the device of the model's variables, of the forward and backward pass, and of the codecs."""
        return self.devices[0]

    def on_cpu(self, make: Callable[[], Made] | None) -> Callable[[], Made] | None:
        """Return the program's function that creates a dataset, wrapped so that it runs on this task's CPU."""

        def called() -> Made:
            with tf.device(self.local):
                return cast("Callable[[], Made]", make)()

        return called if make else None

    @property
    def reconnects(self) -> int:
        """Return the number of reconnects."""
        return self._connection

    def connect(self) -> None:
        """Wait for the servers, open the context, and choose the devices that compute.

        Must run before the process creates any other tensor: connecting invalidates what exists.

        Raises:
            SettingsError, GpuMissingError: a device that the program or the container's limits request is not visible.
        """
        # The program's own choice of devices is checked below.
        devices.prepare(self.cluster.gpus if self._wanted is None else 0)
        self._wait_for_servers(self._ahead.unresponsive() if self._ahead else ())
        self._watchdog.start()
        eager = context.context()
        eager._config = tf.compat.v1.ConfigProto()
        eager._config.experimental.disable_thread_spinning = True  # as in the servers, see launcher/serve.py
        with self._exclusive():
            self._connect_all(first=True)
        task = self.cluster.task
        visible = devices.of_task(task)
        found = choose(visible, self._wanted, strict=task.type == "worker")
        event("devices", task=f"{task.type}-{task.index}", compute=found, visible=visible)
        self.devices = tuple(map(self._own, found))

    def close(self) -> None:
        """Stop the watchdog; the process may continue without the servers."""
        self._watchdog.stop()

    def leave(self) -> None:
        """Disconnect permanently; servers keep the state of a client that did not disconnect for ten minutes."""
        with (
            self._exclusive(),
            self._watchdog.watching("leave", vital=CONNECT_TIMEOUT_SECONDS),
            suppress(tf.errors.OpError),
        ):
            context.context().update_server_def(self._definition([]))

    @property
    def connection(self) -> int:
        """Return the connection's number. TensorFlow sends every function again over a new connection."""
        return self._connection

    def call(self, function: TracedFunction, *arguments: Tensor) -> Fetched:
        """Run a traced function and return its results as numpy arrays.

        Raises:
            ShardLostError: a server is lost or was replaced; reconnect, and read its record before the next call.
        """
        return self._guarded(function, arguments, _as_arrays, self.local)

    def run(self, function: TracedFunction, *arguments: Tensor, on_cpu: bool = False) -> Tensor:
        """Run a traced function and return its results as tensors on the computing device, or on this task's CPU.

        TensorFlow returns them through the calling device, so all results have to be on that one.

        Raises:
            ShardLostError: see `call`.
        """
        return self._guarded(function, arguments, lambda result: result, self.local if on_cpu else self.compute)

    def _guarded(
        self,
        function: TracedFunction,
        arguments: Sequence[Tensor],
        use: Callable[[Tensor], Fetched],
        device: str,
    ) -> Fetched:
        with self._shared() as connection:
            try:
                with self._watchdog.watching("call"), tf.device(device):
                    fetched = use(function(*arguments))
                self._failures.pop(function, None)
            except tf.errors.OpError as error:
                name = errors.name_of(_CODES.get(error.error_code, "OTHER"), str(error))
                # Counted by function: a mistake of the program is in one of them, and the others succeed. A server that
                # is certainly lost explains later errors, so the count starts over.
                failures = 0 if name in errors.ALWAYS_RETRIED else self._failures.get(function, 0) + 1
                self._failures[function] = failures
                if not errors.is_retried(name, failures):
                    raise
                # Without the cause: its traceback holds tensors of the lost server.
                raise ShardLostError(f"{name}: {_first_line(error)}", connection) from None
            return fetched

    def to_local(self, result: Structure) -> Structure:
        """Emit moving a function's results to this task's CPU: a tensor must not stay on a server."""
        return self.to_device(result, self.local)

    def to_compute(self, result: Structure) -> Structure:
        """Emit moving parameters from the servers to the device that computes."""
        return self.to_device(result, self.compute)

    def to_device(self, result: Structure, device: str) -> Structure:
        """Emit moving tensors from the servers to a device of this task, see `devices.emit_received`.

        An identity would be removed by the optimizer. The operation that selects among results would then run on the
        server, and the selection would have to be sent there first.
        """
        received = result if device == self.local else devices.emit_received(result, self.local)
        with tf.device(device):
            moved: Structure = tf.nest.map_structure(
                lambda value: tf.raw_ops.EnsureShape(input=value, shape=value.shape), received
            )
            return moved

    def recover(self, lost: ShardLostError) -> None:
        """Reconnect, unless another thread has done so since the call failed; return when all servers answer.

        If shards have several members, it returns at once: training may continue with the remaining members.
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
        """Return the cluster of this task and some servers.

        `tf.config.experimental_connect_to_cluster` would name a leader for collectives, which are not used.
        """
        task = self.cluster.task
        addresses = {number: self.addresses[number] for number in sorted(servers)}
        spec = tf.train.ClusterSpec({task.type: {task.index: self.cluster.own_address}, "ps": addresses})
        return tf.train.ServerDef(
            cluster=spec.as_cluster_def(),
            job_name=task.type,
            task_index=task.index,
            protocol="grpc",
            default_session_config=context.context().config,
        )

    def _connect_all(self, *, first: bool) -> None:
        """Open the context on every server, and run a first operation on each, as TensorFlow connects lazily.

        A server that is stopped meanwhile may later read the end of its former context and the start of the next one
        together. Both have the same name, and the end also removes the state through which tensors are fetched. Calls
        to that server then never return, however often the map is set. (Seen with one of four servers that were
        stopped for some seconds.) So after a failed first operation, servers are removed from the map and added again,
        which recreates their contexts. FULL_RESET_EVERY does the same regularly.
        """
        is_set, cuts, recreates = not first, 0, self._connection % FULL_RESET_EVERY == 0
        while True:
            try:
                with self._watchdog.watching("connect", vital=CONNECT_TIMEOUT_SECONDS, cuts=cuts) as watched:
                    if is_set and recreates:
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
                cuts, recreates = watched.cuts, True
                is_set = is_set and bool(context.context()._initialized)
                time.sleep(POLL)
                self._wait_for_servers()

    def _wait_for_servers(self, suspects: Sequence[str] = ()) -> None:
        """Return when enough servers answer; report missing servers at once and every REPORT_SECONDS.

        Enough are all servers of this layout or the next one, or one of each shard if shards have several members.
        Suspects did not answer a moment ago, and their first probe has a shorter timeout.
        """
        reported = -math.inf
        while True:
            wanted = {number: self.addresses[number] for number in sorted(self._to_connect)}
            missing, suspects = http2_probe.unresponsive(list(wanted.values()), self._patience, suspects), ()
            self.connected = frozenset(number for number, address in wanted.items() if address not in missing)
            if any(self._is_enough(cluster) for cluster in (self.cluster, self._next) if cluster):
                return
            if time.monotonic() - reported >= REPORT_SECONDS:
                reported = time.monotonic()
                event("waiting", what="parameter servers", missing=missing)
            time.sleep(POLL)

    def _is_enough(self, cluster: Cluster) -> bool:
        """Return whether the connected servers are enough to train in a layout."""
        present = [index for index, number in enumerate(self._numbers(cluster)) if number in self.connected]
        of_each = len({index % cluster.shards for index in present}) == cluster.shards
        return of_each and (cluster.members > 1 or len(present) == len(cluster.ps))

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


def _device(number: int) -> str:
    return f"/job:ps/replica:0/task:{number}/device:CPU:0"


_CODES: Final = {
    tf.errors.UNAVAILABLE: "UNAVAILABLE",
    tf.errors.ABORTED: "ABORTED",
    tf.errors.FAILED_PRECONDITION: "FAILED_PRECONDITION",
    tf.errors.INVALID_ARGUMENT: "INVALID_ARGUMENT",
    tf.errors.CANCELLED: "CANCELLED",
    tf.errors.INTERNAL: "INTERNAL",
    tf.errors.UNKNOWN: "UNKNOWN",
    tf.errors.NOT_FOUND: "NOT_FOUND",
}


def _as_arrays(result: Tensor) -> Fetched:
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), result)


def _first_line(error: Exception) -> str:
    """Return the first informative line: a graph's error begins with its location."""
    lines = str(getattr(error, "message", error)).splitlines()
    telling = [line for line in lines if "assertion failed" in line] or lines or [""]
    return telling[0][:200]
