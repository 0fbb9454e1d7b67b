"""A saved state, distributed to the servers as whole parts of their state, or as rows of the parts that are split.

A state can be restored to any number of servers, and by a program that has added or unfrozen variables since. Tensors
that the state lacks get their initial values from Keras.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pstraining.runtime.checkpoint.arrays import StoredState
from pstraining.runtime.checkpoint.parts import header, shared_rows
from pstraining.runtime.checkpoint.state import Entry, StateMismatchError, StateParts
from pstraining.runtime.chief.state import dynamic_contents
from pstraining.runtime.chief.state.dynamic_contents import RowsPiece
from pstraining.runtime.chief.state.file_plan import ChangedPiece, FilePiece
from pstraining.runtime.chief.state.state_map import Span, StateMap
from pstraining.runtime.model.partition import Array
from pstraining.runtime.ps.data_ledger import Ledger
from pstraining.runtime.ps.saving.parts import ShardParts
from pstraining.runtime.ps.saving.state_parts import MODEL, StatePart, Unit
from pstraining.runtime.telemetry.events import event


class StatePiece(NamedTuple):
    """The values that one call writes to a shard."""

    shard: int
    unit: int
    begin: int
    """The first row of a part that is split."""
    values: list[Array]
    """A flattened array for each of the unit's parts."""
    is_last: bool = False
    """Whether this is the last piece of a part whose pieces are collected in a copy; see `ShardParts.adopt`."""


