"""The manifests of a file, read as kubectl reads them: several documents, Lists, YAML or JSON, `-` for stdin."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pstraining.api import names
from pstraining.cli.errors import CommandError

STDIN = Path("-")


@dataclass(frozen=True)
class Document:
    """One document of a file."""

    file: str
    number: str
    """Which of the file's documents, from 1; of a List also which item of it, as in 2.1."""
    body: dict[str, Any]

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


def documents(files: Iterable[Path]) -> list[Document]:
    """All documents of files but empty ones, in order.

    Raises:
        CommandError: a file cannot be read, or is no YAML.
    """
    return [document for file in files for document in parsed(*_text(file))]


def parsed(file: str, text: str) -> Iterator[Document]:
    """The documents of a text.

    Args:
        file: where it comes from, for messages.
        text: YAML or JSON.

    Raises:
        CommandError: it is neither, or holds what is no object.
    """
    try:
        found = list(yaml.load_all(text, _Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise CommandError(f"{file}{where}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise CommandError(f"{file} is not YAML: {error}") from error
    for number, body in enumerate(found, 1):
        if body is not None:
            yield from _flat(file, str(number), body)


def _flat(file: str, number: str, body: Any) -> Iterator[Document]:
    if not isinstance(body, dict):
        raise CommandError(f"{file}: document {number} is not a Kubernetes object, a mapping with apiVersion and kind")
    items = body.get("items")
    if str(body.get("kind", "")).endswith("List") and isinstance(items, list):
        for index, item in enumerate(items, 1):
            yield from _flat(file, f"{number}.{index}", item)
    else:
        yield Document(file, number, body)


def _text(file: Path) -> tuple[str, str]:
    if file == STDIN:
        return "standard input", sys.stdin.read()
    try:
        return str(file), file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error


class _Loader(yaml.SafeLoader):
    """Reads as kubectl does: dates are texts, keys are texts, and a key that is there twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                key.tag = "tag:yaml.org,2002:str"
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value}", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
