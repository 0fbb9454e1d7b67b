"""Names and the order of checkpoints, and which of them are superfluous.

A checkpoint is named after its step and the folder's term (see `fencing`) of the chief that wrote it. No two chiefs
write one name, so a chief that was stopped, and continues after another one has taken over, can neither replace nor
delete what the other one has written.

Pure: no file system.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

TEMPORARY: Final = ".tmp-"
_NAME: Final = re.compile(r"ckpt-(\d{10})(?:-term-([1-9]\d{0,17}))?", re.ASCII)
_MARKER: Final = re.compile(r"term-([1-9]\d{0,17})", re.ASCII)
_TEMPORARY: Final = re.compile(rf"{re.escape(TEMPORARY)}([1-9]\d{{0,17}})-", re.ASCII)
_ASIDE: Final = re.compile(rf"{re.escape(TEMPORARY)}(?:[1-9]\d{{0,17}}-)?old-(ckpt-.*)", re.ASCII)


@dataclass(frozen=True, order=True)
class Key:
    """Identifies a checkpoint; ordered by term, then by step."""

    term: int
    """The folder's, 0 if written by a version that had none."""
    step: int

    @property
    def name(self) -> str:
        """The folder's name; names of one term sort like steps."""
        return f"ckpt-{self.step:010d}" + (f"-term-{self.term}" if self.term else "")


def key_of(name: str) -> Key | None:
    """The checkpoint of that name, None for other folders."""
    match = _NAME.fullmatch(name)
    return Key(int(match[2] or 0), int(match[1])) if match else None


def superfluous(keys: Iterable[Key], *, written: Key, keep: int) -> list[Key]:
    """Which checkpoints to delete after `written` was: all but the `keep` newest, and none of a higher term.

    Those of later steps belong to a history that training was set back from, so they go too.
    """
    ordered = sorted({key for key in keys if key.term <= written.term}, reverse=True)
    kept = [key for key in ordered if key.step <= written.step][:keep]
    return sorted(set(ordered) - set(kept))


def marker(term: int) -> str:
    """The name of the folder's marker of a term."""
    return f"term-{term}"


def term_of_marker(name: str) -> int | None:
    """The term of a marker, None for other names."""
    match = _MARKER.fullmatch(name)
    return int(match[1]) if match else None


def temporary(term: int, rest: str) -> str:
    """A name that counts as nothing, and that chiefs of lower terms leave alone."""
    return f"{TEMPORARY}{term}-{rest}"


def aside(term: int, name: str) -> str:
    """A name that counts as the checkpoint `name` as long as there is none of that name."""
    return temporary(term, f"old-{name}")


def term_of_temporary(name: str) -> int | None:
    """The term in a temporary name, 0 if it has none; None for other names."""
    match = _TEMPORARY.match(name)
    return int(match[1]) if match else 0 if name.startswith(TEMPORARY) else None


def set_aside(name: str) -> Key | None:
    """The checkpoint that a temporary name stands for."""
    match = _ASIDE.fullmatch(name)
    return key_of(match[1]) if match else None
