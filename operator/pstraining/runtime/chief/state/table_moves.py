"""Moves the rows of large tables to the servers of the next layout while training continues.

All rows are moved first, then again and again those that steps have changed meanwhile, until few are left. The last of
them move while no steps are applied: the pre-copy of C. Clark et al., "Live Migration of Virtual Machines" (NSDI 2005).
Rows move from server to server, and all sources send at once.
"""

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, zip_longest
from typing import Final, NamedTuple

import tensorflow as tf

from pstraining.runtime.chief.errors import FencedError
from pstraining.runtime.chief.state.server_parts import ServerParts
from pstraining.runtime.chief.state.state_map import Span
from pstraining.runtime.model.tensor import Tensor, TracedFunction
from pstraining.runtime.ps.saving.row_moves import RowMoves
from pstraining.runtime.ps.store import int64
from pstraining.runtime.replication.view import LayoutPostponedError

RANGE_BYTES: Final = 8 << 20
"""Maximum bytes of rows that a server sends in one call; it reads them in one critical section of some milliseconds."""
STANDSTILL_SECONDS: Final = 0.5
"""Time in which the last rows must be able to move, at the rate of the rows before them."""
MAX_PASSES: Final = 12
"""Number of passes over the tables after which a change is given up: the rows change faster than they move."""


class _Table(NamedTuple):
    """A table on one source."""

    shard: int
    number: int
    rows: int
    row_bytes: int
    """Bytes of a row and of its slots."""


class _Range(NamedTuple):
    """Rows of a table that one call moves, as far as they are missing."""

    table: _Table
    begin: int
    end: int


