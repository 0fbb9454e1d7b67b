"""The manifest of a checkpoint, `metadata.json`, which is written last and describes the other files.

Format 2 adds tensors in separate files, and the manifest's own checksum. Format 3 adds files of changed rows; a
checkpoint without them has format 2, which earlier versions read. Format 1 is still read.
Pure: no file system.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pstraining.runtime.checkpoint.errors import CorruptCheckpointError, UnusableCheckpointsError
from pstraining.runtime.checkpoint.naming import Key
from pstraining.runtime.checkpoint.parts import Parts
from pstraining.runtime.checkpoint.state import Entry
from pstraining.runtime.model.partition import Layout

NAME: Final = "metadata.json"
FORMAT: Final = 2
FORMAT_OF_CHANGES: Final = 3
"""The format of a checkpoint with files of changed rows, which earlier versions must not read without them."""
_UNSEALED: Final = 1
"""The format without a checksum."""


class FileSegment(NamedTuple):
    """A range of the file of tensors that is an object of its own in an object store."""

    size: int
    checksum: int
    """CRC-32."""


class Manifest(NamedTuple):
    """The contents of a checkpoint."""

    tensors: Mapping[str, list[Any]]
    """Dtype and shape of every tensor by name."""
    parts: Mapping[str, Parts]
    """The files of the tensors that have separate files, by the tensor's name."""
    segments: Sequence[FileSegment] = ()
    """The segments of the file of tensors in an object store, in order; none on a volume."""


def encode(
    key: Key,
    term: int,
    entries: Mapping[str, Entry],
    parts: Mapping[str, Parts],
    layout: Layout,
    segments: Sequence[FileSegment] = (),
) -> bytes:
    """Return a manifest's content.

    Args:
        key: the checkpoint's key.
        term: the chief's term in its job, for human readers.
        entries: dtype and shape of every tensor, by name.
        parts: the files of the tensors that have separate files, by the tensor's name.
        layout: the layout of the state on the servers, for human readers and tools; a restore does not need it.
        segments: the segments of the file of tensors in an object store.
    """
    content: dict[str, object] = {
        "format": FORMAT_OF_CHANGES if any(own.changes for own in parts.values()) else FORMAT,
        "step": key.step,
        "term": term,
        "folderTerm": key.term,
        "arrays": describe(entries),
        "parts": {name: own.describe() for name, own in parts.items()},
        "layout": _describe(layout),
    }
    if segments:
        content["segments"] = [list(segment) for segment in segments]
    return json.dumps(sealed(content), indent=1).encode()


def decode(text: str, key: Key) -> Manifest:
    """Return a manifest's content.

    Raises:
        CorruptCheckpointError: the manifest is damaged, or belongs to another checkpoint.
        UnusableCheckpointsError: a later version wrote it.
        Exception: the manifest is damaged; the type depends on the kind of damage.
    """
    content = json.loads(text)
    if content["format"] != _UNSEALED and sealed(content) != content:
        raise CorruptCheckpointError("the metadata does not match its checksum")
    if content["format"] not in (_UNSEALED, FORMAT, FORMAT_OF_CHANGES):
        raise UnusableCheckpointsError(
            f"the checkpoint of step {key.step} has format {content['format']}, of a later version of pstraining. "
            "Training from an earlier checkpoint would delete it: use an image with that version, or another folder"
        )
    if (content.get("folderTerm", 0), content["step"]) != (key.term, key.step):
        raise CorruptCheckpointError(
            f"the metadata belongs to step {content['step']} of term {content.get('folderTerm', 0)}"
        )
    parts = {name: Parts.of(own) for name, own in content.get("parts", {}).items()}
    return Manifest(content["arrays"], parts, [FileSegment(*own) for own in content.get("segments", ())])


def describe(entries: Mapping[str, Entry]) -> dict[str, list[object]]:
    """Return dtype and shape of each tensor by name, as the manifest has them."""
    return {name: [entry.dtype, list(entry.shape)] for name, entry in entries.items()}


def sealed(content: Mapping[str, object]) -> dict[str, object]:
    """Return a manifest with the checksum (CRC-32) of its other fields."""
    rest = {name: value for name, value in content.items() if name != "checksum"}
    return rest | {"checksum": zlib.crc32(json.dumps(rest, sort_keys=True).encode())}


def _describe(layout: Layout) -> list[dict[str, object]]:
    return [
        {
            "ps": segment.ps,
            "group": segment.group,
            "dtype": segment.dtype,
            "pieces": [[layout.tensors[slice_.tensor].path, slice_.begin, slice_.end] for slice_ in segment.slices],
        }
        for segment in layout.segments
    ]
