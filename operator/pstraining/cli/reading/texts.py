"""The documents of a text, split and parsed as kubectl does: YAML, JSON, or a sequence of JSON objects.

The parser is libyaml, of which kubectl's library is a port. Without libyaml, PyYAML's own parser is stricter on tabs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml
from yaml.composer import Composer

from pstraining.cli.errors import CommandError
from pstraining.cli.reading import scalars

_MOST_VALUES = 1_000_000
_DEEPEST = 200
"""Maximum number of nested levels."""
_JSONNET = re.compile(r"\A\s*(local\s+\w+\s*=|//|/\*)|\bstd\.(extVar|mergePatch|manifest\w+)\(")
"""Jsonnet's definitions and comments at the beginning of a text, or its library."""
_Base: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


@dataclass(frozen=True)
class Part:
    """One non-empty document of a text."""

    number: int
    """The document's number, from 1. Empty documents count."""
    body: Any
    text: str = ""
    """The document's source; empty for JSON."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """Line numbers, from 1, of the top-level fields; empty for JSON."""


def parts(file: str, text: str) -> Iterator[Part | CommandError]:
    """Yield the documents of a text, and an error for each unreadable one.

    Args:
        file: the source's name, for messages.
        text: YAML or JSON.
    """
    number, read = 0, 0
    for value, end in _json_objects(text) if text.lstrip().startswith("{") else ():
        number += 1
        if isinstance(value, json.JSONDecodeError):
            if number > 2:  # as in kubectl, one object may be YAML's flow style, and two are JSON
                yield CommandError(f"{file}, line {value.lineno}, column {value.colno}: {value.msg}")
                return
            number -= 1
            break
        if isinstance(value, ValueError):
            yield CommandError(f"{file}: document {number}: {value}")
        else:
            yield Part(number, value)
        read = end
    for first, chunk in _chunks(file, text[read:], text.count("\n", 0, read) + 1):
        if isinstance(chunk, CommandError):
            yield chunk
            continue
        number += 1
        try:
            found = _read(file, number, chunk, first)
        except CommandError as error:
            yield error
        else:
            if found is not None:
                yield found


def first_document(file: str, text: str) -> Any:
    """Return the first document of a YAML stream, as kubectl reads a kubeconfig; None if it is empty.

    Args:
        file: the source's name, for messages.
        text: YAML or JSON.

    Raises:
        CommandError: the document cannot be read.
    """
    found = _read(file, 1, text, 1, several=True)
    return None if found is None else found.body


def _json_objects(text: str) -> Iterator[tuple[Any, int]]:
    """Yield consecutive JSON objects, each with its end, and then an error if other text follows."""
    decoder = json.JSONDecoder(
        object_pairs_hook=_unique,
        parse_int=lambda digits: scalars.number(int(digits)),
        parse_float=lambda digits: scalars.number(float(digits)),
        parse_constant=_no_constant,
    )
    place = 0
    while (place := _next_word(text, place)) < len(text):
        try:
            value, place = decoder.raw_decode(text, place)
            _encodable(value)
        except json.JSONDecodeError as error:
            yield error, place
            return
        except (ValueError, RecursionError) as error:
            yield ValueError(str(error)), len(text)
            return
        yield value, place


def _next_word(text: str, place: int) -> int:
    found = re.compile(r"\S").search(text, place)
    return len(text) if found is None else found.start()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"duplicate key {name}")
        found[name] = value
    return found


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON value")


def _encodable(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("a text has half of a surrogate pair") from error


def _chunks(file: str, text: str, line: int) -> Iterator[tuple[int, str | CommandError]]:
    """Yield the parts of a text between lines of three hyphens, each with the number of its first line."""
    first, lines, begun = line, list[str](), False
    for number, one in enumerate(re.findall(r"[^\n]*\n|[^\n]+", text), line):
        if not one.startswith("---"):
            lines.append(one)
            continue
        if begun or _has_content(lines):
            yield first, "".join(lines)
        first, lines, begun = number + 1, [], True
        after = one[3:].strip()
        if after and not after.startswith("#"):
            message = f"{file}, line {number}: kubectl accepts --- only on a line of its own, not before {after[:40]}"
            yield number, CommandError(message)
    if begun or _has_content(lines):
        yield first, "".join(lines)


def _has_content(lines: list[str]) -> bool:
    return any(line.strip() and not line.lstrip().startswith("#") for line in lines)


def _read(file: str, number: int, text: str, first: int, several: bool = False) -> Part | None:
    """Parse one document of YAML, or the first one of several; None if it is empty."""
    try:
        loader = _Loader(text)
        root = (loader.get_node() if loader.check_node() else None) if several else loader.get_single_node()
        body = None if root is None else _Builder().build(root, 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + first}, column {mark.column + 1}" if mark is not None else ""
        raise CommandError(f"{file}{where}: {error.problem}{_hint(text, mark)}") from error
    except yaml.YAMLError as error:
        raise CommandError(f"{file} is not YAML: {error}") from error
    except RecursionError as error:
        raise CommandError(f"{file}: document {number}: more than {_DEEPEST} levels") from error
    return None if body is None else Part(number, body, text, _lines(root, first))


def _hint(text: str, mark: Any) -> str:
    """Return what to do about a text that is not YAML; empty if that is unknown."""
    every = text.splitlines()
    first = next((line for line in every if line.strip() and not line.startswith("#")), "")
    if first.startswith("%"):
        return ". kubectl accepts no directives, such as %YAML: remove the line"
    if is_jsonnet(text):
        return ". It seems to be Jsonnet: render it first: `jsonnet FILE | kubectl pstraining COMMAND -f -`"
    if "{{" in text:
        return (
            ". It has {{ }}, as a template: render it first, and pass the result to -f -: `helm template RELEASE CHART "
            "| kubectl pstraining COMMAND -f -`"
        )
    line = every[mark.line] if mark is not None and mark.line < len(every) else ""
    return ". YAML accepts no tabs as indentation: use spaces" if "\t" in line[: len(line) - len(line.lstrip())] else ""


def is_jsonnet(text: str) -> bool:
    """Return whether a text that is neither YAML nor JSON looks like Jsonnet."""
    return _JSONNET.search(text) is not None


def _lines(node: Any, first: int) -> dict[str, int]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {k.value: k.start_mark.line + first for k, _ in node.value if isinstance(k, yaml.ScalarNode)}


class _Loader(Composer, _Base):  # type: ignore[misc] # which base is known at run time
    """A loader that leaves plain scalars to `scalars`. An anchor may be defined again, as YAML allows."""

    def __init__(self, text: str) -> None:
        _Base.__init__(self, text)
        Composer.__init__(self)

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose the next node. Aliases after it refer to the newest anchor of their name."""
        if not self.check_event(yaml.AliasEvent):
            self.anchors.pop(self.peek_event().anchor, None)
        return super().compose_node(parent, index)

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode and implicit[0]:
            return scalars.PLAIN
        return super().resolve(kind, value, implicit)


