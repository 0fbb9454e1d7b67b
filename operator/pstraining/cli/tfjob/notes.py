"""Notes on fields that did not become the same field here."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum


class What(StrEnum):
    """What has become of a field; what needs a decision most comes first."""

    REFUSED = "refused"
    """TFJob would not take it, or it cannot be read: no job is made until it is changed."""
    NONE = "no counterpart"
    """It is left out, or the API server will refuse it: it needs a decision."""
    DIFFERENT = "behaves differently"
    CHANGED = "changed"
    """It is written in another way, or left out since it has no effect; the job does the same."""


@dataclass(frozen=True)
class Note:
    """One such field."""

    path: str
    """Of the TFJob's field, as in spec.runPolicy.schedulingPolicy.queue; of all below it, too."""
    what: What
    said: str
    """What happened, and why."""
    todo: str = ""
    """What the user may or must do; empty if nothing."""

    @property
    def missing(self) -> bool:
        """Whether the field has no counterpart."""
        return self.what is What.NONE

    @property
    def refused(self) -> bool:
        """Whether no job can be made."""
        return self.what is What.REFUSED


def lines(notes: Iterable[Note]) -> list[str]:
    """The notes for people, a line each; those that say the same of several fields, as of every role's, are one."""
    paths: dict[tuple[What, str, str], list[str]] = {}
    for note in notes:
        paths.setdefault((note.what, note.said, note.todo), []).append(note.path)
    return [
        " ".join(f"{what}: {', '.join(where)}{': ' if any(where) else ''}{said} {todo}".split())
        for kind in What
        for (what, said, todo), where in paths.items()
        if what is kind
    ]


def worst_first(notes: Iterable[Note]) -> list[Note]:
    """The notes in the order of `What`."""
    order = list(What)
    return sorted(notes, key=lambda note: order.index(note.what))


@dataclass
class Notes:
    """Collects them, in the order of their discovery."""

    found: list[Note] = field(default_factory=list)

    def refused(self, path: str, said: str, todo: str = "") -> None:
        """No job can be made before it is changed."""
        self.found.append(Note(path, What.REFUSED, said, todo))

    def changed(self, path: str, said: str, todo: str = "") -> None:
        """It is written in another way."""
        self.found.append(Note(path, What.CHANGED, said, todo))

    def different(self, path: str, said: str, todo: str = "") -> None:
        """It behaves differently."""
        self.found.append(Note(path, What.DIFFERENT, said, todo))

    def none(self, path: str, said: str, todo: str = "") -> None:
        """It has no counterpart."""
        self.found.append(Note(path, What.NONE, said, todo))
