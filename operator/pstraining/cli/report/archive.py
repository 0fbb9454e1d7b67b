"""A tar.gz whose bytes depend on its contents alone: the same files in the same order are the same archive."""

import gzip
import io
import tarfile
from collections.abc import Iterable
from typing import IO


def write_archive(out: IO[bytes], root: str, files: Iterable[tuple[str, str]], moment: int) -> None:
    """Write files into an archive, as they come.

    Args:
        out: where the archive is written.
        root: the folder in the archive that holds all files.
        files: path below the root and text of each, in their order.
        moment: the time of all files, in seconds since 1970.
    """
    # gzip's own time and name would differ from one run to the next.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path, text in files:
            content = text.encode(errors="replace")
            entry = tarfile.TarInfo(f"{root}/{path}")
            entry.size, entry.mtime, entry.mode = len(content), moment, 0o644
            archive.addfile(entry, io.BytesIO(content))
