"""The code blocks of the documentation: shell commands for a reader, and manifests."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from hack.docs.pages import ROOT, Page, pages
from pstraining.api.crd import custom_resource_definition
from tests.support.builders import deep_merge

SCHEMA: Final[Mapping[str, Any]] = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"][
    "properties"
]
MINIMAL: Final = {
    "apiVersion": "pstraining.dev/v1alpha1",
    "kind": "PSTrainingJob",
    "metadata": {"name": "digits"},
    "spec": {
        "ps": {"replicas": 1},
        "worker": {
            "replicas": 2,
            "template": {"spec": {"containers": [{"name": "tensorflow", "image": "my/image:1", "command": ["train"]}]}},
        },
    },
}
REFUSED: Final = {
    ("docs/users/submit-and-change-a-job.md", "# jobs.yaml"): "shows what is said of a job that is wrong",
}
"""Blocks that are wrong on purpose, by page and first line, with the reason."""
LEFT_OUT: Final = "..."
_PATCH = re.compile(r"-p '(\{.*\})'")

SHELL: Final = ("", "sh", "bash", "shell", "console")
PROMPT: Final = re.compile(r"^\s*(?:\$ )?((?:[A-Z_]+=\S* )*)")
"""What may precede a command: a prompt, and environment variables."""


def where(page: Page, line: int) -> str:
    """Return a place in a page as messages name it."""
    return f"{page.path.relative_to(ROOT)}:{line}"


def documents() -> Iterator[tuple[str, str, Any]]:
    """Return every YAML document and JSON patch of the documentation, with its place and its block's first line."""
    for page in pages().values():
        for block in page.blocks:
            first = block.text.partition("\n")[0]
            if block.language in ("yaml", "yml"):
                for found in yaml.load_all(block.text, Loader=yaml.CSafeLoader):
                    yield where(page, block.line), first, found
            for patch in _PATCH.findall(block.text):
                yield where(page, block.line), first, json.loads(patch)


def shell_lines(page: Page) -> Iterator[tuple[str, str]]:
    """Return the lines of a page's shell blocks with their places; some of them may be output."""
    for block in page.blocks:
        if block.language in SHELL:
            for number, line in lines(block.text):
                yield where(page, block.line + number), line


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Return a block's lines with their numbers from 0; continued lines are joined."""
    held, begun = "", 0
    for number, line in enumerate(text.splitlines()):
        begun = begun if held else number
        held += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield begun, held
            held = ""


def complete(value: Any) -> Any:
    """Return the value without its ellipses."""
    if isinstance(value, dict):
        return {name: complete(item) for name, item in value.items() if item != LEFT_OUT}
    return [complete(item) for item in value if item != LEFT_OUT] if isinstance(value, list) else value


def job_of(document: Any) -> Any:
    """Return the job that a document shows in whole or in part, or None if it shows something else."""
    document = complete(document)
    if not isinstance(document, dict) or document.get("kind", "PSTrainingJob") != "PSTrainingJob":
        return None
    if "kind" in document:
        return document
    if document.keys() <= SCHEMA["spec"]["properties"].keys():
        document = {"spec": document}
    return deep_merge(MINIMAL, document) if document.keys() <= {"metadata", "spec"} else None