class TableMoves:
    """The tables that move from the sources of one layout to all members of another one.

    Args:
        source: the servers that have the state.
        target: the servers of the next layout.
    """

    def __init__(self, source: ServerParts, target: ServerParts) -> None:
        self.source, self._target = source, target
        self.names = frozenset(name for name in source.places.spans if self._is_movable(name))
        """Names of the tensors that move in rows: tables, and slots of the same shape."""
        self._tables = [table for shard in range(len(source.sources)) for table in self._tables_of(shard)]
        self._ends = [RowMoves(own) for own in source.sources]
        self._functions: dict[_Table, TracedFunction] = {}
        self._pending: Iterator[tuple[_Range | None, ...]] = iter(())
        self._name = self._passes = 0
        self.bytes, self._seconds = 0, 0.0
        """Bytes of rows that have moved, and the time of their calls."""

    def begin(self, fence: int, name: int) -> None:
        """Record all rows as missing on the targets, where the restore of this name has begun.

        Args:
            fence: the fence of the sources.
            name: the name of the restore and of the record.

        Raises:
            FencedError: a source is under another fence.
        """
        begin = self.source.emit_on(self.source.sources, lambda own, *given: RowMoves(own).begin(*given))
        self.source.demand("begin moves", begin, int64(fence), int64(name))
        self._name = name
        self._pending = self._pass([table.rows for table in self._tables])

    def warm_up(self, fence: int, target_fence: int) -> Iterator[None]:
        """Trace the functions, one table at a time, by moving no rows.

        Args:
            fence, target_fence: see `advance`.

        Raises:
            FencedError: see `advance`.
        """
        for table in self._tables:
            self._move((_Range(table, 0, 0), fence, target_fence))
            yield
        self._counts()

    def advance(self, fence: int, target_fence: int, seconds: float) -> bool:
        """Move rows for some seconds while training continues; return whether few are left.

        Args:
            fence, target_fence: the fences of the sources, and of the targets.
            seconds: the time after which no further call is made.

        Raises:
            FencedError: a server is under another fence, or its process was replaced.
            LayoutPostponedError: the rows change faster than they move.
        """
        until = time.monotonic() + seconds
        while not self._run(fence, target_fence, until):
            counts = self._counts()
            left = sum(table.row_bytes * count for table, count in zip(self._tables, counts, strict=True))
            if left * self._seconds <= STANDSTILL_SECONDS * self.bytes:
                self._pending = self._pass(counts)
                return True
            self._passes += 1
            if self._passes > MAX_PASSES:
                raise LayoutPostponedError(f"rows of tables change faster than they move: {left >> 20} MiB are left")
            self._pending = self._pass(counts)
        return False

    def finish(self, fence: int, target_fence: int) -> None:
        """Move the last rows while no steps are applied.

        Args:
            fence, target_fence: see `advance`.

        Raises:
            FencedError: see `advance`.
        """
        while any(counts := self._counts()):
            self._pending = self._pass(counts)
            self._run(fence, target_fence, math.inf)

    def end(self) -> None:
        """Let the sources record no more.

        Raises:
            ShardLostError: a source is lost.
        """
        end = self.source.emit_on(self.source.sources, lambda own, name: RowMoves(own).end(name))
        self.source.client.call(self.source.function("end moves", end), int64(self._name))

    def _run(self, fence: int, target_fence: int, until: float) -> bool:
        """Move the pending ranges, one of each source at a time; return whether the time has ended before."""
        with ThreadPoolExecutor(len(self._ends), "pstraining-move-rows") as pool:
            for turn in self._pending:
                began = time.monotonic()
                calls = [(own, fence, target_fence) for own in turn if own is not None]
                self.bytes += sum(pool.map(self._move, calls))
                self._seconds += time.monotonic() - began
                if time.monotonic() > until:
                    return True
        return False

    def _move(self, call: tuple[_Range, int, int]) -> int:
        """Move the missing rows of a range to every target; return their bytes."""
        (table, begin, end), fence, target_fence = call
        if table not in self._functions:
            number = tf.TensorSpec([], tf.int64)
            moving = self._moving(table)
            self._functions[table] = tf.function(moving, autograph=False, input_signature=[number] * 6)
        most = max(1, RANGE_BYTES // table.row_bytes)
        numbers = (fence, target_fence, self._name, begin, end, most)
        accepted, moved, replies = self.source.client.call(self._functions[table], *map(int64, numbers))
        if not accepted:
            raise FencedError(f"parameter server {table.shard} no longer records the rows that are to be moved")
        if refused := [index for index, reply in enumerate(replies) if not reply]:
            raise FencedError(f"parameter servers {refused} of the next layout have refused rows")
        return int(moved) * table.row_bytes

    def _moving(self, table: _Table) -> object:
        """Return the function that emits moving rows of a table from its source to every target."""
        target, spans = self._target, self._spans_of(table.shard, table.number)
        own = self.source.sources[table.shard]
        (slice_,) = own.shard.tables[table.number].slices
        parts = {(to.shard, span.name): to.part for span in spans for to in target.places.spans[span.name]}
        client, shards = self.source.client, len(target.members)

        def move(
            fence: Tensor, target_fence: Tensor, name: Tensor, begin: Tensor, end: Tensor, most: Tensor
        ) -> tuple[Tensor, Tensor, list[Tensor]]:
            numbers = [span.part for span in spans]
            taken = self._ends[table.shard].take(table.number, numbers, fence, name, begin, end, most)
            with tf.device(own.shard.device):
                rows = slice_.begin + slice_.stride * taken.rows
                owner = tf.cast(rows % shards, tf.int32)
                local = tf.dynamic_partition(rows // shards, owner, shards)
                values = [tf.dynamic_partition(value, owner, shards) for value in taken.values]
            replies = [
                client.to_local(
                    RowMoves(member).put(
                        [parts[shard, span.name] for span in spans],
                        target_fence,
                        name,
                        local[shard],
                        [value[shard] for value in values],
                    )
                )
                for shard, members in enumerate(target.members)
                for member in members
            ]
            with tf.device(own.shard.device):
                size = tf.size(taken.rows)
            return client.to_local(taken.accepted), client.to_local(size), replies

        return move

    def _pass(self, counts: Sequence[int]) -> Iterator[tuple[_Range | None, ...]]:
        """Return the turns that move the missing rows once: in each, a range of every source.

        Args:
            counts: the number of missing rows of each table.
        """
        ranges: list[list[_Range]] = [[] for _ in self._ends]
        for table, count in zip(self._tables, counts, strict=True):
            pieces = -(-count * table.row_bytes // RANGE_BYTES)
            bounds = [table.rows * number // pieces for number in range(pieces + 1)] if pieces else []
            ranges[table.shard] += [_Range(table, *pair) for pair in pairwise(bounds)]
        return zip_longest(*ranges)

    def _counts(self) -> list[int]:
        """Return the number of missing rows of each table.

        Raises:
            FencedError: a source no longer records them.
        """
        emit = self.source.emit_on(self.source.sources, lambda own, name: RowMoves(own).counts(name))
        found = self.source.client.call(self.source.function("count moves", emit), int64(self._name))
        counts = [int(found[table.shard][table.number]) for table in self._tables]
        if min(counts, default=0) < 0:
            raise FencedError("a parameter server no longer records the rows that are to be moved")
        return counts

    def _is_movable(self, name: str) -> bool:
        """Return whether a tensor is a large table, or a slot of its shape, on the servers of both layouts."""
        of_source, of_target = self.source.places.spans[name], self._target.places.spans.get(name, [])
        return (
            bool(of_target)
            and all(span.part in self.source.sources[span.shard].table_parts for span in of_source)
            and all(self._is_cut(span.shard, span.part) for span in of_target)
        )

    def _is_cut(self, shard: int, part: int) -> bool:
        """Return whether a restore writes a table's part in pieces on the servers of the next layout."""
        own = self._target.sources[shard].parts[part]
        return own.has_rows and any(unit.is_cut and unit.numbers == [part] for unit in self._target.units[shard])

    def _spans_of(self, shard: int, number: int) -> list[Span]:
        """Return the spans on a source that move with the rows of a table, in the order of their names."""
        table_parts, spans = self.source.sources[shard].table_parts, self.source.places.spans
        own = [span for name in sorted(self.names) for span in spans[name] if span.shard == shard]
        return [span for span in own if table_parts[span.part] == number]

    def _tables_of(self, shard: int) -> Iterator[_Table]:
        own = self.source.sources[shard]
        for number in sorted(set(own.table_parts.values())):
            if parts := [own.parts[span.part] for span in self._spans_of(shard, number)]:
                row_bytes = sum(part.width * part.variable.dtype.size for part in parts)
                yield _Table(shard, number, parts[0].shape[0], row_bytes)
