"""Copies the state from the servers for the chief, which holds at most a few pieces of it at a time.

Tensors that the servers write themselves do not pass through the chief, see `server_files`. `state_restore` has the
other direction.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from itertools import zip_longest
from typing import Final, NamedTuple

import numpy as np
import tensorflow as tf

from pstraining.runtime.checkpoint.parts import Parts
from pstraining.runtime.checkpoint.ports.part_place import PartPlace
from pstraining.runtime.checkpoint.state import FULL, SavePlan, State, whole
from pstraining.runtime.chief.errors import FencedError
from pstraining.runtime.chief.state.file_plan import changing, plan, plan_changes
from pstraining.runtime.chief.state.origin import optimizer_names, unshared_values
from pstraining.runtime.chief.state.server_files import ServerFiles
from pstraining.runtime.chief.state.server_parts import ServerParts
from pstraining.runtime.chief.state.server_state import ReadWindow, ServerState
from pstraining.runtime.chief.state.state_map import StateMap
from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.record import RecordField, ShardRecord
from pstraining.runtime.ps.saving.parts import ShardParts
from pstraining.runtime.ps.store import int64
from pstraining.runtime.ps.tables.arena import sizes

RANGE_BYTES: Final = 8 << 20
"""Approximate bytes of a table that a server copies in one critical section, which takes some milliseconds."""
MOST_CHANGED: Final = 4
"""Divisor of the bytes in a server's tables: if more than the quotient has changed, a save is full."""
MOST_CHANGED_BYTES: Final = 256 << 20
"""Maximum changed bytes on a server that are copied in one critical section, which takes about a tenth of a second."""


class _Rows(NamedTuple):
    """Some rows of a part."""

    part: int
    begin: int
    end: int


