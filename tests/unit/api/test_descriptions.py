"""The descriptions that `kubectl explain` shows are plain English in one form."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from pstraining.api.crd import custom_resource_definition

VERSION = custom_resource_definition()["spec"]["versions"][0]
REJECTED = re.compile(
    r"\b(told|tells?|whoever|somebody|nobody|anew|so (?:many|long|much)|it is so|takes? part|looks? after|whatever)\b",
    re.IGNORECASE,
)
"""Words that slow a reader down; a standard verb or a noun replaces each."""
PRONOUNS = re.compile(r"(What|Who|Whose|Whether|Why|How|When|Where|Since|Of|That|It)\b")
"""Words with which no description begins, because it begins with a noun phrase or a verb."""
MOST_WORDS = 25
"""Maximum number of words in a sentence."""
LONGEST = 60
"""Maximum number of words in a description."""
KUBERNETES = {"apiVersion", "kind", "metadata"}
"""Fields of the root that Kubernetes itself describes; a CRD must not describe them."""


def described(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Return path and description of every field, and of the items of lists that have one."""
    for name, child in (schema.get("properties") or {}).items():
        if path or name not in KUBERNETES:
            here = f"{path}.{name}".lstrip(".")
            yield here, child.get("description", "")
            yield from described(child, here)
    items = schema.get("items") or {}
    if "description" in items:
        yield f"{path}[]", items["description"]
    yield from described(items, f"{path}[]") if items else ()


SCHEMA = VERSION["schema"]["openAPIV3Schema"]
DESCRIPTIONS = [
    ("", SCHEMA["description"]),
    *described(SCHEMA),
    *((f"column {column['name']}", column["description"]) for column in VERSION["additionalPrinterColumns"]),
]


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=\.) ", text)


def test_every_description_is_checked() -> None:
    paths = {path for path, _ in DESCRIPTIONS}
    assert {"spec.ps.template.spec.containers[].command", "status.conditions[].type", "column Age"} <= paths


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ("begins with a capital letter", lambda text: text[:1].isupper()),
        ("ends with a full stop", lambda text: text.endswith(".") and not text.endswith("..")),
        ("is one paragraph", lambda text: "\n" not in text and "  " not in text),
        ("has no word that readers stop at", lambda text: not REJECTED.search(text)),
        ("begins with a noun phrase or a verb", lambda text: not PRONOUNS.match(text)),
        ("is short", lambda text: len(text.split()) <= LONGEST),
        ("has short sentences", lambda text: all(len(s.split()) <= MOST_WORDS for s in sentences(text))),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_every_description(rule: str, holds: Any) -> None:
    wrong = [f"{path}: {text}" for path, text in DESCRIPTIONS if not holds(text)]
    assert not wrong, f"every description {rule}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("text", ["What it is.", "Nodes that somebody tells.", "Made anew.", "Seconds, so many."])
def test_rejected_words_are_found(text: str) -> None:
    assert REJECTED.search(text) or PRONOUNS.match(text)
