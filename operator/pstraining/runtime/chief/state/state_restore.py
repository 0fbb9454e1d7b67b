"""Writes a state to the servers, in one call or in pieces of which the chief holds at most a few at a time.

Tensors that the servers read themselves do not pass through the chief, see `server_files`.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from pstraining.runtime.checkpoint.state import StateParts
from pstraining.runtime.chief.state.contents import Contents, StatePiece
from pstraining.runtime.chief.state.dynamic_contents import RowsPiece
from pstraining.runtime.chief.state.origin import optimizer_names, unshared_values
from pstraining.runtime.chief.state.server_parts import ServerParts
from pstraining.runtime.chief.state.state_copies import StateCopies
from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.saving.parts import ShardParts
from pstraining.runtime.ps.store import int64


class StateRestore:
    """Writes states to a store's servers.

    Args:
        parts: the parts of the state.
        copies: the copies that a restore replaces.
    """

    def __init__(self, parts: ServerParts, copies: StateCopies) -> None:
        self._parts, self._client, self._copies = parts, parts.client, copies

    def contents(self, state: StateParts, *, fresh: bool, given: Mapping[str, Array] | None = None) -> Contents:
        """Check a saved state, and return its parts for the servers.

        Args:
            state: the saved state.
            fresh: whether only the model's variables are written.
            given: tensors that replace those of the state, by name.

        Raises:
            StateMismatchError: the state belongs to another model or optimizer, or to other words of a layer.
        """
        unshared_values.check(state, self._parts.model.unshared)
        if not fresh:
            optimizer_names.check(state, self._parts.model.trained_by, self._parts.places.entries)
        contents = Contents(
            self._parts.places, self._parts.sources, state, fresh=fresh, device=self._client.local, given=given
        )
        contents.check()
        return contents

    def write(self, contents: Contents, fence: int, *, fresh: bool) -> None:
        """Overwrite the state of all servers, in generation 0.

        Args:
            contents: the new state.
            fence: the chief's fence.
            fresh: whether the optimizers' own initial values follow the variables.

        Raises:
            FencedError: a server is under another term, or holds another set of parameters.
        """
        if self._parts.is_small:
            values = [contents.of_shard(shard) for shard in range(len(self._parts.members))]

            def write(fence: Tensor, values: Sequence[Sequence[Tensor]]) -> list[Tensor]:
                return self._emit_write(fence, values, fresh=fresh)

            self._parts.demand(("write", fresh), write, int64(fence), values)
            return
        name = self.begin(fence)
        self.give(contents, fence, name)
        self.finish(fence, name, fresh=fresh)

    def begin(self, fence: int) -> int:
        """Start a restore in pieces, and return its name; every variable gets its initial value.

        Args:
            fence: the chief's fence, in generation 0.

        Raises:
            FencedError: a server is under another term, or holds another set of parameters.
        """
        self._copies.release(fence)
        name = time.time_ns()
        self._parts.demand("begin", self._parts.emit_on_all(ShardParts.begin), int64(fence), int64(name))
        return name

    def give(
        self,
        contents: Contents,
        fence: int,
        name: int,
        *,
        without: Collection[str] = (),
        between: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the pieces of a state between `begin` and `finish`; a further call replaces those of the call before.

        Args:
            contents, fence: see `write`.
            name: the restore's name.
            without: names of tables that the servers get otherwise.
            between: called between the pieces; may raise to end the restore.

        Raises:
            FencedError: see `begin`.
        """
        token = int64(name)
        if self._parts.has_arenas:  # earlier pieces of this restore may have appended keys
            self._parts.demand("remove keys", self._parts.emit_on_all(ShardParts.remove_keys), int64(fence), token)
        loaded = self._copies.files.load(contents.stored, contents.files(self._parts.most), fence, token)
        with ThreadPoolExecutor(1, "pstraining-read-checkpoint") as pool:
            pieces = contents.pieces(self._parts.most, without=loaded | frozenset(without))
            coming = pool.submit(next, pieces, None)
            while (piece := coming.result()) is not None:
                coming = pool.submit(next, pieces, None)
                self._give(piece, int64(fence), token)
                between()

    def finish(self, fence: int, name: int, *, fresh: bool) -> None:
        """End a restore in pieces.

        Args:
            fence, fresh: see `write`.
            name: the restore's name.

        Raises:
            FencedError: see `begin`.
        """
        finish = self._parts.emit_on_all(lambda own, *given: own.finish(*given, fresh=fresh))
        self._parts.demand(("finish", fresh), finish, int64(fence), int64(name))

    def _append(self, piece: RowsPiece, fence: Tensor, token: Tensor) -> None:
        """Write keys of an arena, and their rows, to every member of their shard."""
        members, names = self._parts.members[piece.shard], list(piece.columns)

        def append(fence: Tensor, token: Tensor, begin: Tensor, keys: Tensor, values: Sequence[Tensor]) -> list[Tensor]:
            given = dict(zip(names, values, strict=True))
            return self._parts.on(members, lambda own: own.append(piece.arena, fence, token, begin, keys, given))

        columns, number = members[0].arenas[piece.arena].columns, tf.TensorSpec([], tf.int64)
        flat = [tf.TensorSpec([None], columns[name].dtype) for name in names]
        like = (number, number, number, tf.TensorSpec([None], tf.int64), flat)
        given = fence, token, int64(piece.begin), piece.keys, list(piece.columns.values())
        self._parts.demand(("append", piece.shard, piece.arena, *names), append, *given, like=like)

    def _give(self, piece: StatePiece | RowsPiece, fence: Tensor, token: Tensor) -> None:
        """Write a piece to every member of its shard."""
        if isinstance(piece, RowsPiece):
            self._append(piece, fence, token)
            return
        members, unit = self._parts.members[piece.shard], self._parts.units[piece.shard][piece.unit]

        def take(fence: Tensor, token: Tensor, begin: Tensor, values: list[Tensor]) -> list[Tensor]:
            return self._parts.on(members, lambda own: own.take(unit, fence, token, begin, values))

        def adopt(fence: Tensor, token: Tensor) -> list[Tensor]:
            return self._parts.on(members, lambda own: own.adopt(unit, fence, token))

        key, number = (piece.shard, piece.unit), tf.TensorSpec([], tf.int64)
        flat = [tf.TensorSpec([None], members[0].parts[part].variable.dtype) for part in unit.numbers]
        given = fence, token, int64(piece.begin), piece.values
        self._parts.demand(("take", *key), take, *given, like=(number, number, number, flat))
        if piece.is_last:
            self._parts.demand(("adopt", *key), adopt, fence, token)

    def _emit_write(self, fence: Tensor, values: Sequence[Sequence[Tensor]], *, fresh: bool) -> list[Tensor]:
        return [
            self._client.to_local(member.write(fence, given, fresh=fresh))
            for members, given in zip(self._parts.members, values, strict=True)
            for member in members
        ]
