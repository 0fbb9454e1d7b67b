"""Plan of the files that parameter servers write in a save, and of the rows that each server reads in a restore.

Pure: no file system, no TensorFlow operation.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from pstraining.runtime.checkpoint.parts import FILE_BYTES, PartFile, SharedRows, header
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
    def header(self) -> bytes:
        """The file's NumPy header."""
        return header(self.dtype, self.file.rows, self.width)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self.header) + self.file.rows * self.width * np.dtype(self.dtype).itemsize


class FilePiece(NamedTuple):
    """The rows that a server reads from a file in a restore."""

    name: str
    """The tensor's name."""
    shard: int
    unit: int
    path: Path
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
