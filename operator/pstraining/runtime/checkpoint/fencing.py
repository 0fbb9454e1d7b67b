"""Fencing of chiefs by the folder's terms: only the chief with the highest term of a folder may write to it.

Every chief that opens a folder takes the folder's next term with a marker `term-<n>`. A marker is a folder that is
written under another name and renamed to a free one, which succeeds for one chief only. A chief that takes a term has
therefore read all markers before it. A chief takes no term if a later chief of the same job already has one.

The folder's term is not the job's, which starts at 1 again when a job is recreated on the same folder.
"""

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from pstraining.runtime.checkpoint import files, naming
from pstraining.runtime.checkpoint.state import SupersededError

CHIEF: Final = "chief.json"
"""A marker's only file, which names the chief that has the term."""


@dataclass(frozen=True)
class Writer:
    """A chief's identity in its marker."""

    job: str = ""
    """The job's uid; empty if unknown."""
    term: int | None = None
    """The chief's term in its job; None in a job whose chief has no terms."""

    @property
    def has_order(self) -> bool:
        """Whether job and term are known, so that this chief can be ordered among the job's chiefs."""
        return bool(self.job) and self.term is not None

    def precedes(self, other: "Writer") -> bool:
        """Return whether the other chief is a later one of the same job."""
        return self.has_order and other.has_order and self.job == other.job and self.term < other.term  # type: ignore[operator]


@dataclass(frozen=True)
class FolderTerm:
    """A term of a folder that a chief has taken."""

    folder: Path
    number: int

    def check(self) -> None:
        """Check that this is the folder's highest term.

        Raises:
            SupersededError: the folder has a higher term.
        """
        newest = max(markers(self.folder), default=0)
        if newest > self.number:
            raise superseded(self.folder, newest)


def superseded(folder: Path, newest: int) -> SupersededError:
    """Return the error for a chief whose folder has the term `newest` of another chief."""
    return superseded_by(_read(folder / naming.marker(newest)), folder, newest)


def superseded_by(other: Writer, place: object, newest: int) -> SupersededError:
    """Return the error for a chief whose storage, at `place`, has the term `newest` of another chief."""
    name = f"term {other.term} of job {other.job}" if other.has_order else "another chief"
    return SupersededError(f"this chief's term is over: {name} now owns {place} ({naming.marker(newest)})")


def markers(folder: Path) -> list[int]:
    """Return the terms of all markers in a folder."""
    found = (naming.term_of_marker(name) for name in os.listdir(folder))
    return [number for number in found if number is not None]


def decide(taken: Mapping[int, Writer], writer: Writer, written: int = 0) -> int | None:
    """Return the term that a chief has to take: the newest one if this chief has it already, or else the next one.

    Pure.

    Args:
        taken: the chief of each term that is taken.
        writer: the chief.
        written: the highest term of a checkpoint. Its marker may be gone, or left behind when checkpoints were copied.

    Returns:
        None if the chief is superseded.
    """
    newest = max(taken, default=0)
    if any(writer.precedes(other) for other in taken.values()):
        return None
    if writer.has_order and writer in taken.values():  # the chief's process restarted
        if taken[newest] != writer:
            return None
        if newest >= written:
            return newest
    return max(newest, written) + 1  # checkpoints of lower terms than `written` would count as older


def take(folder: Path, writer: Writer) -> FolderTerm:
    """Take the folder's next term; a restarted process of the same chief gets its former term.

    Raises:
        SupersededError: a later chief of this job has a term, or another chief took one after this chief's.
        OSError: the marker could not be written.
    """
    while True:
        taken = {number: _read(folder / naming.marker(number)) for number in markers(folder)}
        number = decide(taken, writer, naming.written_term(os.listdir(folder)))
        if number is None:
            raise superseded(folder, max(taken))
        if number in taken or _create(folder, number, writer):
            break
    for former, other in taken.items():  # one marker of each job is enough to recognize its earlier chiefs
        if former < number and (other.job == writer.job or not other.has_order):
            files.remove(folder / naming.marker(former))
    return FolderTerm(folder, number)


def _create(folder: Path, number: int, writer: Writer) -> bool:
    """Create a marker in one operation; return False if another chief has that term or a higher one."""
    final = folder / naming.marker(number)
    new = folder / naming.temporary(number, f"marker-{secrets.token_hex(4)}")
    content = json.dumps(asdict(writer)).encode()
    try:
        new.mkdir()
        files.write_durably(new / CHIEF, lambda file: file.write(content))
        files.sync_folder(new)
        os.rename(new, final)  # fails if the name is taken: that folder is not empty
        files.sync_folder(folder)
    except OSError:
        files.remove(new)
        with suppress(OSError):
            if max(markers(folder), default=0) >= number:
                return False
        raise
    return max(markers(folder)) == number


def _read(marker: Path) -> Writer:
    try:
        return writer_of((marker / CHIEF).read_bytes())
    except OSError:  # removed meanwhile
        return Writer()


def writer_of(marker: bytes) -> Writer:
    """Return the chief that a marker names; one without a name if the marker is damaged."""
    try:
        content = json.loads(marker.decode())
        job, term = content["job"], content["term"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return Writer()
    return Writer(str(job), term if isinstance(term, int) else None)