class _Builder:
    """Builds values from nodes. Aliases are copied, and duplicate keys are errors."""

    def __init__(self) -> None:
        self._above: set[int] = set()
        self._values = 0

    def build(self, node: Any, level: int) -> Any:
        """Return the value of a node."""
        self._values += 1
        if id(node) in self._above:
            raise _error("the value of an anchor contains itself", node)
        if self._values > _MOST_VALUES:
            raise _error(f"more than {_MOST_VALUES} values, with those that aliases repeat", node)
        if level > _DEEPEST:
            raise _error(f"more than {_DEEPEST} levels", node)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        self._above.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            found: Any = [self.build(item, level + 1) for item in node.value]
        else:
            found = self._mapping(node, level)
        self._above.remove(id(node))
        return found

    def _mapping(self, node: Any, level: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        own = set()
        for name, value in node.value:
            if not isinstance(name, yaml.ScalarNode):
                raise _error("a key must be a scalar, not a list or a mapping", name)
            if _is_merge(name):
                found |= self._merged(value, level)
                continue
            word = _key(name)
            if word in own:
                raise _error(f"duplicate key {word}", name)
            own.add(word)
            found[word] = self.build(value, level + 1)
        return found

    def _merged(self, node: Any, level: int) -> dict[str, Any]:
        """Return the fields that `<<` adds. Earlier mappings take precedence."""
        several = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not all(isinstance(one, yaml.MappingNode) for one in several):
            raise _error("<< requires a mapping, or a list of mappings", node)
        found: dict[str, Any] = {}
        for one in reversed(several):
            found |= self.build(one, level + 1)
        return found


def _is_merge(name: Any) -> bool:
    return bool(name.value == "<<" and name.tag in (scalars.PLAIN, "tag:yaml.org,2002:merge"))


def _key(node: Any) -> str:
    try:
        return scalars.key(node.tag, node.value)
    except ValueError as error:
        raise _error(str(error), node) from None


def _scalar(node: Any) -> scalars.Scalar:
    try:
        return scalars.scalar(node.tag, node.value)
    except ValueError as error:
        raise _error(str(error), node) from None


def _error(problem: str, node: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
