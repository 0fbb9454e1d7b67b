"""Notes on a TFJob's fields without an identical counterpart."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum


class NoteKind(StrEnum):
    """The result for a field, the most urgent first."""

    REFUSED = "refused"
    """TFJob would reject the field, or it cannot be read. The TFJob is not converted until it is changed."""
    NONE = "no counterpart"
    """The field is left out, or the API server will reject it. The user must decide."""
    DIFFERENT = "behaves differently"
    CHANGED = "changed"
    """The field is written differently, or left out because it has no effect. The job's behaviour stays the same."""


@dataclass(frozen=True)
class Note:
    """A note on one field."""

    path: str
    """Path of the TFJob's field, such as spec.runPolicy.schedulingPolicy.queue. The note covers all fields below it."""
    kind: NoteKind
    message: str
    """The result and its reason."""
    todo: str = ""
    """The user's next action; empty without one."""

    @property
    def missing(self) -> bool:
        """Whether the field has no counterpart."""
        return self.kind is NoteKind.NONE

    @property
    def refused(self) -> bool:
        """Whether the note prevents the conversion."""
        return self.kind is NoteKind.REFUSED


def lines(notes: Iterable[Note]) -> list[str]:
    """Return the notes as lines. Equal notes on several fields, such as those of every role, share a line."""
    paths: dict[tuple[NoteKind, str, str], list[str]] = {}
    for note in notes:
        paths.setdefault((note.kind, note.message, note.todo), []).append(note.path)
    return [
        " ".join(f"{kind}: {', '.join(where)}{': ' if any(where) else ''}{message} {todo}".split())
        for kind in NoteKind
        for (noted, message, todo), where in paths.items()
        if noted is kind
    ]


def worst_first(notes: Iterable[Note]) -> list[Note]:
    """Return the notes in the order of `NoteKind`."""
    order = list(NoteKind)
    return sorted(notes, key=lambda note: order.index(note.kind))


@dataclass
class Notes:
    """Collects notes in the order of their discovery."""

    found: list[Note] = field(default_factory=list)
    kept: dict[str, list[int]] = field(default_factory=dict)
    """For each list that lost items, by its path: the indices that the remaining items had in the TFJob."""

    def original(self, path: str) -> str:
        """Return the path in the TFJob of a field of the job, with the former indices of items."""
        for place, indices in self.kept.items():
            if (rest := path.removeprefix(f"{place}[")) != path:
                index, _, below = rest.partition("]")
                return f"{place}[{indices[int(index)]}]{below}"
        return path

    def refused(self, path: str, message: str, todo: str = "") -> None:
        """Note a field that prevents the conversion."""
        self.found.append(Note(path, NoteKind.REFUSED, message, todo))

    def changed(self, path: str, message: str, todo: str = "") -> None:
        """Note a field that is written differently."""
        self.found.append(Note(path, NoteKind.CHANGED, message, todo))

    def different(self, path: str, message: str, todo: str = "") -> None:
        """Note a field that behaves differently."""
        self.found.append(Note(path, NoteKind.DIFFERENT, message, todo))

    def none(self, path: str, message: str, todo: str = "") -> None:
        """Note a field without a counterpart."""
        self.found.append(Note(path, NoteKind.NONE, message, todo))
