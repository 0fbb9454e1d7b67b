"""What a text is a placeholder for: templates that another tool fills in before a cluster sees them."""

import re
from collections.abc import Iterator

from pstraining.cli.tfjob.notes import Notes

_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("Katib", re.compile(r"\$\{trialParameters\.[^}]+\}|\$\{trialSpec\.[^}]+\}")),
    (
        "Helm",
        re.compile(
            r"\{\{-?\s*(\$?\.?(Values|Release|Chart|Files|Capabilities)\b|(include|template|toYaml|tpl)\b)[^}]*\}\}"
        ),
    ),
    ("Argo Workflows", re.compile(r"\{\{=?-?\s*((inputs|outputs|workflow|steps|tasks|pod)\.|item\b)[^}]*\}\}")),
    ("Tekton", re.compile(r"\$\((params|tasks|context|workspaces)\.[^)]+\)")),
)
"""Unmistakable, wherever they stand."""
_ANY = (
    ("OpenShift", re.compile(r"\$\{\{\w+\}\}")),
    ("a template engine", re.compile(r"\{\{[^}]*\}\}")),
    ("envsubst", re.compile(r"\$\{\w+(:?[-=?+][^}]*)?\}|^\$[A-Za-z_]\w*$")),
    ("you", re.compile(r"<[A-Za-z][\w .-]*>")),
)
"""Outside of what programs and shells read, where these characters mean nothing else."""
_FREE = re.compile(r"\.(command|args|env|annotations|lifecycle|\w+Probe)\b")


def placeholder(text: str, path: str = "") -> str | None:
    """What the text waits for, in words; None if it is no placeholder.

    Args:
        text: a value, or a part of it.
        path: where it stands; what programs read there may look like one.
    """
    for tool, pattern in (*_KINDS, *(() if _FREE.search(path) else _ANY)):
        if found := pattern.search(text):
            return f"{found[0]} is a placeholder for {tool}"
    return None


def name_placeholders(texts: Iterator[tuple[str, str]], notes: Notes) -> None:
    """Note each text that waits to be filled in, but for those of which there is a note already; it is kept.

    Args:
        texts: paths and values.
        notes: receives the notes.
    """
    known = {note.path for note in notes.found}
    for path, text in texts:
        if path not in known and (found := placeholder(text, path)):
            notes.none(
                path,
                f"{found}; it is kept as it stands.",
                "Fill it in before the job is submitted, or put the job where that is done.",
            )
