"""A worker in its rings: its dense parameters, the sum that it holds, and its neighbors.

`updates.hybrid.protocol` decides which of them may be discarded, and when.
"""

import math
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final

from pstraining.runtime.allreduce.ring import Ring
from pstraining.runtime.allreduce.streams import HeaderMismatchError
from pstraining.runtime.allreduce.topology import BrokenRingError, Peer, RingTopology
from pstraining.runtime.allreduce.transport import RingTransport
from pstraining.runtime.model.partition import Array
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.updates.base import Identity
from pstraining.runtime.updates.gradients import LocalGradient
from pstraining.runtime.updates.hybrid.dense_state import DenseState
from pstraining.runtime.updates.hybrid.protocol import WorkerState, broadcast_plan

CHECK_STEPS: Final = 256
"""Steps from one comparison of all workers' parameters to the next."""
RATES_SECONDS: Final = 1.0
"""Seconds between two looks for another learning rate."""
_HEADER: Final = struct.Struct("!qqQI")

Still = Callable[[int], bool]
"""Returns whether a ring is the arbiter's newest, and all its members are alive and registered."""


class RingMember:
    """A worker's dense parameters, and its membership in the rings of successive attempts.

    Args:
        identity: the worker.
        dense: its dense parameters.
        transport: connections to other members.
    """

    def __init__(self, identity: Identity, dense: DenseState, transport: RingTransport) -> None:
        self.identity, self.dense, self.transport = identity, dense, transport
        self.ring: Ring | None = None
        self.left: int | None = None
        self.held: int | None = None
        """The attempt whose sum is in the dense state's buffers; None for none."""
        self.suspects: tuple[Peer, ...] = ()
        """Suspected neighbors that the arbiter does not know of yet."""
        self._rates: Array | None = None
        self._fetched = -math.inf

    @property
    def is_whole(self) -> bool:
        """Return whether the worker is in an unbroken ring."""
        return self.ring is not None and not self.ring.broken

    def worker_state(self) -> WorkerState:
        """Return the worker's state; leave a broken ring first."""
        if self.ring and self.ring.broken:
            self.leave(self.ring.broken.suspects)
        number = self.ring.number if self.ring else None
        suspects = sum(1 << worker for worker in {peer.worker for peer in self.suspects})
        return WorkerState(self.identity.worker, self.dense.step, number, self.left, self.held, suspects)

    def leave(self, suspects: Sequence[Peer] = ()) -> None:
        """Leave the ring, and notify the neighbors."""
        if self.ring:
            self.ring.leave()
            self.left, self.ring = self.ring.number, None
            self.suspects = tuple(suspects) or self.suspects
            event("ring_left", worker=self.identity.worker, ring=self.left, suspects=[c.worker for c in suspects])

    def lose(self) -> None:
        """Discard the dense parameters; the next ring broadcasts the newest ones."""
        self.leave()
        self.dense.step = self.held = None

    def forget(self) -> None:
        """Discard the state of another set of parameters and its attempts."""
        self.lose()
        self.left = None

    def settle(self, totals: Array | None = None) -> int:
        """Apply the sum; return the step of the parameters afterwards. See `DenseState.settle`."""
        step = self.dense.settle(totals)
        self.held = None
        return step

    def join(
        self, topology: RingTopology, step: int, *, still: Still, load: Callable[[], Sequence[Array] | None]
    ) -> None:
        """Connect to a ring, and synchronize the dense parameters with its other members.

        Args:
            topology: the ring.
            step: the arbiter's global step.
            still: checks from time to time whether the ring is current.
            load: returns the servers' dense parameters if they are those of this step.
        """
        started, number = time.monotonic(), topology.number
        self.leave()
        self.left = number  # until the ring is complete
        try:
            alone = len(topology.members) == 1
            links = None if alone else self.transport.connect(topology, still=lambda: still(number))
            self.ring = Ring(number, topology.members, topology.place, links)
            self._broadcast(self.ring, step, still, load)
        except BrokenRingError as broken:
            self.suspects = broken.suspects
            self.leave(broken.suspects)
            return
        except HeaderMismatchError:
            self.leave()
            return
        self.left = None
        members, seconds = [peer.worker for peer in topology.members], round(time.monotonic() - started, 3)
        worker = self.identity.worker
        event("ring", worker=worker, ring=number, members=members, step=self.dense.step, seconds=seconds)

    def add_up(self, mine: LocalGradient, still: Still, fetch_rates: Callable[[], Array]) -> bool:
        """Sum all members' gradients into the dense state; return False if this worker's ring is broken or missing.

        The first member gives the learning rates, so that all members use the same ones in a step.

        Args:
            mine: this worker's gradient.
            still: checks from time to time whether the ring is current.
            fetch_rates: returns the servers' learning rates, which callbacks may have set.
        """
        ring, step = self.ring, self.dense.step
        if ring is None or step is None:
            return False
        if not ring.place and time.monotonic() - self._fetched > RATES_SECONDS:
            self._rates, self._fetched = fetch_rates(), time.monotonic()
        self.held = None
        check = self.dense.checksum() if step % CHECK_STEPS == 0 else 0
        try:
            header = _HEADER.pack(step, ring.number, self.dense.bytes, check)
            arrays = self.dense.load(mine, None if ring.place else self._rates)
            ring.all_reduce(arrays, header=header, should_continue=lambda: still(ring.number))
        except BrokenRingError as broken:
            self.leave(broken.suspects)
            return False
        except HeaderMismatchError as other:
            self._differ(header, other.found)
            return False
        self.held = ring.number
        return True

    def _differ(self, header: bytes, found: bytes) -> None:
        """Handle a left neighbor's different header: if its parameters differ, those of the lowest worker win."""
        ring, step = self.ring, self.dense.step
        if ring and ring.place and header[:-4] == found[:-4]:
            neighbor = ring.members[ring.place - 1].worker
            event("diverged", worker=self.identity.worker, step=step, neighbour=neighbor)
            self.lose()
        else:
            self.leave()

    def _broadcast(self, ring: Ring, step: int, still: Still, load: Callable[[], Sequence[Array] | None]) -> None:
        """Broadcast the dense parameters of the arbiter's step to the members without them."""
        steps = self._gather_steps(ring, 0, still)
        if all(found != step for found in steps):
            values = load() if ring.place == 0 else None
            if values is not None:
                self.dense.write(values, step)
            steps = self._gather_steps(ring, 1, still)
        if way := broadcast_plan(steps, step):
            values = self.dense.read()
            ring.broadcast(values, source=way.source, last=way.last)
            if steps[ring.place] != step:
                self.dense.write(values, step)

    def _gather_steps(self, ring: Ring, number: int, still: Still) -> list[int | None]:
        """Return the steps of the members' dense parameters, in the ring's order."""
        own = -1 if self.dense.step is None else self.dense.step
        header = _HEADER.pack(number, ring.number, 0, 0)
        steps = ring.all_gather(own, header=header, should_continue=lambda: still(ring.number))
        return [None if found < 0 else found for found in steps]
