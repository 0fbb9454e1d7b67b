"""Names of checkpoints, their order, and the choice of superfluous ones.

A checkpoint is named after its step and the folder's term (see `fencing`) of the chief that wrote it. No two chiefs
write the same name. A chief that was suspended, and resumes after another one took the folder, therefore neither
replaces nor deletes the other's checkpoints.

Pure: no file system.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

TEMPORARY: Final = ".tmp-"
_NAME: Final = re.compile(r"ckpt-(\d{10}|[1-9]\d{10,15})(?:-term-([1-9]\d{0,17}))?", re.ASCII)
_MARKER: Final = re.compile(r"term-([1-9]\d{0,17})", re.ASCII)
_TEMPORARY: Final = re.compile(rf"{re.escape(TEMPORARY)}([1-9]\d{{0,17}})-", re.ASCII)
_ASIDE: Final = re.compile(rf"{re.escape(TEMPORARY)}(?:[1-9]\d{{0,17}}-)?old-(ckpt-.*)", re.ASCII)


@dataclass(frozen=True, order=True)
class Key:
    """Identifies a checkpoint; ordered by term, then by step."""

    term: int
    """The folder's term; 0 if written by a version without terms."""
    step: int

    @property
    def name(self) -> str:
        """The folder's name. Within a term, names sort as steps of up to ten digits do."""
        return f"ckpt-{self.step:010d}" + (f"-term-{self.term}" if self.term else "")


def key_of(name: str) -> Key | None:
    """Return the checkpoint of this name; None for other folders."""
    match = _NAME.fullmatch(name)
    return Key(int(match[2] or 0), int(match[1])) if match else None


def superfluous(keys: Iterable[Key], *, written: Key, keep: int) -> list[Key]:
    """Return the checkpoints to delete after `written`: all but the `keep` newest, and none of a higher term.

    Checkpoints of later steps are deleted as well: training was restored from an earlier step.
    """
    ordered = sorted({key for key in keys if key.term <= written.term}, reverse=True)
    kept = [key for key in ordered if key.step <= written.step][:keep]
    return sorted(set(ordered) - set(kept))


def marker(term: int) -> str:
    """Return the name of a term's marker."""
    return f"term-{term}"


def term_of_marker(name: str) -> int | None:
    """Return the term of a marker; None for other names."""
    match = _MARKER.fullmatch(name)
    return int(match[1]) if match else None


def temporary(term: int, rest: str) -> str:
    """Return a temporary name, which readers ignore and chiefs of lower terms do not delete."""
    return f"{TEMPORARY}{term}-{rest}"


def aside(term: int, name: str) -> str:
    """Return the temporary name of a checkpoint during its replacement; readers use it while `name` is missing."""
    return temporary(term, f"old-{name}")


def term_of_temporary(name: str) -> int | None:
    """Return the term in a temporary name, 0 without a term; None for other names."""
    match = _TEMPORARY.match(name)
    return int(match[1]) if match else 0 if name.startswith(TEMPORARY) else None


def set_aside(name: str) -> Key | None:
    """Return the checkpoint that was set aside under a temporary name; None for other names."""
    match = _ASIDE.fullmatch(name)
    return key_of(match[1]) if match else None


def written_term(names: Iterable[str]) -> int:
    """Return the highest term of a checkpoint among these names; 0 without one."""
    found = (key_of(name) or set_aside(name) for name in names)
    return max((key.term for key in found if key), default=0)
