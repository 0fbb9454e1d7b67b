"""The manifest of a checkpoint, `metadata.json`: written last, it says what the other files are.

Format 2 has the tensors that are in files of their own, and a checksum of itself. Format 1 has neither.
Pure: no file system.
"""

import json
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pstraining.runtime.checkpoint.errors import CorruptCheckpointError
from pstraining.runtime.checkpoint.naming import Key
from pstraining.runtime.checkpoint.parts import Parts
from pstraining.runtime.checkpoint.state import Entry
from pstraining.runtime.model.partition import Layout

NAME: Final = "metadata.json"
FORMAT: Final = 2
_UNSEALED: Final = 1
"""The format without a checksum."""


class Manifest(NamedTuple):
    """What a checkpoint consists of."""

    tensors: Mapping[str, list[Any]]
    """Dtype and shape of every tensor by name."""
    parts: Mapping[str, Parts]
    """The files of those that are in files of their own."""


def encode(key: Key, term: int, entries: Mapping[str, Entry], parts: Mapping[str, Parts], layout: Layout) -> bytes:
    """Return a manifest's content.

    Args:
        key: of the checkpoint.
        term: the chief's, as its job counts; for people.
        entries: every tensor by name.
        parts: the files of those that are in files of their own.
        layout: of the state on the servers, for people and tools; a restore does not need it.
    """
    content = {
        "format": FORMAT,
        "step": key.step,
        "term": term,
        "folderTerm": key.term,
        "arrays": describe(entries),
        "parts": {name: own.describe() for name, own in parts.items()},
        "layout": _describe(layout),
    }
    return json.dumps(sealed(content), indent=1).encode()


def decode(text: str, key: Key) -> Manifest:
    """Return what a manifest says.

    Raises:
        CorruptCheckpointError: it is damaged, or of another checkpoint.
        Exception: the same; the type depends on what the damage is.
    """
    content = json.loads(text)
    if content["format"] not in (_UNSEALED, FORMAT):
        raise CorruptCheckpointError(f"format {content['format']} is not known")
    if content["format"] != _UNSEALED and sealed(content) != content:
        raise CorruptCheckpointError("the metadata has another checksum than was written")
    if (content.get("folderTerm", 0), content["step"]) != (key.term, key.step):
        raise CorruptCheckpointError(f"the metadata is of step {content['step']}, {content.get('folderTerm')}")
    return Manifest(content["arrays"], {name: Parts.of(own) for name, own in content.get("parts", {}).items()})


def describe(entries: Mapping[str, Entry]) -> dict[str, list[Any]]:
    """Dtype and shape by name."""
    return {name: [entry.dtype, list(entry.shape)] for name, entry in entries.items()}


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest with the checksum of all the rest of it."""
    rest = {name: value for name, value in content.items() if name != "checksum"}
    return rest | {"checksum": zlib.crc32(json.dumps(rest, sort_keys=True).encode())}


def _describe(layout: Layout) -> list[dict[str, Any]]:
    return [
        {
            "ps": segment.ps,
            "group": segment.group,
            "dtype": segment.dtype,
            "pieces": [[layout.tensors[slice_.tensor].path, slice_.begin, slice_.end] for slice_ in segment.slices],
        }
        for segment in layout.segments
    ]
