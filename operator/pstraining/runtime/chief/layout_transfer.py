"""Transfers the state of training from the servers of one layout to those of the next one.

Large tables move from server to server, most of their rows while training continues. Everything else passes through the
chief's memory while no steps are applied.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import tensorflow as tf

from pstraining.runtime.checkpoint.state import Entry, State
from pstraining.runtime.chief.errors import FencedError
from pstraining.runtime.chief.state.table_moves import TableMoves
from pstraining.runtime.chief.store_admin import StoreAdmin
from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import Tensor, TracedFunction
from pstraining.runtime.ps.carried_state import read_carried, write_carried
from pstraining.runtime.ps.member import UpdatePause
from pstraining.runtime.ps.record import partly_applied
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.store import int64
from pstraining.runtime.replication.view import LayoutPostponedError
from pstraining.runtime.transport.client import ShardLostError

MOVE_SECONDS: Final = 0.5
"""Seconds for which rows move between two renewals of the view."""
PAUSE_SECONDS: Final = 30.0
"""Seconds in which all workers must complete the updates that they have sent."""
WAIT_SECONDS: Final = 0.005
"""Seconds between two queries whether they have."""


@dataclass(frozen=True)
class _Rest:
    """A state without the tables that the servers move, and the entries of all tensors."""

    state: State
    entries: Mapping[str, Entry]

    @property
    def step(self) -> int:
        """The global step."""
        return self.state.step

    @property
    def ended_early(self) -> bool:
        """Whether training ended with this state before its last step."""
        return self.state.ended_early

    def read(self, name: str, begin: int, end: int) -> Array:
        """Return elements `begin` to `end` of a flattened tensor, not of a table that moves. Shape: [end - begin]."""
        return self.state.read(name, begin, end)


@dataclass(frozen=True)
class _Copied:
    """The state of servers that apply no steps."""

    state: _Rest
    source: StoreAdmin
    fence: int
    """Of the source."""
    generation: int


class LayoutTransfer:
    """The transfer of the state to one layout.

    Args:
        source: the servers that have the state when the transfer is prepared.
        target: all servers of the next layout.
        fence: the fence of the targets during the preparation.
    """

    def __init__(self, source: StoreAdmin, target: StoreAdmin, fence: int) -> None:
        self.source, self._target, self._fence = source, target, fence
        self._moves = TableMoves(source.parts, target.parts)
        self._pause = source.store.updates.pause
        self._paused: tuple[StoreAdmin, int] | None = None
        """The servers and the fence under which updates or steps were paused last."""
        self._carry: dict[tuple[StoreAdmin, StoreAdmin], TracedFunction] = {}
        self._name = 0
        self._copied: _Copied | None = None

    @property
    def moved(self) -> int:
        """Return the bytes of tables that have moved from server to server."""
        return self._moves.bytes

    def prepare(self, fence: int, hold: Callable[[], None]) -> None:
        """Create all variables on the targets, trace the chief's functions, and let the sources record missing rows.

        The targets receive the present state, as far as it passes through the chief. It counts for nothing, and so do
        they: their generation is 0.

        Args:
            fence: the fence of the sources.
            hold: renews the current view; called between the steps.

        Raises:
            FencedError: a server is under another fence.
        """
        state = self._rest(self.source, fence, is_consistent=False)
        hold()
        if self._moves.names:
            self._begin_moves(state, fence, hold)
        else:
            self._target.restore(state, fence=self._fence, generation=0, fresh=False)
        hold()
        with suppress(FencedError):  # traced without an effect: a worker registers with this layout once it is ready
            self._carry_over(self.source, self._target, 0)
        self._target.set_learning_rates(self._fence, self.source.learning_rates())

    def advance(self, source: StoreAdmin, fence: int) -> bool:
        """Move rows of tables for a moment while training continues; return whether few are left.

        Args:
            source: the servers that have the state.
            fence: the fence of the sources.

        Raises:
            FencedError: a server is under another fence, or was replaced.
            LayoutPostponedError: another member is the source now, or the rows change faster than they move.
        """
        self._check(source)
        return not self._moves.names or self._moves.advance(fence, self._fence, MOVE_SECONDS)

    def complete_updates(self, source: StoreAdmin, fence: int, hold: Callable[[], None]) -> None:
        """Let workers complete the updates that they have sent, where servers apply updates independently.

        No worker sends a new one until `end`, or for `PAUSE_SECONDS`. In mode Hybrid, no step is applied meanwhile, and
        the workers push their dense parameters.

        Args:
            source: the servers that have the state.
            fence: their fence.
            hold: renews the current view; called between the queries.

        Raises:
            FencedError: a server is under another fence.
            LayoutPostponedError: an update or a push takes too long.
        """
        self._paused, until = (source, fence), time.monotonic() + PAUSE_SECONDS

        def wait(late: str) -> None:
            if time.monotonic() > until:
                raise LayoutPostponedError(f"{late} within {PAUSE_SECONDS:.0f} s")
            hold()
            time.sleep(WAIT_SECONDS)

        source.flush_dense(lambda: wait("no worker pushed the newest dense parameters"))
        if (pause := self._pause) is None:
            return
        self._begin_pause(pause, source, fence, PAUSE_SECONDS)
        while workers := self._not_waiting(pause, source):
            wait(f"{_named(workers)} completed no step")

    def copy(self, source: StoreAdmin, fence: int) -> None:
        """Copy the state that passes through the chief, while no steps are applied.

        Args:
            source: the servers that have the state.
            fence: the fence of the sources.

        Raises:
            FencedError: a server is under another fence.
            LayoutPostponedError: a worker's last update is on some servers only, or workers have newer dense parameters
                than the servers; or see `advance`.
        """
        self._check(source)
        if not source.resume_steps():  # the next layout will apply them
            raise LayoutPostponedError("a step was applied after workers had pushed their dense parameters")
        if self._pause and (workers := self._partly_applied(self._pause, source)):
            raise LayoutPostponedError(f"some servers lack the last update of {_named(workers)}")
        self._copied = _Copied(self._rest(source, fence), source, fence, abs(source.store.read()[0].generation))

    def write(self, target: StoreAdmin, fence: int) -> None:
        """Write the copied state to members of the next layout, which apply no steps, and keep them inactive.

        Args:
            target: the members.
            fence: their fence.

        Raises:
            FencedError: a server is under another fence, or was replaced.
            LayoutPostponedError: the state was not copied.
        """
        if (copied := self._copied) is None:
            raise LayoutPostponedError("the state was not copied")
        if self._moves.names:
            self._moves.finish(copied.fence, fence)
            self._complete(target, fence, copied)
        else:
            target.restore(copied.state, fence=fence, generation=-copied.generation, fresh=False)
        self._carry_over(copied.source, target, fence)
        target.set_learning_rates(fence, copied.source.learning_rates())

    def end(self) -> None:
        """Let the sources record no more and workers send updates again, as far as the servers answer."""
        self._copied = None
        if self._paused:  # under another fence, a pause of updates is over
            with suppress(ShardLostError, FencedError):
                self._paused[0].resume_steps()
                if self._pause:
                    self._begin_pause(self._pause, *self._paused, 0.0)
            self._paused = None
        if self._name:
            with suppress(ShardLostError):  # the record ends with the process
                self._moves.end()

    def _check(self, source: StoreAdmin) -> None:
        found, expected = ([own.shard for own in parts.sources] for parts in (source.parts, self._moves.source))
        if self._moves.names and found != expected:
            raise LayoutPostponedError("another member of a shard is the source of its state now")

    def _rest(self, source: StoreAdmin, fence: int, *, is_consistent: bool = True) -> _Rest:
        """Return the state that passes through the chief; see `StateCopies.at_rest`."""
        state = source.copies.at_rest(fence, self._moves.names, is_consistent=is_consistent)
        return _Rest(state, {**source.parts.places.entries, **state.entries})

    def _begin_moves(self, state: _Rest, fence: int, hold: Callable[[], None]) -> None:
        """Begin the restore that `write` completes, and let the sources record missing rows."""
        target = self._target
        target.invalidate(self._fence)
        self._name = target.restores.begin(self._fence)
        contents = target.restores.contents(state, fresh=False)
        target.restores.give(contents, self._fence, self._name, without=self._moves.names, between=hold)
        with suppress(FencedError):  # traced without an effect, as no restore has this name
            target.restores.finish(self._fence, 0, fresh=False)
        self._moves.begin(fence, self._name)
        for _ in self._moves.warm_up(fence, self._fence):
            hold()
        target.complete(self._fence)

    def _complete(self, target: StoreAdmin, fence: int, copied: _Copied) -> None:
        """Complete the restore that the preparation has begun."""
        contents = target.restores.contents(copied.state, fresh=False)
        target.restores.give(contents, fence, self._name, without=self._moves.names)
        target.restores.finish(fence, self._name, fresh=False)
        target.complete(fence, step=copied.state.step, generation=-copied.generation, done=0)

    @staticmethod
    def _begin_pause(pause: UpdatePause, source: StoreAdmin, fence: int, seconds: float) -> None:
        first = source.store.shards[0]

        def emit(fence: Tensor, seconds: Tensor) -> list[Tensor]:
            return [source.client.to_local(pause.begin(first, fence, seconds))]

        function = source.parts.function("begin pause", emit)
        source.parts.demand_of(function, int64(fence), tf.constant(seconds, tf.float64))

    @staticmethod
    def _not_waiting(pause: UpdatePause, source: StoreAdmin) -> list[int]:
        """Return the live workers that may have an update under way, in ascending order."""
        first = source.store.shards[0]
        function = source.parts.function("not waiting", lambda: source.client.to_local(pause.not_waiting(first)))
        workers: list[int] = source.client.call(function).tolist()
        return workers

    @staticmethod
    def _partly_applied(pause: UpdatePause, source: StoreAdmin) -> list[int]:
        """Return the registered workers whose last update some servers lack, in ascending order."""

        def emit_of(shard: Shard) -> Tensor:
            with tf.device(shard.device):
                numbers = pause.applied(shard)
            return source.client.to_local(numbers)

        function = source.parts.function("applied", lambda: [emit_of(shard) for shard in source.store.every])
        found = source.client.call(function)
        return partly_applied([own.tolist() for own in found], source.registered().tolist())

    def _carry_over(self, source: StoreAdmin, target: StoreAdmin, fence: int) -> None:
        """Copy the state that a checkpoint lacks, from server to server; see `ps.carried_state`.

        Raises:
            FencedError: a target is under another fence, or applies steps.
        """
        if (function := self._carry.get((source, target))) is None:

            def emit(arguments: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
                values = read_carried(source.store.shards[0])
                members = zip(target.store.every, arguments, strict=True)
                return [target.client.to_local(write_carried(shard, own, values)) for shard, (own,) in members]

            function = self._carry[source, target] = tf.function(emit, autograph=False)
        target.parts.demand_of(function, [(int64(fence),)] * len(target.store.every))


def _named(workers: Sequence[int]) -> str:
    return ", ".join(f"worker-{worker}" for worker in workers)
