"""Moves the state between the servers and the chief, which holds at most a few pieces of it at a time.

Tensors that the servers write and read themselves do not pass through the chief, see `server_files`.
"""

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from itertools import zip_longest
from typing import Final, NamedTuple

import tensorflow as tf

from pstraining.runtime.checkpoint.parts import Parts
from pstraining.runtime.checkpoint.ports.part_place import PartPlace
from pstraining.runtime.checkpoint.state import FULL, SavePlan, StateParts
from pstraining.runtime.chief.errors import FencedError
from pstraining.runtime.chief.state.contents import Contents, StatePiece
from pstraining.runtime.chief.state.dynamic_contents import RowsPiece
from pstraining.runtime.chief.state.file_plan import changing, plan, plan_changes
from pstraining.runtime.chief.state.server_files import ServerFiles
from pstraining.runtime.chief.state.server_state import ReadWindow, ServerState
from pstraining.runtime.chief.state.state_map import StateMap
from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import Tensor, TracedFunction
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.ps.saving.parts import ShardParts
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.store import ParameterStore, int64

RANGE_BYTES: Final = 8 << 20
"""Approximate bytes of a table that a server copies in one critical section, which takes some milliseconds."""
PIECE_BYTES: Final = 4 << 20
"""Maximum bytes of a state that moves in one call, and total size of one piece from each server for a larger state."""
MOST_CHANGED: Final = 4
"""Divisor of the bytes in a server's tables: if more than the quotient has changed, a save is full."""
MOST_CHANGED_BYTES: Final = 256 << 20
"""Maximum changed bytes on a server that are copied in one critical section, which takes about a tenth of a second."""


class _Rows(NamedTuple):
    """Some rows of a part."""

    part: int
    begin: int
    end: int