class Contents:
    """The parts of a saved state for these servers.

    Args:
        places: the map of the tensors to the shards' parts.
        shards: every shard's parts.
        state: the saved state.
        fresh: whether only the model's variables are written.
        device: the device that computes initial values.
        given: tensors that replace those of the state, by name.
    """

    def __init__(
        self,
        places: StateMap,
        shards: Sequence[ShardParts],
        state: StateParts,
        *,
        fresh: bool,
        device: str,
        given: Mapping[str, Array] | None = None,
    ) -> None:
        self._places, self._shards, self._state, self._fresh, self._device = places, shards, state, fresh, device
        self._saved = state.entries
        self._given = {} if fresh else {**_given(shards, self._saved), **(given or {})}
        self.stored = state.parts if isinstance(state, StoredState) else None
        """The files of the state that servers wrote; None if it has none."""

    def check(self) -> None:
        """Check names, shapes and dtypes.

        Raises:
            StateMismatchError: the state belongs to another model or optimizer.
        """
        slots = {name.split("/")[1] for name in self._saved if name.startswith("slot/")}
        for names in self._columns():
            dynamic_contents.check(names, self._places.entries, self._saved, fresh=self._fresh)
        for (shard, number), spans in self._places.of_parts.items():
            part = self._shards[shard].parts[number]
            if part.arena or (self._fresh and part.kind != MODEL):
                continue
            for name in [span.name for span in spans]:
                if name in self._given:
                    continue
                if name in self._saved:
                    self._compare(name, is_exact=part.segment is not None)
                elif part.place is None:
                    raise _mismatch(name.partition("/")[2])
            if part.place is not None and part.place.slot not in slots:
                raise _mismatch(part.place.slot)

    def of_shard(self, shard: int) -> list[Array]:
        """Return all of a shard's parts, each in its shape; with `fresh` those of the model's variables."""
        parts = self._shards[shard].parts
        given = [number for number, part in enumerate(parts) if part.kind == MODEL or not self._fresh]
        return [self._part(shard, number).reshape(parts[number].shape) for number in given]

    def files(self, most: int) -> list[FilePiece | ChangedPiece]:
        """Return the rows of tables that servers can read from the checkpoint's files; `most`: see `pieces`.

        A server reads them in this order: changed rows replace earlier ones.
        """
        found: list[FilePiece | ChangedPiece] = []
        for shard, own in enumerate(self._shards if self.stored else ()):
            for number, unit in enumerate(own.units(most)):
                part = own.parts[unit.numbers[0]]
                if unit.is_cut and part.is_table and not part.arena:
                    found += self._of_files(shard, number, unit.numbers[0])
        return found

    def _of_files(self, shard: int, unit: int, number: int) -> Iterator[FilePiece | ChangedPiece]:
        part, (span,) = self._shards[shard].parts[number], self._places.of_parts[shard, number]
        source = self._source(span, part)
        if self.stored is None or source is None or source not in self.stored.parts:
            return
        (width, files, changes), dtype = self.stored.parts[source], self._saved[source].dtype
        if (width, dtype) != (part.width, part.variable.dtype.name):
            return
        for file in files:
            if rows := shared_rows(file, span.first, span.stride):
                skip = len(header(dtype, file.rows, width))
                yield FilePiece(span.name, shard, unit, file.name, skip, rows)
        for change in changes:
            skips = len(header(dtype, change.rows, width)), len(header("int64", change.rows, 1))
            numbers = change.first, change.stride, span.first, span.stride
            yield ChangedPiece(span.name, shard, unit, change.name, change.indices, skips, numbers)

    def pieces(self, most: int, without: Collection[str] = ()) -> Iterator[StatePiece | RowsPiece]:
        """Yield the pieces of all shards.

        Args:
            most: maximum number of bytes of a piece, except that one row may be larger.
            without: names of tables that servers have already read from files.
        """
        cut: dict[str, list[tuple[int, int, StatePart]]] = {}
        for shard, own in enumerate(self._shards):
            for number, unit in enumerate(own.units(most)):
                part = own.parts[unit.numbers[0]]
                if part.arena:
                    continue
                if self._fresh and all(own.parts[n].kind != MODEL for n in unit.numbers):
                    continue
                if not unit.is_cut:
                    yield StatePiece(shard, number, 0, self._whole(shard, unit))
                elif part.is_table:
                    (span,) = self._places.of_parts[shard, unit.numbers[0]]
                    cut.setdefault(span.name, []).append((shard, number, part))
                else:
                    yield from self._rows(shard, number, unit, most)
        for name, owners in cut.items():
            if name not in without:
                yield from self._table(name, owners, most)
        for number, names in enumerate(self._columns()):
            servers, fresh = len(self._shards), self._fresh
            yield from dynamic_contents.pieces(
                number, names, self._state, servers=servers, most=most, fresh=fresh, device=self._device
            )

    def _columns(self) -> list[dict[str, str]]:
        """Return for each arena the name of each column's tensor, by the column's name."""
        found = []
        for arena in self._shards[0].arenas:
            of_arena = [n for n, part in enumerate(self._shards[0].parts) if part.arena is arena]
            names = [self._places.of_parts[0, number][0].name for number in of_arena]
            found.append(dict(zip(arena.columns, names, strict=True)))
        return found

    def _whole(self, shard: int, unit: Unit) -> list[Array]:
        parts = self._shards[shard].parts
        return [
            self._initial(parts[n]) if self._fresh and parts[n].kind != MODEL else self._part(shard, n)
            for n in unit.numbers
        ]

    def _rows(self, shard: int, number: int, unit: Unit, most: int) -> Iterator[StatePiece]:
        """Yield the pieces of a part, without elements that the state lacks."""
        (index,) = unit.numbers
        part = self._shards[shard].parts[index]
        length = part.width * max(1, most // (part.width * part.variable.dtype.size))
        known = [(span, name) for span in self._places.of_parts[shard, index] if (name := self._source(span, part))]
        ranges = [
            (span, name, low, min(low + length, span.size))
            for span, name in known
            for low in range(0, span.size, length)
        ]
        for place, (span, name, low, high) in enumerate(ranges, start=1):
            values = self._state.read(name, span.first + low, span.first + high)
            yield StatePiece(shard, number, (span.begin + low) // part.width, [values], is_last=place == len(ranges))

    def _table(self, name: str, owners: Sequence[tuple[int, int, StatePart]], most: int) -> Iterator[StatePiece]:
        """Yield the rows of a table for all its servers; the table is read once, in the order of its rows."""
        spans = {span.shard: span for span in self._places.spans[name]}
        source = self._source(next(iter(spans.values())), owners[0][2])
        if source is None:
            return
        part, stride = owners[0][2], len(spans)
        total = self._places.entries[name].shape[0]
        rows = max(1, most // (part.width * part.variable.dtype.size))
        for low in range(0, -(-total // stride), rows):
            first, last = low * stride, min((low + rows) * stride, total)
            block = self._state.read(source, first * part.width, last * part.width).reshape(-1, part.width)
            for shard, number, _ in owners:
                own = np.ascontiguousarray(block[spans[shard].first :: stride])
                if own.size:
                    yield StatePiece(shard, number, low, [own.reshape(-1)])

    def _part(self, shard: int, number: int) -> Array:
        """Return all elements of a part. Shape: [part.size]."""
        part, spans = self._shards[shard].parts[number], self._places.of_parts[shard, number]
        found = [(span, self._source(span, part)) for span in spans]
        if all(name is not None for _, name in found):
            values = np.empty(part.size, part.variable.dtype.as_numpy_dtype)
        else:
            values = np.array(self._initial(part))
        for span, name in found:
            if name is not None:
                values[span.begin : span.begin + span.size] = self._elements(span, name, part)
        return values

    def _elements(self, span: Span, name: str, part: StatePart) -> Array:
        if name in self._given:
            return np.reshape(self._given[name], [-1])
        if not span.stride:
            return self._state.read(name, span.first, span.first + span.size)
        width = part.width
        rows = span.size // width
        end = (span.first + (rows - 1) * span.stride + 1) * width if rows else span.first * width
        return self._state.read(name, span.first * width, end).reshape(-1, width)[:: span.stride].reshape(-1)

    def _source(self, span: Span, part: StatePart) -> str | None:
        """Return the name of the tensor that a span is restored from; None: it gets its initial value from Keras."""
        if span.name in self._saved or span.name in self._given:
            return span.name
        # The state has no such slot if the variable was frozen in the program that saved it.
        shard = self._shards[span.shard].shard
        if part.place is not None and shard.begins_as_parameters(part.place):
            return f"{MODEL}/{span.name.split('/', 2)[2]}"
        return None

    def _initial(self, part: StatePart) -> Array:
        with tf.device(self._device):
            return np.reshape(np.asarray(part.variable.initial()), [-1])

    def _compare(self, name: str, *, is_exact: bool) -> None:
        saved, own = self._saved[name], self._places.entries[name]
        if saved.shape != own.shape:
            raise StateMismatchError(f"{name.partition('/')[2]} has another shape in the saved state than in the model")
        if is_exact and saved.dtype != own.dtype:
            raise StateMismatchError(f"{name.partition('/')[2]} is {saved.dtype} in the saved state, not {own.dtype}")


def _given(shards: Sequence[ShardParts], saved: Mapping[str, Entry]) -> dict[str, Array]:
    """Return initial values for tensors of the ledger and the loss scale that the saved state lacks, by name."""
    given: dict[str, Array] = {}
    for shard in (own.shard for own in shards):
        if shard.ledger and not saved.keys() >= {f"scalar/{name}" for name in shard.ledger.saved()}:
            event("data_begins_anew", reason="the checkpoint was saved by a program without a ledger of its data")
            given |= {f"scalar/{name}": value for name, value in _empty(shard.ledger).items()}
        if shard.loss_scale:  # a program that did not scale its loss saved no such tensors
            initial = {f"scalar/{name}": value for name, value in shard.loss_scale.initial().items()}
            given |= {name: value for name, value in initial.items() if name not in saved}
    return given


def _empty(ledger: Ledger) -> dict[str, Array]:
    return {
        name: np.zeros(variable.shape.as_list(), variable.dtype.as_numpy_dtype)
        for name, variable in ledger.saved().items()
    }


def _mismatch(missing: str) -> StateMismatchError:
    return StateMismatchError(f"the saved state has no {missing}: it was saved by another model or optimizer")
