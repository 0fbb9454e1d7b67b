"""Failure detection: one task polls every voter for its status."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import tensorflow as tf

from pstraining.api import contract
from pstraining.runtime.config.cluster import Cluster
from pstraining.runtime.model.tensor import Tensor, TracedFunction
from pstraining.runtime.ps.record import Assignment
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.replication import acceptor_ops, witness
from pstraining.runtime.replication import view as views
from pstraining.runtime.replication.acceptor_ops import AcceptorOps
from pstraining.runtime.replication.messages import MemberReply
from pstraining.runtime.replication.view import NO_BALLOT, Process, ProcessStatus, Unreachable, View, Voters
from pstraining.runtime.replication.witness import Request, Verb
from pstraining.runtime.transport import http2_probe, sockets
from pstraining.runtime.transport.client import ShardLostError

PROBE_TIMEOUT_SECONDS: Final = 0.5
"""Seconds that a process that does not answer a call has to accept a connection."""
SUSPECT_TIMEOUT_SECONDS: Final = 0.2
"""Seconds that a suspected process has to accept a connection: a failover waits for it."""
ASK_AGAIN: Final = 0.5
"""Seconds between two probes of a suspected process; polls in between do not wait for it."""

NODE_FILE: Final = f"{contract.RUN_DIR}/{contract.NODE_FILE}"


class MemberMonitor:
    """Polls all voters of a layout at once; a process that does not answer does not delay the others.

    Args:
        store: the layout's store.
    """

    def __init__(self, store: ParameterStore) -> None:
        self.store, self._client, self._cluster, self.founded = store, store.client, store.servers.cluster, NO_BALLOT
        """The ballot under which the layout was founded; see `replication.view.of_founding`."""
        cluster, used = self._cluster, range(store.layout.ps)
        self.names = [f"ps-{index}" for index in range(len(cluster.ps))]
        """Tasks of all servers."""
        self._indices = [[shard + member * cluster.shards for member in range(cluster.members)] for shard in used]
        self.witnesses = {f"worker-{index}": address for index, address in enumerate(cluster.witnesses)}
        """Addresses of the witnesses, by task."""
        members = tuple(tuple(self.names[index] for index in own) for own in self._indices)
        self.voters = Voters(members, tuple(self.witnesses))
        self._draining = acceptor_ops.DRAINING if cluster.in_pod else ("",)
        self._reads = {index: self._reader(self.acceptor(index)) for own in self._indices for index in own}
        self._node_of = {index: self._node(index) for index in self._reads}
        number = len(self._reads) + len(self.witnesses)
        self._pool = ThreadPoolExecutor(max_workers=number, thread_name_prefix="pstraining-poll")
        self._suspects: set[int] = set()
        self._unanswered_at: dict[int | str, float] = {}
        """When each suspected process was probed last, by server or task, on the monotonic clock."""
        self.has_unconnected = False
        """Whether the last poll found a process that this task has no connection to."""

    def member(self, index: int) -> Shard:
        """Return a server's part of the state."""
        shards = self._cluster.shards
        return self.store.member(index % shards, index // shards)

    def acceptor(self, index: int) -> AcceptorOps:
        """Return the operations on a server's acceptor."""
        return AcceptorOps(self.member(index))

    def index(self, process: Process) -> int:
        """Return the number of the process's server."""
        return self.names.index(process.task)

    def shard(self, process: Process) -> int:
        """Return the number of a member's shard."""
        return self.index(process) % self._cluster.shards

    def poll(self, *, probe_first: bool = False) -> dict[str, ProcessStatus | Unreachable]:
        """Return the status of every voter; see `poll_members`."""
        workers = self._pool.map(self._ask_worker, self.witnesses.items())  # beside members
        found = self.poll_members(probe_first=probe_first)
        return found | dict(zip(self.witnesses, workers, strict=True))

    def poll_members(self, *, probe_first: bool = False) -> dict[str, ProcessStatus | Unreachable]:
        """Return the status of every member.

        Args:
            probe_first: whether to probe each member's port before calling it. A call to a process that does not answer
                lasts until the watchdog ends it.
        """
        self.has_unconnected = False
        if probe_first:
            self._suspects.update(self._reads)
        found = self._pool.map(self._ask_member, self._reads)
        return {self.names[index]: status for index, status in zip(self._reads, found, strict=True)}

    def assignment(self, view: View) -> Assignment:
        """Return the members of each shard in a view, learners behind those in sync."""
        shards = self._cluster.shards
        own = [
            [*in_sync, *(process for process in view.learners if self.shard(process) == number)]
            for number, in_sync in enumerate(view.shards)
        ]
        return tuple(tuple(self.index(process) // shards for process in processes) for processes in own)

    def nodes(self) -> dict[tuple[int, int], str]:
        """Return the nodes of connected members, by shard and number, as far as their launchers have written them.

        Raises:
            ShardLostError: a server is lost.
        """
        shards, found = self._cluster.shards, dict[tuple[int, int], str]()
        for index in self._reads if self._cluster.in_pod else ():
            if self._is_connected(index):
                with suppress(tf.errors.NotFoundError):
                    name = self._client.call(self._node_of[index], tf.constant(NODE_FILE))
                    found[index % shards, index // shards] = name.decode()
        return found

    def _node(self, index: int) -> TracedFunction:
        def emit(name: Tensor) -> Tensor:  # an argument: a constant file's contents are constant for TensorFlow, too
            with tf.device(self.store.servers.devices[index]):
                return self._client.to_local(tf.io.read_file(name))

        traced: TracedFunction = tf.function(emit, autograph=False)
        return traced

    def _reader(self, acceptor: AcceptorOps) -> TracedFunction:
        traced: TracedFunction = tf.function(lambda files: self._client.to_local(acceptor.read(files)), autograph=False)
        return traced

    def _ask_member(self, index: int) -> ProcessStatus | Unreachable:
        if self._was_suspected_just_now(index):
            return Unreachable.SUSPECTED
        status = self._probe_or_call(index)
        if isinstance(status, ProcessStatus):
            self._suspects.discard(index)
        return self._note(index, status)

    def _probe_or_call(self, index: int) -> ProcessStatus | Unreachable:
        """Return a member's status.

        A suspect, or a member whose connection broke, is called once its port has accepted a connection.
        """
        known = self._is_connected(index)
        if known and index not in self._suspects and (status := self._call(index)):
            return status
        patience = SUSPECT_TIMEOUT_SECONDS if index in self._suspects else PROBE_TIMEOUT_SECONDS
        self._suspects.add(index)
        match http2_probe.probe(sockets.split(self._cluster.ps[index]), patience):
            case http2_probe.ProbeResult.NOTHING:
                return Unreachable.SUSPECTED
            case http2_probe.ProbeResult.ANSWERS:
                if known and (status := self._call(index)):
                    return status
                # Most often a new process. Only a status over the next connection proves it.
                self.has_unconnected = True
                return Unreachable.UNCONNECTED
        return Unreachable.CRASHED

    def _call(self, index: int) -> ProcessStatus | Unreachable | None:
        try:
            reply: MemberReply = self._client.call(self._reads[index], tf.constant(self._draining))
        except ShardLostError:
            return None
        former = views.of_layout(ProcessStatus(0, reply.promised), self._cluster.first_term)
        if isinstance(former, Unreachable):
            return former  # its view cannot be read: it has another number of shards
        status = reply.status(self.names, shards=self.store.layout.ps, members=self._cluster.members)
        return views.of_founding(status, self.founded)

    def _ask_worker(self, worker: tuple[str, str]) -> ProcessStatus | Unreachable:
        task, address = worker
        if self._was_suspected_just_now(task):
            return Unreachable.SUSPECTED
        status = _ask_witness(address, self._cluster)
        return self._note(
            task, views.of_founding(status, self.founded) if isinstance(status, ProcessStatus) else status
        )

    def _is_connected(self, index: int) -> bool:
        """Return whether this task has a connection to a server of the layout."""
        return self.store.servers.numbers[index] in self._client.connected

    def _was_suspected_just_now(self, voter: int | str) -> bool:
        return time.monotonic() < self._unanswered_at.get(voter, 0.0) + ASK_AGAIN

    def _note(self, voter: int | str, status: ProcessStatus | Unreachable) -> ProcessStatus | Unreachable:
        if status is Unreachable.SUSPECTED:
            self._unanswered_at[voter] = time.monotonic()
        return status


def _ask_witness(address: str, cluster: Cluster) -> ProcessStatus | Unreachable:
    try:
        status = witness.ask(address, Request(Verb.READ, layout=cluster.layout), PROBE_TIMEOUT_SECONDS)
        return views.of_layout(status, cluster.first_term)
    except ConnectionRefusedError:
        return Unreachable.CRASHED
    except OSError:
        return Unreachable.SUSPECTED
