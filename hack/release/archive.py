"""Reproducible tar.gz files: their bytes depend only on the entries' names, contents and modes, and on one time."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    """A file in an archive."""

    content: bytes
    executable: bool = False


def write(path: Path, entries: Mapping[str, Entry], epoch: int) -> None:
    """Write an archive of files that root owns, sorted by name."""
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, entry in sorted(entries.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(entry.content), epoch
            info.mode = 0o755 if entry.executable else 0o644
            info.uname = info.gname = "root"
            archive.addfile(info, io.BytesIO(entry.content))


def sha256(path: Path) -> str:
    """Return the hash of a file in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
