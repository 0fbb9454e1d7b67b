"""The parts of the state on all servers, and the chief's traced functions over them."""

from collections.abc import Callable, Hashable, Sequence
from typing import Final

import tensorflow as tf

from pstraining.runtime.chief.state.state_map import StateMap
from pstraining.runtime.model.tensor import Tensor, TracedFunction
from pstraining.runtime.ps.saving.parts import ShardParts
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.store import ParameterStore

PIECE_BYTES: Final = 4 << 20
"""Maximum bytes of a state that moves in one call, and total size of one piece from each server for a larger state."""


class ServerParts:
    """The members of a store, and the parts of their state.

    Args:
        store: the store on the servers.
        demand: calls a function on all servers; raises `FencedError` if a server's result is not 1, its acceptance.
        learners: the number of each shard's last members that have only a part of the state; None: no member.
    """

    def __init__(
        self, store: ParameterStore, demand: Callable[..., None], learners: Sequence[int] | None = None
    ) -> None:
        self.client, self.demand_of = store.client, demand
        self.is_lockstep = store.updates.follow is not None
        """Whether all servers apply the same steps."""
        # Standbys in lockstep are equal to their primary after each step. A save from them leaves the primary's
        # processor, memory and network to the workers.
        in_lockstep = store.updates.member_round_ops is not None
        self.members = [
            [ShardParts(member) for member in _source_first(own, len(own) - lacking if in_lockstep else 1)]
            for own, lacking in zip(store.members_of, learners or [0] * len(store.shards), strict=True)
        ]
        """The members of each shard, the source of its state first."""
        self.sources = [members[0] for members in self.members]
        """The member of each shard whose state is saved: a standby if standbys apply the same steps."""
        self.layout, self.places = store.layout, StateMap(store.layout, self.sources)
        self.model = store.model
        self.most = max(1, PIECE_BYTES // len(self.sources))
        """Maximum bytes of a piece from each shard."""
        self.units = [shard.units(self.most) for shard in self.sources]
        self.has_arenas = any(shard.arenas for shard in self.sources)
        """Whether a table has rows by key, so that the size of the state changes."""
        self.is_small = not self.has_arenas and sum(shard.bytes for shard in self.sources) <= PIECE_BYTES
        """Whether the state moves in one call."""
        self._traced: dict[Hashable, TracedFunction] = {}

    def emit_on_all(self, emit: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
        """Return a function that emits `emit` on every member."""
        return self.emit_on([member for members in self.members for member in members], emit)

    def emit_on(self, shards: Sequence[ShardParts], emit: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
        """Return a function that emits `emit` on some members."""
        return lambda *arguments: self.on(shards, lambda own: emit(own, *arguments))

    def on(self, members: Sequence[ShardParts], emit: Callable[[ShardParts], Tensor]) -> list[Tensor]:
        """Emit `emit` on some members, and return the results on this task."""
        return [self.client.to_local(emit(member)) for member in members]

    def function(self, key: Hashable, emit: Callable[..., object], like: object = None) -> TracedFunction:
        """Return the traced function of this key; `emit` emits its operations, `like` is its signature."""
        if key not in self._traced:
            self._traced[key] = tf.function(emit, autograph=False, input_signature=like)
        return self._traced[key]

    def demand(self, key: Hashable, emit: Callable[..., object], *arguments: object, like: object = None) -> None:
        """Call the traced function of this key.

        Raises:
            FencedError: its result is not 1 on every server.
        """
        self.demand_of(self.function(key, emit, like), *arguments)


def _source_first(members: Sequence[Shard], equal: int) -> list[Shard]:
    """Return a shard's members with the source of its state first: a standby, if one is equal to the primary.

    Args:
        members: the primary first.
        equal: the number of the first members that are equal.
    """
    return [*members[1:equal], members[0], *members[equal:]]
