"""The folder's terms: of several chiefs on one folder, the one that opened it last rules.

Every chief that opens a folder takes the folder's next term by a marker `term-<n>`, which appears whole and once: a
folder with its content, renamed to a name that is free. So terms are taken one after the other, and a chief that takes
one has seen all before it. A chief of a job that a later chief of the same job has preceded takes none.

The folder's term is not the job's, which begins at 1 again when a job is created again on the same folder.
"""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pstraining.runtime.checkpoint import files, naming
from pstraining.runtime.checkpoint.state import SupersededError

CHIEF: Final = "chief.json"
"""A marker's only file: whose it is."""


@dataclass(frozen=True)
class Writer:
    """A chief, as it is named in its marker."""

    job: str = ""
    """The job's uid; empty if unknown."""
    term: int | None = None
    """The job's; None in a job whose chief has no terms."""

    @property
    def has_order(self) -> bool:
        """Whether it can be distinguished from other chiefs of its job, and ordered."""
        return bool(self.job) and self.term is not None

    def precedes(self, other: "Writer") -> bool:
        """Whether the other one is a later chief of the same job."""
        return self.has_order and other.has_order and self.job == other.job and self.term < other.term  # type: ignore[operator]


@dataclass(frozen=True)
class FolderTerm:
    """A chief's term of a folder."""

    folder: Path
    number: int

    def check(self) -> None:
        """Raise SupersededError if the folder has a higher term."""
        newest = max(markers(self.folder), default=0)
        if newest > self.number:
            raise superseded(self.folder, newest)


def superseded(folder: Path, newest: int) -> SupersededError:
    """The error of a chief that finds another one's term."""
    other = _read(folder / naming.marker(newest))
    name = f"term {other.term} of job {other.job}" if other.has_order else "another one"
    return SupersededError(f"this chief's term is over: {name} has taken {folder} over ({naming.marker(newest)})")


def markers(folder: Path) -> list[int]:
    """The folder's terms that have a marker."""
    found = (naming.term_of_marker(name) for name in os.listdir(folder))
    return [number for number in found if number is not None]


def decide(taken: Mapping[int, Writer], writer: Writer) -> int | None:
    """Which term a chief has to take: the last one if that is its own already, or the next; None: it is superseded.

    Pure.
    """
    newest = max(taken, default=0)
    if any(writer.precedes(other) for other in taken.values()):
        return None
    if writer.has_order and writer in taken.values():  # its process was started again
        return newest if taken[newest] == writer else None
    return newest + 1


def take(folder: Path, writer: Writer) -> FolderTerm:
    """Take the folder's next term; what the same chief's process had before is taken up.

    Raises:
        SupersededError: a later chief of this job has one, or another job's if this chief had one already.
        OSError: it could not be written.
    """
    while True:
        taken = {number: _read(folder / naming.marker(number)) for number in markers(folder)}
        number = decide(taken, writer)
        if number is None:
            raise superseded(folder, max(taken))
        if number in taken or _create(folder, number, writer):
            break
    for former, other in taken.items():  # one of each job is enough to know its later chiefs from its earlier ones
        if former < number and (other.job == writer.job or not other.has_order):
            files.remove(folder / naming.marker(former))
    return FolderTerm(folder, number)


def _create(folder: Path, number: int, writer: Writer) -> bool:
    """Create a whole marker; return False if another chief has that term or a higher one."""
    final = folder / naming.marker(number)
    new = folder / naming.temporary(number, f"marker-{secrets.token_hex(4)}")
    content = json.dumps(asdict(writer)).encode()
    try:
        new.mkdir()
        files.write_durably(new / CHIEF, lambda file: file.write(content))
        files.sync_folder(new)
        os.rename(new, final)  # fails if the name is taken, for the folder there is not empty
        files.sync_folder(folder)
    except OSError:
        files.remove(new)
        if max(markers(folder), default=0) >= number:
            return False
        raise
    return max(markers(folder)) == number


def _read(marker: Path) -> Writer:
    try:
        content: Any = json.loads((marker / CHIEF).read_text(encoding="utf-8"))
        job, term = content["job"], content["term"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # removed meanwhile, or damaged
        return Writer()
    return Writer(str(job), term if isinstance(term, int) else None)
