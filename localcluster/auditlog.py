"""A reader of the API server's audit log, which is rotated by renaming."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mark:
    """A position in the log."""

    inode: int
    offset: int


class AuditFiles:
    """The log's files; the API server writes to the newest one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def mark(self) -> Mark:
        """Return the current end of the log."""
        found = self._path.stat()
        return Mark(found.st_ino, found.st_size)

    def lines(self, since: Mark | None = None) -> Iterator[bytes]:
        """Yield complete lines, one JSON object each: those after a mark, or those of all kept files.

        Raises:
            LookupError: the file with the mark was rotated away.
        """
        files = sorted(self._path.parent.glob(f"{self._path.stem}*{self._path.suffix}"), key=_written)
        inodes = [file.stat().st_ino for file in files]
        first, offset = 0, 0
        if since is not None:
            if since.inode not in inodes:
                raise LookupError("the audit log was rotated away: write less between a mark and reading from it")
            first, offset = inodes.index(since.inode), since.offset
        for file in files[first:]:
            with file.open("rb") as log:
                log.seek(offset)
                yield from (line for line in log if line.endswith(b"\n"))
            offset = 0


def _written(file: Path) -> float:
    return file.stat().st_mtime
