"""The map of a checkpoint's tensors to the servers: spans of the parts of their state, by the tensors' names."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pstraining.runtime.checkpoint.state import Entry
from pstraining.runtime.model.partition import Layout
from pstraining.runtime.ps.saving.parts import ShardParts
from pstraining.runtime.ps.saving.state_parts import StatePart


class Span(NamedTuple):
    """Consecutive elements of a part that are also consecutive in their tensor, or rows of a table."""

    name: str
    """The tensor's name."""
    shard: int
    part: int
    begin: int
    """Index of the first element in the part."""
    first: int
    """Index of the first element in the tensor; for a table, its row."""
    size: int
    """Number of elements."""
    stride: int = 0
    """Distance of a table's rows in the tensor; 0 if the tensor is not a table."""


class StateMap:
    """The tensors of a state, and their spans on the shards.

    Args:
        layout: the model's layout.
        shards: every shard's parts.
        rows: the number of keys in each arena of every shard; None: 0.
    """

    def __init__(
        self, layout: Layout, shards: Sequence[ShardParts], rows: Sequence[Sequence[int]] | None = None
    ) -> None:
        self.entries: dict[str, Entry] = {}
        """Dtype and shape of every tensor, in the order of their first elements on the servers."""
        self.spans: dict[str, list[Span]] = {}
        """Every tensor's spans, in the order of its elements; for a counter, only the span on the first server."""
        self.of_parts: dict[tuple[int, int], list[Span]] = {}
        """The spans of each part, by shard and part."""
        for shard, own in enumerate(shards):
            for number, part in enumerate(own.parts):
                if part.arena is not None:
                    length = rows[shard][own.arenas.index(part.arena)] if rows else 0
                    self._add_column(layout, shard, number, part, length)
                    continue
                found = list(_spans(layout, shard, number, part))
                self.of_parts[shard, number] = [span for span, _ in found]
                for span, entry in found:
                    if part.segment is not None or span.name not in self.spans:
                        self.spans.setdefault(span.name, []).append(span)
                    self.entries.setdefault(span.name, entry)
        for spans in self.spans.values():
            spans.sort(key=lambda span: span.first)

    def _add_column(self, layout: Layout, shard: int, number: int, part: StatePart, rows: int) -> None:
        """Add a column of an arena, whose rows on this server follow those of the servers before."""
        name, width = column_name(layout, part), part.width
        spans = self.spans.setdefault(name, [])
        first = sum(span.size for span in spans)
        spans.append(Span(name, shard, number, 0, first, rows * width))
        self.of_parts[shard, number] = [spans[-1]]
        self.entries[name] = Entry(part.variable.dtype.name, (first // width + rows, *part.shape[1:]))


def column_name(layout: Layout, part: StatePart) -> str:
    """Return the name of the tensor that an arena's column belongs to.

    Raises:
        TypeError: the part is not a column of an arena.
    """
    if part.segment is None or part.arena is None:
        raise TypeError("the part is not a column of an arena")
    return f"{part.kind}/{layout.tensors[part.segment.slices[0].tensor].path}{part.suffix}"


def _spans(layout: Layout, shard: int, number: int, part: StatePart) -> Iterator[tuple[Span, Entry]]:
    dtype = part.variable.dtype.name
    if part.segment is None:
        name = part.kind
        if part.place is not None and part.place.tensor is not None:
            name += f"/{layout.tensors[part.place.tensor].path}"
        yield Span(name, shard, number, 0, 0, part.size), Entry(dtype, part.shape)
        return
    position, end = 0, part.offset + part.size
    for slice_ in part.segment.slices:
        tensor = layout.tensors[slice_.tensor]
        low, high = max(position, part.offset), min(position + slice_.size, end)
        if low < high or not tensor.size:
            first = slice_.begin + (0 if slice_.stride else low - position)
            begin, size = low - part.offset, max(0, high - low)
            span = Span(f"{part.kind}/{tensor.path}", shard, number, begin, first, size, slice_.stride)
            yield span, Entry(dtype, tensor.shape)
        position += slice_.size
