"""The objects in what `-f` names, read as kubectl reads them: several documents, Lists, YAML or JSON."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pstraining.api import names
from pstraining.cli.errors import CommandError
from pstraining.cli.reading.sources import sources
from pstraining.cli.reading.texts import Part, parts


@dataclass(frozen=True)
class Document:
    """One document of a file."""

    file: str
    number: str
    """Which of the file's documents, from 1; of a List also which item of it, as in 2.1."""
    body: dict[str, Any]
    text: str = ""
    """As it stands in the file; empty where it is an item of a List, or JSON."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """Where the fields of its first level stand, from 1; empty where the text is."""

    @property
    def kind(self) -> str:
        """The object's kind."""
        return str(self.body.get("kind") or "no kind")

    @property
    def name(self) -> str:
        """The object's name; empty if it has none."""
        metadata = self.body.get("metadata")
        found = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else None
        return str(found or "")

    @property
    def is_job(self) -> bool:
        """Whether it is, or was perhaps meant to be, a PSTrainingJob."""
        group = str(self.body.get("apiVersion")).partition("/")[0]
        return self.kind.lower() == names.KIND.lower() or group == names.GROUP

    def __str__(self) -> str:
        """What it is and where, for people."""
        what = f"{self.kind} {self.name}".rstrip()
        return f"{self.file}: document {self.number} ({what})"


def documents(files: Iterable[str], recursive: bool = False) -> list[Document]:
    """All documents of files but empty ones, in order.

    Args:
        files: the values of `-f`.
        recursive: whether the folders in a folder are read, too.

    Raises:
        CommandError: something cannot be read, with all that cannot.
    """
    found = list(read(files, recursive))
    problems = [one for one in found if isinstance(one, CommandError)]
    if problems:
        raise CommandError("\n".join(map(str, problems)))
    return [one for one in found if isinstance(one, Document)]


def read(files: Iterable[str], recursive: bool = False) -> Iterator[Document | CommandError]:
    """All documents of files but empty ones, in order; in place of what cannot be read, why."""
    for source in sources(files, recursive):
        if isinstance(source, CommandError):
            yield source
        else:
            yield from parsed(source.name, source.text)


def parsed(file: str, text: str) -> Iterator[Document | CommandError]:
    """The documents of a text; in place of one that cannot be read, why.

    Args:
        file: where it comes from, for messages.
        text: YAML or JSON.
    """
    for part in parts(file, text):
        if isinstance(part, Part):
            yield from _flat(file, str(part.number), part.body, part)
        else:
            yield part


def _flat(file: str, number: str, body: Any, part: Part | None) -> Iterator[Document | CommandError]:
    if not isinstance(body, dict):
        yield CommandError(f"{file}: document {number} is not a Kubernetes object, a mapping with apiVersion and kind")
        return
    items = body.get("items")
    if str(body.get("kind", "")).endswith("List") and isinstance(items, list):
        for index, item in enumerate(items, 1):
            yield from _flat(file, f"{number}.{index}", item, None)
    elif part is None:
        yield Document(file, number, body)
    else:
        yield Document(file, number, body, part.text, part.lines)
