"""One task's eye on all who have seats: what each says of itself, or why it says nothing."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

import tensorflow as tf

from pstraining.api import contract
from pstraining.runtime.ps.record import Assignment
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.replication import acceptor_ops, encoding, witness
from pstraining.runtime.replication.acceptor_ops import Seat
from pstraining.runtime.replication.view import Absent, Answer, Process, Roster, Seats
from pstraining.runtime.transport import http2_probe, sockets
from pstraining.runtime.transport.client import ShardLostError

PATIENCE: Final = 0.5
"""Seconds for a process that does not answer a call to show that it is there."""
SHORT_PATIENCE: Final = 0.2
"""The same where it may be silent: a take-over waits for it."""
ASK_AGAIN: Final = 0.5
"""Seconds between questions to one that is silent: the looks in between do not wait for it."""

NODE_FILE: Final = f"{contract.RUN_DIR}/{contract.NODE_FILE}"


class Lookout:
    """Asks every member; nothing that one does not answer keeps the others waiting."""

    def __init__(self, store: ParameterStore) -> None:
        self.store, self._client = store, store.client
        cluster, used = self._client.cluster, range(store.layout.ps)
        self.names = [f"ps-{index}" for index in range(len(cluster.ps))]
        """Places of all servers."""
        self._indices = [[shard + member * cluster.shards for member in range(cluster.members)] for shard in used]
        self.witnesses = {f"worker-{index}": address for index, address in enumerate(cluster.seats)}
        """Where the seats of workers are."""
        members = tuple(tuple(self.names[index] for index in own) for own in self._indices)
        self.seats = Seats(members, tuple(self.witnesses))
        self._leaving = acceptor_ops.LEAVING if cluster.in_pod else ""
        self._reads = {index: self._reading(self.seat(index)) for own in self._indices for index in own}
        self._node_of = {index: self._node(index) for index in self._reads}
        number = len(self._reads) + len(self.witnesses)
        self._pool = ThreadPoolExecutor(max_workers=number, thread_name_prefix="pstraining-look")
        self._doubted: set[int] = set()
        self._silent: dict[int | str, float] = {}
        """When those that are silent were asked last."""
        self.strangers = False
        """Whether somebody was seen the last time that this task is not connected to yet."""

    def member(self, index: int) -> Shard:
        """A server's part of the state."""
        shards = self._client.cluster.shards
        return self.store.member(index % shards, index // shards)

    def seat(self, index: int) -> Seat:
        """That of a server."""
        return Seat(self.member(index))

    def index(self, process: Process) -> int:
        """The server's number."""
        return self.names.index(process.place)

    def shard(self, process: Process) -> int:
        """The number of a member's shard."""
        return self.index(process) % self._client.cluster.shards

    def look(self, *, suspicious: bool = False) -> dict[str, Answer | Absent]:
        """What every member says of itself now, and every worker; see `look_at_members`."""
        workers = self._pool.map(self._ask_worker, self.witnesses.items())  # beside members
        found = self.look_at_members(suspicious=suspicious)
        return found | dict(zip(self.witnesses, workers, strict=True))

    def look_at_members(self, *, suspicious: bool = False) -> dict[str, Answer | Absent]:
        """What every member says of itself now.

        Args:
            suspicious: whether somebody may be silent: each shows that it is there before it is called, as a call to
                one that is not lasts until the watchdog ends it.
        """
        self.strangers = False
        if suspicious:
            self._doubted.update(self._reads)
        found = self._pool.map(self._ask, self._reads)
        return {self.names[index]: answer for index, answer in zip(self._reads, found, strict=True)}

    def formation(self, roster: Roster) -> Assignment:
        """The members of each shard that a roster names, learners behind those in sync."""
        shards = self._client.cluster.shards
        own = [
            [*in_sync, *(process for process in roster.learners if self.shard(process) == number)]
            for number, in_sync in enumerate(roster.shards)
        ]
        return tuple(tuple(self.index(process) // shards for process in processes) for processes in own)

    def nodes(self) -> dict[tuple[int, int], str]:
        """Where members in the map are, by shard and number, as far as their launchers tell it.

        Raises:
            ShardLostError: a server is gone.
        """
        shards, found = self._client.cluster.shards, dict[tuple[int, int], str]()
        for index in self._reads if self._client.cluster.in_pod else ():
            if index in self._client.present:
                with suppress(tf.errors.NotFoundError):
                    name = self._client.call(self._node_of[index], tf.constant(NODE_FILE))
                    found[index % shards, index // shards] = name.decode()
        return found

    def _node(self, index: int) -> Any:
        def emit(name: Any) -> Any:  # an argument: a constant file's contents are constant for TensorFlow, too
            with tf.device(self._client.shards[index]):
                return self._client.brought_home(tf.io.read_file(name))

        return tf.function(emit, autograph=False)

    def _reading(self, seat: Seat) -> Any:
        return tf.function(lambda file: self._client.brought_home(seat.read(file)), autograph=False)

    def _ask(self, index: int) -> Answer | Absent:
        if self._was_silent_just_now(index):
            return Absent.SILENT
        answer = self._asked(index)
        if isinstance(answer, Answer):
            self._doubted.discard(index)
        return self._noted(index, answer)

    def _asked(self, index: int) -> Answer | Absent:
        """A call, if it is not in doubt; else, or if its connection was cut, once it shows that it is there."""
        known = index in self._client.present
        if known and index not in self._doubted and (answer := self._called(index)):
            return answer
        patience = SHORT_PATIENCE if index in self._doubted else PATIENCE
        self._doubted.add(index)
        match http2_probe.find(sockets.split(self._client.cluster.ps[index]), patience):
            case http2_probe.Found.NOTHING:
                return Absent.SILENT
            case http2_probe.Found.ANSWERS:
                if known and (answer := self._called(index)):
                    return answer
                self.strangers = True  # a new process: whoever was there before it is gone
        return Absent.GONE

    def _called(self, index: int) -> Answer | None:
        try:
            record, seat, leased, leaving = self._client.call(self._reads[index], tf.constant(self._leaving))
        except ShardLostError:
            return None
        shards, members = self.store.layout.ps, self._client.cluster.members
        told = {"leased": bool(leased), "leaving": bool(leaving)}
        return encoding.answer(record, seat, self.names, shards=shards, members=members, **told)

    def _ask_worker(self, worker: tuple[str, str]) -> Answer | Absent:
        place, address = worker
        return Absent.SILENT if self._was_silent_just_now(place) else self._noted(place, _ask_witness(address))

    def _was_silent_just_now(self, who: int | str) -> bool:
        return time.monotonic() < self._silent.get(who, 0.0) + ASK_AGAIN

    def _noted(self, who: int | str, answer: Answer | Absent) -> Answer | Absent:
        if answer is Absent.SILENT:
            self._silent[who] = time.monotonic()
        return answer


def _ask_witness(address: str) -> Answer | Absent:
    try:
        return witness.ask(address, {"do": "read"}, PATIENCE)
    except ConnectionRefusedError:
        return Absent.GONE
    except OSError:
        return Absent.SILENT
