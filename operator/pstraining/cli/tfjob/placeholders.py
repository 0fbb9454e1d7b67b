"""Placeholders in texts, which another tool fills in before a manifest is submitted."""

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
"""Patterns that are unambiguous in every field."""
_ANY = (
    ("OpenShift", re.compile(r"\$\{\{\w+\}\}")),
    ("a template engine", re.compile(r"\{\{[^}]*\}\}")),
    ("envsubst", re.compile(r"\$\{\w+(:?[-=?+][^}]*)?\}|^\$[A-Za-z_]\w*$")),
    ("you", re.compile(r"<[A-Za-z][\w .-]*>")),
)
"""Patterns for fields that no program or shell reads, because these characters may mean something else there."""
_FREE = re.compile(r"\.(command|args|env|annotations|lifecycle|\w+Probe)\b")


def placeholder(text: str, path: str = "") -> str | None:
    """Describe a placeholder in a text; None without one.

    Args:
        text: a value, or a part of it.
        path: the text's path. Texts for programs, such as commands, are only searched for unambiguous patterns.
    """
    for tool, pattern in (*_KINDS, *(() if _FREE.search(path) else _ANY)):
        if found := pattern.search(text):
            return f"{found[0]} is a placeholder for {tool}"
    return None


def name_placeholders(texts: Iterator[tuple[str, str]], notes: Notes) -> set[str]:
    """Note each text with a placeholder, except those with a note already. The text is kept.

    Args:
        texts: paths and values.
        notes: receives the notes.

    Returns:
        The paths of all placeholders.
    """
    known = {note.path for note in notes.found}
    to_fill = set()
    for path, text in texts:
        if not (found := placeholder(text, path)):
            continue
        to_fill.add(path)
        if path not in known:
            notes.none(
                path,
                f"{found}; it is kept.",
                "Fill it in before the job is submitted, or pass the job to the tool that does.",
            )
    return to_fill
