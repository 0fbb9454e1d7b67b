"""Kubernetes objects from the values of `-f`, read as kubectl does: multiple documents, Lists, YAML or JSON."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pstraining.api import names
from pstraining.cli.errors import CommandError
from pstraining.cli.reading.sources import sources
from pstraining.cli.reading.texts import Part, is_jsonnet, parts

SERVERS_OWN: Final = (
    *("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "selfLink", "managedFields"),
    "deletionGracePeriodSeconds",
)
"""Fields of metadata in exported manifests that only the API server writes."""
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""Annotation of exported manifests in which `kubectl apply` keeps the last file."""


@dataclass(frozen=True)
class Document:
    """One object of a manifest file."""

    file: str
    number: str
    """The document's number in the file, from 1. For an item of a List, the item's number follows, as in 2.1."""
    body: dict[str, Any]
    text: str = ""
    """The document's source; empty for JSON and for an item of a List."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """Line numbers, from 1, of the top-level fields; empty if `text` is."""

    @property
    def kind(self) -> str:
        """The object's kind, or `no kind`."""
        return str(self.body.get("kind") or "no kind")

    @property
    def name(self) -> str:
        """The object's name; empty if it has none."""
        metadata = self.body.get("metadata")
        found = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else None
        return str(found or "")

    @property
    def is_job(self) -> bool:
        """Whether the kind or the API group is that of a PSTrainingJob."""
        group = str(self.body.get("apiVersion")).partition("/")[0]
        return self.kind.lower() == names.KIND.lower() or group == names.GROUP

    def __str__(self) -> str:
        """Return the file, the number, the kind and the name, for messages."""
        title = f"{self.kind} {self.name}".rstrip()
        return f"{self.file}: document {self.number} ({title})"


def documents(files: Iterable[str], recursive: bool = False) -> list[Document]:
    """Return all non-empty documents of files, in order.

    Args:
        files: the values of `-f`.
        recursive: whether to read subfolders of folders.

    Raises:
        CommandError: some documents cannot be read; the message has a line for each.
    """
    found = list(read(files, recursive))
    problems = [one for one in found if isinstance(one, CommandError)]
    if problems:
        raise CommandError("\n".join(map(str, problems)))
    return [one for one in found if isinstance(one, Document)]


def read(files: Iterable[str], recursive: bool = False) -> Iterator[Document | CommandError]:
    """Yield all non-empty documents of files, in order, and an error for each unreadable one."""
    for source in sources(files, recursive):
        if isinstance(source, CommandError):
            yield source
        else:
            yield from parsed(source.name, source.text)


def parsed(file: str, text: str) -> Iterator[Document | CommandError]:
    """Yield the documents of a text, and an error for each unreadable one.

    Args:
        file: the source's name, for messages.
        text: YAML or JSON.
    """
    for part in parts(file, text):
        if isinstance(part, Part):
            yield from _flat(file, str(part.number), part.body, part)
        else:
            yield part


def _flat(file: str, number: str, body: Any, part: Part | None) -> Iterator[Document | CommandError]:
    if not isinstance(body, dict):
        what = "a Kubernetes object, a mapping with apiVersion and kind"
        yield CommandError(f"{file}: document {number} is not {what}{_way_out(body)}")
        return
    if str(body.get("kind", "")).endswith("List") and isinstance(body.get("items", 0), list | None):
        for index, item in enumerate(_items(body), 1):
            yield from _flat(file, f"{number}.{index}", item, None)
    elif part is None:
        yield Document(file, number, body)
    else:
        yield Document(file, number, body, part.text, part.lines)


def _way_out(body: Any) -> str:
    """Return what to do about a document that is no object; empty if that is unknown."""
    if isinstance(body, str) and is_jsonnet(body):
        return ". JSON has no comments: remove them, or render it first if it is Jsonnet"
    items = body if isinstance(body, list) else []
    if any(isinstance(step, dict) and "op" in step for step in items):
        return ". It is a JSON patch: pass the output of `kubectl kustomize FOLDER` to -f -"
    if any(isinstance(item, dict) and "kind" in item for item in items):
        return ". It is a list: write its objects without brackets and commas, or as the items of a List of v1"
    return ""


def _items(body: dict[str, Any]) -> list[Any]:
    """Return the items of a list. An item without kind and apiVersion has those of the list, as in kubectl."""
    kind = str(body["kind"]).removesuffix("List")
    inherited = {"apiVersion": body.get("apiVersion"), "kind": kind} if kind else {}
    return [
        {**inherited, **item} if isinstance(item, dict) and not (item.get("kind") or item.get("apiVersion")) else item
        for item in body["items"] or ()
    ]