class StateAdmin:
    """The chief's traced functions over the state of a store's servers.

    Args:
        store: the store on the servers.
        demand: calls a function on all servers; raises `FencedError` if a server's result is not 1, its acceptance.
        learners: the number of each shard's last members that have only a part of the state; None: no member.
    """

    def __init__(
        self, store: ParameterStore, demand: Callable[..., None], learners: Sequence[int] | None = None
    ) -> None:
        self._client, self._demand_of = store.client, demand
        # Standbys in lockstep are equal to their primary after each step. A save from them leaves the primary's
        # processor, memory and network to the workers.
        in_lockstep = store.updates.member_round_ops is not None
        self._members = [
            [ShardParts(member) for member in _source_first(own, len(own) - lacking if in_lockstep else 1)]
            for own, lacking in zip(store.members_of, learners or [0] * len(store.shards), strict=True)
        ]
        self._sources = [members[0] for members in self._members]
        self._layout, self._places = store.layout, StateMap(store.layout, self._sources)
        self._most = max(1, PIECE_BYTES // len(self._sources))
        self._units = [shard.units(self._most) for shard in self._sources]
        grows = any(shard.arenas for shard in self._sources)
        self._is_small = not grows and sum(shard.bytes for shard in self._sources) <= PIECE_BYTES
        self.files = ServerFiles(self._client, self._members, self._most, demand)
        self._traced: dict[Hashable, TracedFunction] = {}
        self._recorded: tuple[int, int] | None = None
        """The copy since which the servers record changed rows, and the fence under which they began."""

    @property
    def sources(self) -> list[Shard]:
        """The member of each shard whose state is saved: a standby if standbys apply the same steps."""
        return [source.shard for source in self._sources]

    def copy_ahead(self, fence: int, between: Callable[[], None]) -> int:
        """Let the sources copy their tables in ranges, each between two updates; return the copy's name.

        Args:
            fence: the chief's fence.
            between: called between the ranges; may raise to end the copying.

        Raises:
            FencedError: a server is under another term.
        """
        token = time.time_ns()
        if self._is_small:
            return token
        begin = self._emit_on(self._sources, ShardParts.begin_copy)
        self._demand("begin copy", begin, int64(fence), int64(token))
        ranges = [_ranges(shard) for shard in self._sources]
        with ThreadPoolExecutor(len(ranges), "pstraining-copy-ahead") as pool:
            for turn in zip_longest(*ranges):
                between()
                calls = [(shard, rows, fence, token) for shard, rows in enumerate(turn) if rows is not None]
                list(pool.map(self._copy_range, calls))
        return token

    @cached_property
    def _saved_by_row(self) -> list[str]:
        """The tensors of which an incremental save copies the changed rows only."""
        return changing(plan(self._places, self._sources, self._most), self._places, self._sources)

    def continues(self, fence: int, base: int) -> bool:
        """Return whether a save may continue a copy with the rows of tables that have changed since.

        Args:
            fence: the chief's fence.
            base: the former copy's name.

        Returns:
            False if the rows that have changed since that copy are not known, or are many.
        """
        if self._is_small or (base, fence) != self._recorded:  # another view may have changed rows without a record
            return False
        emit = self._emit_on(self._sources, ShardParts.changed_counts)
        found = self._client.call(self._function("changed counts", emit), int64(base))
        for shard, (source, counts) in enumerate(zip(self._sources, found, strict=True)):
            widths = self._row_bytes(shard)
            total = sum(width * source.shard.tables[table].slices[0].rows for table, width in widths.items())
            changed = sum(width * int(counts[table]) for table, width in widths.items())
            if any(counts < 0) or changed > min(MOST_CHANGED_BYTES, total // MOST_CHANGED):
                return False
        return bool(self._saved_by_row)

    def _row_bytes(self, shard: int) -> dict[int, int]:
        """Return the bytes of a changed row and of its slots in each table, by the table's number on the shard."""
        source, found = self._sources[shard], dict[int, int]()
        for number in self._parts_by_row(shard):
            part, table = source.parts[number], source.table_parts[number]
            found[table] = found.get(table, 0) + part.width * part.variable.dtype.size
        return found

    def _parts_by_row(self, shard: int) -> list[int]:
        """Return the numbers of a shard's parts of which an incremental save copies the changed rows only."""
        spans = (span for name in self._saved_by_row for span in self._places.spans[name])
        return [span.part for span in spans if span.shard == shard and span.size]

    def copy(
        self,
        fence: int,
        token: int,
        between: Callable[[], None],
        saves: SavePlan = FULL,
    ) -> tuple[list[Array], Callable[[int], ServerState]]:
        """Copy each source's state at one moment between two of its updates; the servers keep a large one.

        Args:
            fence: the chief's fence.
            token: the copy's name; of a complete copy as returned by `copy_ahead`.
            between: see `ServerState`.
            saves: the copy that this one continues, which `continues` permits.

        Returns:
            The sources' records, and a function from a step to the state.
        """
        values, places, counts = list[Sequence[Array]](), self._places, list[list[int]]()
        if saves.base is not None:
            records, rows, counts = self._copy_changed(saves.base, fence, token)
        elif self._is_small:
            taken = self._client.call(self._function("snapshot", self._emit_snapshot))
            records, values, rows = [record for record, _ in taken], [own for _, own in taken], []
        else:
            emit = self._emit_on(self._sources, partial(ShardParts.keep, recorded=saves.recorded))
            kept = self._client.call(self._function(("keep", saves.recorded), emit), int64(fence), int64(token))
            records, rows = [record for record, _ in kept], [own.tolist() for _, own in kept]
        if any(rows):
            places = StateMap(self._layout, self._sources, rows)
        names = self._saved_by_row if counts else []
        if saves.recorded and not self._is_small:
            self._recorded = token, fence

        def fetch(window: ReadWindow) -> Sequence[Array]:
            if not values:
                return self._fetch(window, token)
            numbers = self._units[window.shard][window.unit].numbers
            return [values[window.shard][number].reshape(-1) for number in numbers]

        def write(place: PartPlace) -> dict[str, Parts]:
            planned = {} if self._is_small else plan(places, self._sources, self._most)
            complete = {name: files for name, files in planned.items() if name not in names}
            changed = plan_changes(names, places, self._sources, counts, token) if counts else None
            return self.files.write(place, complete, token, between, changed)

        def state(step: int) -> ServerState:
            whole = ServerState(step, places, self._sources, self._most, fetch, between, write)
            kept = 0 if self._is_small else token
            return replace(whole, copy=kept, base=saves.base, only_changed=frozenset(names))

        return records, state

    def _copy_changed(self, base: int, fence: int, token: int) -> tuple[list[Array], list[list[int]], list[list[int]]]:
        """Copy changed rows; return the records, the numbers of keys, and the numbers of changed rows of each source.

        Raises:
            FencedError: a server no longer records the changed rows.
        """

        def emit(*given: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
            emits = (partial(own.keep_changed, self._parts_by_row(shard)) for shard, own in enumerate(self._sources))
            return [self._client.to_local(one(*given)) for one in emits]

        found = self._client.call(self._function("keep changed", emit), int64(fence), int64(base), int64(token))
        counts = [own.tolist() for _, _, own in found]
        for index, (record, _, _) in enumerate(found):
            if int(record[RecordField.FENCE]) == fence and min(counts[index]) < 0:
                raise FencedError(f"parameter server {index} no longer records the rows that have changed")
        return [record for record, _, _ in found], [own.tolist() for _, own, _ in found], counts

    def release(self, fence: int) -> None:
        """Let every server delete its copy, under the fence."""
        if not self._is_small:
            self._client.call(self._function("release", self._emit_on_all(ShardParts.release)), int64(fence))

    def contents(self, state: StateParts, *, fresh: bool) -> Contents:
        """Check a saved state, and return its parts for the servers.

        Raises:
            StateMismatchError: the state belongs to another model or optimizer.
        """
        contents = Contents(self._places, self._sources, state, fresh=fresh, device=self._client.local)
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
        if self._is_small:
            values = [contents.of_shard(shard) for shard in range(len(self._members))]

            def write(fence: Tensor, values: Sequence[Sequence[Tensor]]) -> list[Tensor]:
                return self._emit_write(fence, values, fresh=fresh)

            self._demand(("write", fresh), write, int64(fence), values)
            return
        self.release(fence)
        token = int64(time.time_ns())
        self._demand("begin", self._emit_on_all(ShardParts.begin), int64(fence), token)
        loaded = self.files.load(contents.stored, contents.files(self._most), fence, token)
        with ThreadPoolExecutor(1, "pstraining-read-checkpoint") as pool:
            pieces = contents.pieces(self._most, without=loaded)
            coming = pool.submit(next, pieces, None)
            while (piece := coming.result()) is not None:
                coming = pool.submit(next, pieces, None)
                self._give(piece, int64(fence), token)
        finish = self._emit_on_all(lambda own, *given: own.finish(*given, fresh=fresh))
        self._demand(("finish", fresh), finish, int64(fence), token)

    def _append(self, piece: RowsPiece, fence: Tensor, token: Tensor) -> None:
        """Write keys of an arena, and their rows, to every member of their shard."""
        members, names = self._members[piece.shard], list(piece.columns)

        def append(fence: Tensor, token: Tensor, begin: Tensor, keys: Tensor, values: Sequence[Tensor]) -> list[Tensor]:
            given = dict(zip(names, values, strict=True))
            return self._on(members, lambda own: own.append(piece.arena, fence, token, begin, keys, given))

        columns, number = members[0].arenas[piece.arena].columns, tf.TensorSpec([], tf.int64)
        flat = [tf.TensorSpec([None], columns[name].dtype) for name in names]
        like = (number, number, number, tf.TensorSpec([None], tf.int64), flat)
        given = fence, token, int64(piece.begin), piece.keys, list(piece.columns.values())
        self._demand(("append", piece.shard, piece.arena, *names), append, *given, like=like)

    def _give(self, piece: StatePiece | RowsPiece, fence: Tensor, token: Tensor) -> None:
        """Write a piece to every member of its shard."""
        if isinstance(piece, RowsPiece):
            self._append(piece, fence, token)
            return
        members, unit = self._members[piece.shard], self._units[piece.shard][piece.unit]

        def take(fence: Tensor, token: Tensor, begin: Tensor, values: list[Tensor]) -> list[Tensor]:
            return self._on(members, lambda own: own.take(unit, fence, token, begin, values))

        def adopt(fence: Tensor, token: Tensor) -> list[Tensor]:
            return self._on(members, lambda own: own.adopt(unit, fence, token))

        key, number = (piece.shard, piece.unit), tf.TensorSpec([], tf.int64)
        flat = [tf.TensorSpec([None], members[0].parts[part].variable.dtype) for part in unit.numbers]
        given = fence, token, int64(piece.begin), piece.values
        self._demand(("take", *key), take, *given, like=(number, number, number, flat))
        if piece.is_last:
            self._demand(("adopt", *key), adopt, fence, token)

    def _copy_range(self, call: tuple[int, _Rows, int, int]) -> None:
        shard, rows, fence, token = call
        copy = self._emit_on([self._sources[shard]], lambda own, *given: own.copy_ahead(rows.part, *given))
        given = int64(fence), int64(token), int64(rows.begin), int64(rows.end)
        self._demand(("copy ahead", shard, rows.part), copy, *given)

    def _fetch(self, window: ReadWindow, token: int) -> Sequence[Array]:
        source, unit = self._sources[window.shard], self._units[window.shard][window.unit]

        def read(token: Tensor, begin: Tensor, end: Tensor) -> tuple[Tensor, list[Tensor]]:
            found: tuple[Tensor, list[Tensor]] = self._client.to_local(source.read(unit, token, begin, end))
            return found

        function = self._function(("read", window.shard, window.unit), read)
        is_there, values = self._client.call(function, int64(token), int64(window.begin), int64(window.end))
        if not is_there:
            raise FencedError(f"parameter server {window.shard} no longer keeps the copy that is being saved")
        found: Sequence[Array] = values
        return found

    def _emit_snapshot(self) -> list[Tensor]:
        return self._on(self._sources, lambda own: own.snapshot())

    def _emit_write(self, fence: Tensor, values: Sequence[Sequence[Tensor]], *, fresh: bool) -> list[Tensor]:
        return [
            self._client.to_local(member.write(fence, given, fresh=fresh))
            for members, given in zip(self._members, values, strict=True)
            for member in members
        ]

    def _emit_on_all(self, emit: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
        return self._emit_on([member for members in self._members for member in members], emit)

    def _emit_on(self, shards: Sequence[ShardParts], emit: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
        return lambda *arguments: self._on(shards, lambda own: emit(own, *arguments))

    def _on(self, members: Sequence[ShardParts], emit: Callable[[ShardParts], Tensor]) -> list[Tensor]:
        return [self._client.to_local(emit(member)) for member in members]

    def _function(self, key: Hashable, emit: Callable[..., object], like: object = None) -> TracedFunction:
        if key not in self._traced:
            self._traced[key] = tf.function(emit, autograph=False, input_signature=like)
        return self._traced[key]

    def _demand(self, key: Hashable, emit: Callable[..., object], *arguments: object, like: object = None) -> None:
        self._demand_of(self._function(key, emit, like), *arguments)


def _source_first(members: Sequence[Shard], equal: int) -> list[Shard]:
    """Return a shard's members with the source of its state first: a standby, if one is equal to the primary.

    Args:
        members: the primary first.
        equal: the number of the first members that are equal.
    """
    return [*members[1:equal], members[0], *members[equal:]]


def _ranges(shard: ShardParts) -> Iterator[_Rows]:
    """Yield the ranges of a server's tables that are copied in sequence."""
    for number in shard.table_parts:
        part = shard.parts[number]
        total, length = part.shape[0], max(1, RANGE_BYTES // (part.width * part.variable.dtype.size))
        for begin in range(0, total, length):
            yield _Rows(number, begin, min(begin + length, total))