class StateCopies:
    """The chief's copies of the state on a store's servers.

    Args:
        parts: the parts of the state.
    """

    def __init__(self, parts: ServerParts) -> None:
        self._parts, self._client, self._sources, self._places = parts, parts.client, parts.sources, parts.places
        self.files = ServerFiles(parts.client, parts.members, parts.most, parts.demand_of)
        self._recorded: tuple[int, int] | None = None
        """The copy since which the servers record changed rows, and the fence under which they began."""

    def copy_ahead(self, fence: int, between: Callable[[], None]) -> int:
        """Let the sources copy their tables in ranges, each between two updates; return the copy's name.

        Args:
            fence: the chief's fence.
            between: called between the ranges; may raise to end the copying.

        Raises:
            FencedError: a server is under another term.
        """
        token = time.time_ns()
        if self._parts.is_small:
            return token
        begin = self._parts.emit_on(self._sources, ShardParts.begin_copy)
        self._parts.demand("begin copy", begin, int64(fence), int64(token))
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
        return changing(plan(self._places, self._sources, self._parts.most), self._places, self._sources)

    def continues(self, fence: int, base: int) -> bool:
        """Return whether a save may continue a copy with the rows of tables that have changed since.

        Args:
            fence: the chief's fence.
            base: the former copy's name.

        Returns:
            False if the rows that have changed since that copy are not known, or are many.
        """
        if (
            self._parts.is_small or (base, fence) != self._recorded
        ):  # another view may have changed rows without a record
            return False
        emit = self._parts.emit_on(self._sources, ShardParts.changed_counts)
        found = self._client.call(self._parts.function("changed counts", emit), int64(base))
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
        elif self._parts.is_small:
            taken = self._client.call(self._parts.function("snapshot", self._emit_snapshot))
            records, values, rows = [record for record, _ in taken], [own for _, own in taken], []
        else:
            emit = self._parts.emit_on(self._sources, partial(ShardParts.keep, recorded=saves.recorded))
            kept = self._client.call(self._parts.function(("keep", saves.recorded), emit), int64(fence), int64(token))
            records, rows = [record for record, _ in kept], [own.tolist() for _, own in kept]
        if any(rows):
            places = StateMap(self._parts.layout, self._sources, rows)
        names = self._saved_by_row if counts else []
        if saves.recorded and not self._parts.is_small:
            self._recorded = token, fence

        def fetch(window: ReadWindow) -> Sequence[Array]:
            if not values:
                return self._fetch(window, token)
            numbers = self._parts.units[window.shard][window.unit].numbers
            return [values[window.shard][number].reshape(-1) for number in numbers]

        def write(place: PartPlace) -> dict[str, Parts]:
            planned = {} if self._parts.is_small else plan(places, self._sources, self._parts.most)
            complete = {name: files for name, files in planned.items() if name not in names}
            changed = plan_changes(names, places, self._sources, counts, token) if counts else None
            return self.files.write(place, complete, token, between, changed)

        def state(step: int) -> ServerState:
            whole = ServerState(step, places, self._sources, self._parts.most, fetch, between, write)
            kept = 0 if self._parts.is_small else token
            model = self._parts.model
            extra = {optimizer_names.NAME: optimizer_names.described(model.trained_by)}
            extra |= unshared_values.described(model.unshared)
            return replace(whole, copy=kept, base=saves.base, only_changed=frozenset(names), extra=extra)

        return records, state

    def _copy_changed(self, base: int, fence: int, token: int) -> tuple[list[Array], list[list[int]], list[list[int]]]:
        """Copy changed rows; return the records, the numbers of keys, and the numbers of changed rows of each source.

        Raises:
            FencedError: a server no longer records the changed rows.
        """

        def emit(*given: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
            emits = (partial(own.keep_changed, self._parts_by_row(shard)) for shard, own in enumerate(self._sources))
            return [self._client.to_local(one(*given)) for one in emits]

        found = self._client.call(self._parts.function("keep changed", emit), int64(fence), int64(base), int64(token))
        counts = [own.tolist() for _, _, own in found]
        for index, (record, _, _) in enumerate(found):
            if int(record[RecordField.FENCE]) == fence and min(counts[index]) < 0:
                raise FencedError(f"parameter server {index} no longer records the rows that have changed")
        return [record for record, _, _ in found], [own.tolist() for _, own, _ in found], counts

    def release(self, fence: int) -> None:
        """Let every server delete its copy, under the fence."""
        if not self._parts.is_small:
            self._client.call(
                self._parts.function("release", self._parts.emit_on_all(ShardParts.release)), int64(fence)
            )

    def bytes_by_key(self) -> int:
        """Return the present size of all rows by key on the sources in bytes, slots and keys without rows included."""
        if not self._parts.has_arenas:
            return 0

        def emit(shard: ShardParts) -> Tensor:
            with tf.device(shard.shard.device):
                return sizes(shard.arenas)

        counts = self._client.call(self._parts.function("keys", self._parts.emit_on(self._sources, emit)))
        return sum(
            int(own[shard.arenas.index(part.arena)]) * part.width * part.variable.dtype.size
            for shard, own in zip(self._sources, counts, strict=True)
            for part in shard.parts
            if part.arena
        )

    def at_rest(self, fence: int, without: Collection[str], *, is_consistent: bool = True) -> State:
        """Return the state of servers that apply no steps, without some tensors; in memory.

        Args:
            fence: the chief's fence.
            without: names of the tensors.
            is_consistent: whether the values are to be those of one step; False while steps are applied.

        Raises:
            FencedError: a server is under another term, or the servers are at different steps.
        """
        apart = {(span.shard, span.part) for name in without for span in self._places.spans[name]}
        wanted = [
            [number for number in range(len(own.parts)) if (shard, number) not in apart]
            for shard, own in enumerate(self._sources)
        ]

        def read() -> list[Tensor]:
            pairs = zip(self._sources, wanted, strict=True)
            return [self._client.to_local(own.snapshot(numbers)) for own, numbers in pairs]

        taken = self._client.call(self._parts.function(("at rest", frozenset(without)), read))
        records = [ShardRecord.from_vector(record) for record, _ in taken]
        first = records[0]
        # Without lockstep, each server counts its own updates.
        same = {(own.fence, own.generation, own.step if self._parts.is_lockstep else first.step) for own in records}
        if is_consistent and same != {(fence, first.generation, first.step)}:
            raise FencedError("the servers are under another term, or at different steps")
        values = [dict(zip(numbers, own, strict=True)) for numbers, (_, own) in zip(wanted, taken, strict=True)]
        places = self._places
        if self._parts.has_arenas:
            places = StateMap(self._parts.layout, self._sources, [*map(_keys_in, self._sources, values)])

        def fetch(window: ReadWindow) -> Sequence[Array]:
            unit, own = self._parts.units[window.shard][window.unit], values[window.shard]
            flat = [own[number].reshape(-1) if number in own else np.empty(0) for number in unit.numbers]
            width = self._sources[window.shard].parts[unit.numbers[0]].width
            return [flat[0][window.begin * width : window.end * width]] if unit.is_cut else flat

        state = ServerState(first.step, places, self._sources, self._parts.most, fetch)
        return whole(state.without(without))

    def _copy_range(self, call: tuple[int, _Rows, int, int]) -> None:
        shard, rows, fence, token = call
        copy = self._parts.emit_on([self._sources[shard]], lambda own, *given: own.copy_ahead(rows.part, *given))
        given = int64(fence), int64(token), int64(rows.begin), int64(rows.end)
        self._parts.demand(("copy ahead", shard, rows.part), copy, *given)

    def _fetch(self, window: ReadWindow, token: int) -> Sequence[Array]:
        source, unit = self._sources[window.shard], self._parts.units[window.shard][window.unit]

        def read(token: Tensor, begin: Tensor, end: Tensor) -> tuple[Tensor, list[Tensor]]:
            found: tuple[Tensor, list[Tensor]] = self._client.to_local(source.read(unit, token, begin, end))
            return found

        function = self._parts.function(("read", window.shard, window.unit), read)
        is_there, values = self._client.call(function, int64(token), int64(window.begin), int64(window.end))
        if not is_there:
            raise FencedError(f"parameter server {window.shard} no longer keeps the copy that is being saved")
        found: Sequence[Array] = values
        return found

    def _emit_snapshot(self) -> list[Tensor]:
        return self._parts.on(self._sources, lambda own: own.snapshot())


def _keys_in(shard: ShardParts, values: Mapping[int, Array]) -> list[int]:
    """Return the number of keys in each arena of a server, whose columns are among the values."""
    lengths = {id(part.arena): len(values[number]) for number, part in enumerate(shard.parts) if part.arena}
    return [lengths[id(arena)] for arena in shard.arenas]


def _ranges(shard: ShardParts) -> Iterator[_Rows]:
    """Yield the ranges of a server's tables that are copied in sequence."""
    for number in shard.table_parts:
        part = shard.parts[number]
        total, length = part.shape[0], max(1, RANGE_BYTES // (part.width * part.variable.dtype.size))
        for begin in range(0, total, length):
            yield _Rows(number, begin, min(begin + length, total))
