"""One task's eye on all who have seats: what each says of itself, or why it says nothing."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import tensorflow as tf

from pstraining.runtime import network, probing, seats, witness
from pstraining.runtime.client import ShardLostError
from pstraining.runtime.rosters import Absent, Answer, Formation, Process, Roster, Seats
from pstraining.runtime.seats import Seat
from pstraining.runtime.store import ParameterStore

PATIENCE: Final = 0.5
"""Seconds for a process that does not answer a call to show that it is there."""
SHORT_PATIENCE: Final = 0.2
"""The same for one that has been silent: as long as it is, every look lasts so long."""


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
        self._reads = {index: self._reading(self.seat(index)) for own in self._indices for index in own}
        number = len(self._reads) + len(self.witnesses)
        self._pool = ThreadPoolExecutor(max_workers=number, thread_name_prefix="pstraining-look")
        self._silent: set[int] = set()
        self.strangers = False
        """Whether somebody was seen the last time that this task is not connected to yet."""

    def seat(self, index: int) -> Seat:
        """That of a server."""
        shards = self._client.cluster.shards
        return Seat(self.store.member(index % shards, index // shards))

    def index(self, process: Process) -> int:
        """The server's number."""
        return self.names.index(process.place)

    def look(self, *, suspicious: bool = False) -> dict[str, Answer | Absent]:
        """What every member says of itself now, and every worker; see `look_at_members`."""
        return self.look_at_members(suspicious=suspicious) | self._of_workers()

    def look_at_members(self, *, suspicious: bool = False) -> dict[str, Answer | Absent]:
        """What every member says of itself now.

        Args:
            suspicious: whether somebody may be silent: each shows that it is there before it is called, as a call to
                one that is not lasts until the watchdog ends it.
        """
        self.strangers = False
        if suspicious:
            self._silent.update(self._reads)
        found = self._pool.map(self._ask, self._reads)
        return {self.names[index]: answer for index, answer in zip(self._reads, found, strict=True)}

    def _of_workers(self) -> dict[str, Answer | Absent]:
        found = self._pool.map(_ask_witness, self.witnesses.values())
        return dict(zip(self.witnesses, found, strict=True))

    def formation(self, roster: Roster) -> Formation:
        """The members of each shard that a roster names."""
        shards = self._client.cluster.shards
        return tuple(tuple(self.index(process) // shards for process in own) for own in roster.shards)

    def _reading(self, seat: Seat) -> Any:
        return tf.function(lambda: self._client.brought_home(seat.read()), autograph=False)

    def _ask(self, index: int) -> Answer | Absent:
        answer = self._asked(index)
        if answer is Absent.SILENT:
            self._silent.add(index)
        else:
            self._silent.discard(index)
        return answer

    def _asked(self, index: int) -> Answer | Absent:
        for _ in self._tries(index):
            try:
                record, seat, leased = self._client.call(self._reads[index])
                shards, members = self.store.layout.ps, self._client.cluster.members
                return seats.answer(record, seat, self.names, shards=shards, members=members, leased=bool(leased))
            except ShardLostError:
                continue
        endpoint, patience = network.split(self._client.cluster.ps[index]), self._patience(index)
        if probing.refuses(endpoint, patience):
            return Absent.GONE
        if probing.answers(endpoint, patience):  # a new process: whoever was there before it is gone
            self.strangers = True
            return Absent.GONE
        return Absent.SILENT

    def _tries(self, index: int) -> Iterator[None]:
        """Once, and once more if the connection was cut and the process is there; one that was silent shows itself."""
        if index in self._client.present:
            if index not in self._silent:
                yield
            if probing.answers(network.split(self._client.cluster.ps[index]), self._patience(index)):
                yield

    def _patience(self, index: int) -> float:
        return SHORT_PATIENCE if index in self._silent else PATIENCE


def _ask_witness(address: str) -> Answer | Absent:
    try:
        return witness.ask(address, {"do": "read"}, PATIENCE)
    except ConnectionRefusedError:
        return Absent.GONE
    except OSError:
        return Absent.SILENT
