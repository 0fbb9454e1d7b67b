"""Checksums of files: FarmHash's Fingerprint64, which TensorFlow computes on a parameter server as well as here.

TensorFlow has no operation for CRC32C alone. Fingerprint64 is the same on all platforms and in all versions.
"""

from collections.abc import Callable, Mapping

from pstraining.runtime.checkpoint.errors import CorruptCheckpointError
from pstraining.runtime.checkpoint.ports.part_place import PartPlace

READS = 2
"""Maximum number of times that a file is read."""
METHOD = "farmhash64"
"""TensorFlow's name of the checksum."""

FindDamaged = Callable[[PartPlace, Mapping[str, str]], list[str]]
"""Returns the files of a place that are unreadable or do not have the given checksums."""


def find_damaged(place: PartPlace, expected: Mapping[str, str]) -> list[str]:
    """Return the files that are unreadable or do not have the given checksums.

    Raises:
        OSError: the place does not answer at present.
    """
    # Each is read up to twice: damage on the way from an object store is not damage of the object.
    return [
        name for name, checksum in expected.items() if all(_checksum(place, name) != checksum for _ in range(READS))
    ]


def _checksum(place: PartPlace, name: str) -> str:
    """Return a file's checksum; empty if the file is unreadable."""
    try:
        return fingerprint(place.content(name))
    except CorruptCheckpointError:
        return ""


def fingerprint(content: bytes) -> str:
    """Return the checksum of a file's content."""
    import tensorflow as tf  # only here: most checkpoints have no such files

    with tf.device("CPU:0"):
        return as_text(tf.raw_ops.Fingerprint(data=tf.constant([content]), method=METHOD).numpy())


def as_text(fingerprint: bytes | object) -> str:
    """Return a fingerprint in hexadecimal digits, as the manifest has it."""
    return bytes(memoryview(fingerprint)).hex()  # type: ignore[arg-type]
