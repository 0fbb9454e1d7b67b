"""Plan of the files that parameter servers write in a save, and of the rows that each server reads in a restore.

Pure: no file system, no TensorFlow operation.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from pstraining.runtime.checkpoint.parts import FILE_BYTES, ChangedFile, PartFile, SharedRows, header
from pstraining.runtime.chief.state.server_state import ReadWindow
from pstraining.runtime.chief.state.state_map import Span, StateMap
from pstraining.runtime.ps.saving.parts import ShardParts

SMALL: Final = 1 << 20
"""Mean number of bytes per server from which a tensor has separate files."""


class PlannedFile(NamedTuple):
    """A file that a server will write."""

    window: ReadWindow
    """The file's rows in the server's part."""
    file: PartFile
    """The file's description, whose checksum is still empty."""
    dtype: str
    width: int

    @property
    def shard(self) -> int:
        """The server's number."""
        return self.window.shard

    @property
    def name(self) -> str:
        """The file's name."""
        return self.file.name

    @property
    def header(self) -> bytes:
        """The file's NumPy header."""
        return header(self.dtype, self.file.rows, self.width)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return _size(self.header, self.file.rows, self.width, self.dtype)


class PlannedChange(NamedTuple):
    """A file of changed rows, or of their indices, that a server will write."""

    shard: int
    table: int
    """The table's number on the server."""
    part: int | None
    """The part's number; None for the indices."""
    begin: int
    """The first row in the server's copy of changed rows."""
    rows: int
    name: str
    dtype: str = "int64"
    width: int = 1

    @property
    def header(self) -> bytes:
        """The file's NumPy header."""
        return header(self.dtype, self.rows, self.width)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return _size(self.header, self.rows, self.width, self.dtype)


class PlannedChanges(NamedTuple):
    """The files of changed rows of all tables."""

    files: list[PlannedChange]
    tensors: dict[str, list[ChangedFile]]
    """The files of each tensor by name, whose checksums are still empty."""


class ChangedPiece(NamedTuple):
    """The changed rows that a server reads from a file in a restore."""

    name: str
    """The tensor's name."""
    shard: int
    unit: int
    file: str
    """The file's name."""
    indices: str
    """The name of the file of indices."""
    skips: tuple[int, int]
    """Lengths of the headers of both files in bytes."""
    numbers: tuple[int, int, int, int]
    """First row and stride of the file's indices, and of the server's rows."""


class FilePiece(NamedTuple):
    """The rows that a server reads from a file in a restore."""

    name: str
    """The tensor's name."""
    shard: int
    unit: int
    file: str
    """The file's name."""
    skip: int
    """Length of the file's header in bytes."""
    rows: SharedRows


def plan(places: StateMap, shards: Sequence[ShardParts], most: int) -> dict[str, list[PlannedFile]]:
    """Return the files of each tensor that is large enough, by name; the other tensors pass through the chief.

    Args:
        places: the map of the tensors to the shards' parts.
        shards: every shard's parts.
        most: see `ShardParts.units`.
    """
    cut = [
        {unit.numbers[0]: number for number, unit in enumerate(shard.units(most)) if unit.is_cut} for shard in shards
    ]
    found: dict[str, list[PlannedFile]] = {}
    for name, spans in places.spans.items():
        own = [span for span in spans if span.size]
        size = sum(span.size for span in own) * np.dtype(places.entries[name].dtype).itemsize
        if size < SMALL * len(spans) or any(span.part not in cut[span.shard] for span in own):
            continue
        found[name] = []
        for span in own:
            found[name] += _of_span(span, cut[span.shard][span.part], shards[span.shard].parts[span.part].width, places)
    return found


def changing(planned: Collection[str], places: StateMap, shards: Sequence[ShardParts]) -> list[str]:
    """Return the planned tensors of which an incremental save writes the changed rows only."""
    return [
        name
        for name in planned
        if all(span.part in shards[span.shard].table_parts for span in places.spans[name] if span.size)
    ]


def plan_changes(
    names: Collection[str],
    places: StateMap,
    shards: Sequence[ShardParts],
    counts: Sequence[Sequence[int]],
    copy: int,
) -> PlannedChanges:
    """Return the files of changed rows.

    Args:
        names: the tensors, see `changing`.
        places: the map of the tensors to the shards' parts.
        shards: every shard's parts.
        counts: the number of changed rows of each table on every shard.
        copy: the name of the servers' copy. No other save's files have the same names.
    """
    of_tables: dict[tuple[int, int], list[tuple[str, Span]]] = {}
    for name in names:
        for span in places.spans[name]:
            if span.size:
                of_tables.setdefault((span.shard, shards[span.shard].table_parts[span.part]), []).append((name, span))
    files, tensors = list[PlannedChange](), {name: list[ChangedFile]() for name in names}
    for (shard, table), own in of_tables.items():
        widths = {span.part: shards[shard].parts[span.part].width for _, span in own}
        largest = max(widths[span.part] * np.dtype(places.entries[name].dtype).itemsize for name, span in own)
        length = max(1, FILE_BYTES // largest)
        for begin in range(0, counts[shard][table], length):
            rows, end = min(length, counts[shard][table] - begin), f"changed-{copy:x}-{begin}.npy"
            indices = PlannedChange(shard, table, None, begin, rows, f"ps-{shard}-rows-{table}-{end}")
            files.append(indices)
            for name, span in own:
                dtype, width = places.entries[name].dtype, widths[span.part]
                file = PlannedChange(
                    shard, table, span.part, begin, rows, f"ps-{shard}-{span.part}-{end}", dtype, width
                )
                files.append(file)
                tensors[name].append(ChangedFile(file.name, indices.name, span.first, span.stride, rows, "", ""))
    return PlannedChanges(files, tensors)


def _size(header: bytes, rows: int, width: int, dtype: str) -> int:
    """Return the size of a file of rows in bytes."""
    return len(header) + rows * width * np.dtype(dtype).itemsize


def _of_span(span: Span, unit: int, width: int, places: StateMap) -> Iterator[PlannedFile]:
    dtype = places.entries[span.name].dtype
    length = max(1, FILE_BYTES // (width * np.dtype(dtype).itemsize))
    first = span.first if span.stride else span.first // width
    stride, low, total = span.stride or 1, span.begin // width, span.size // width
    for begin in range(0, total, length):
        rows = min(length, total - begin)
        window = ReadWindow(span.shard, unit, low + begin, low + begin + rows)
        name = f"ps-{span.shard}-{span.part}-{window.begin}.npy"
        yield PlannedFile(window, PartFile(name, first + stride * begin, stride, rows, ""), dtype, width)
