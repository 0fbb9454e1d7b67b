"""The parts of a parameter server's state in a checkpoint: its variables, and the tensor that each belongs to."""

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from pstraining.runtime.model.partition import TABLE, Segment
from pstraining.runtime.model.segment_optimizer import SlotPlace, TensorVariables
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.tables.arena import KEYS, SEEN, Arena
from pstraining.runtime.ps.tables.dynamic_table import ROWS
from pstraining.runtime.ps.variables import PSVariable

MODEL: Final = "model"
"""Kind of the parts of the model's variables. Slots have the kind slot/<slot>, and counters scalar/<name>."""

_COLUMNS: Final = {KEYS: (MODEL, f"/{KEYS}"), ROWS: (MODEL, ""), SEEN: ("scalar", f"/{SEEN}")}
"""Kind and suffix of the columns of a table with rows by key; the other columns are slots."""


class StatePart(NamedTuple):
    """A variable of a server's state, and the tensor that it belongs to."""

    variable: PSVariable
    kind: str
    """See MODEL."""
    segment: Segment | None = None
    """The segment whose elements the variable holds; None for a counter or a slot of one tensor."""
    offset: int = 0
    """Index of the variable's first element in the segment."""
    place: SlotPlace | None = None
    """The slot; None for variables of the model, counters and columns."""
    arena: Arena | None = None
    """The arena that the variable is a column of. Only the server knows such a column's length."""
    suffix: str = ""
    """The part of a column's name after the path of its table."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the variable; the first dimension of an arena's column is 0."""
        return tuple(length or 0 for length in self.variable.shape.as_list())

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def width(self) -> int:
        """Number of elements in a row, the smallest part that moves; 1 for a vector."""
        return math.prod(self.shape[1:])

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return int(self.size * self.variable.dtype.size)

    @property
    def is_table(self) -> bool:
        """Whether steps change single rows."""
        return self.segment is not None and self.segment.group == TABLE

    @property
    def has_rows(self) -> bool:
        """Whether the variable has one row for each row of a table with a fixed number of rows."""
        if self.segment is None or self.arena is not None:
            return False
        return self.is_table and self.shape[:1] == (self.segment.slices[0].rows,)


class Unit(NamedTuple):
    """Parts of one shard that move in one call, or one part whose rows move in several calls."""

    numbers: list[int]
    is_cut: bool


def parts_of(shard: Shard) -> Iterator[StatePart]:
    """Yield the parts of a shard's state, in the order of `ShardParts.parts`."""
    first = len(shard.segments)
    dynamic = {first + number for number in shard.dynamic}
    for number, (value, segment) in enumerate(zip(shard.values, shard.held, strict=True)):
        if number not in dynamic:
            yield from _split(value, MODEL, segment, None)
    for place, slot in shard.slots.items():
        if place.segment in dynamic:
            continue
        of_tensor = place.tensor is not None
        yield from _split(slot, f"slot/{place.slot}", None if of_tensor else shard.held[place.segment], place)
    for name, counter in shard.scalars.items():
        yield StatePart(counter, f"scalar/{name}")
    for number, table in shard.dynamic.items():
        for part, arena in table.arenas.items():
            for name, column in arena.columns.items():
                kind, suffix = _COLUMNS.get(name, (name, "")) if not part else ("scalar", f"/{part}/{name}")
                yield StatePart(column, kind, shard.held[first + number], arena=arena, suffix=suffix)


def _split(
    value: PSVariable | TensorVariables, kind: str, segment: Segment | None, place: SlotPlace | None
) -> Iterator[StatePart]:
    """Yield a part for each variable of a value."""
    offset = 0
    for variable in value.variables if isinstance(value, TensorVariables) else [value]:
        yield StatePart(variable, kind, segment, offset, place)
        offset += variable.shape.num_elements()
