"""Writes a reproducible tar.gz: the same files in the same order have the same bytes."""

import gzip
import io
import tarfile
from collections.abc import Iterable
from typing import IO


def write_archive(out: IO[bytes], root: str, files: Iterable[tuple[str, str]], moment: int) -> None:
    """Write files into an archive, as they arrive.

    Args:
        out: the archive's stream.
        root: the folder of all files in the archive.
        files: pairs of a path below the root and a text, in order.
        moment: the time of all files, in seconds since 1970.
    """
    # gzip's header would otherwise contain the current time and the name.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path, text in files:
            content = text.encode(errors="replace")
            entry = tarfile.TarInfo(f"{root}/{path}")
            entry.size, entry.mtime, entry.mode = len(content), moment, 0o644
            archive.addfile(entry, io.BytesIO(content))
