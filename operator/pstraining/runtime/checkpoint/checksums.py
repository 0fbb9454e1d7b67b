"""Checksums of files: FarmHash's Fingerprint64, which TensorFlow computes on a parameter server as well as here.

TensorFlow has no operation for CRC32C alone. Fingerprint64 is the same on all platforms and in all versions.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

METHOD = "farmhash64"
"""TensorFlow's name of the checksum."""

FindDamaged = Callable[[Mapping[Path, str]], list[Path]]
"""Returns the files that are unreadable or do not have the given checksums."""


def find_damaged(expected: Mapping[Path, str]) -> list[Path]:
    """Return the files that are unreadable or do not have the given checksums."""
    return [path for path, checksum in expected.items() if _checksum(path) != checksum]


def _checksum(path: Path) -> str:
    """Return a file's checksum; empty if the file is unreadable."""
    import tensorflow as tf  # only here: most checkpoints have no such files

    try:
        content = path.read_bytes()
    except OSError:
        return ""
    with tf.device("CPU:0"):
        return as_text(tf.raw_ops.Fingerprint(data=tf.constant([content]), method=METHOD).numpy())


def as_text(fingerprint: bytes | object) -> str:
    """Return a fingerprint in hexadecimal digits, as the manifest has it."""
    return bytes(memoryview(fingerprint)).hex()  # type: ignore[arg-type]
