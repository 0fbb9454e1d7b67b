"""Objects beside TFJobs: they are passed on unchanged, with notes on their references to TFJobs."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pstraining.cli.tfjob.marks import name_selectors_of
from pstraining.cli.tfjob.notes import Note, Notes
from pstraining.cli.tfjob.source import join
from pstraining.cli.tfjob.versions import KIND, is_tfjob

_IN_TEXT = re.compile(rf"^\s*\"?kind\"?:\s*\"?{KIND}\b", re.MULTILINE)
_GROUPS = ("kubeflow.org", "training.kubeflow.org")


def notes_on(body: Mapping[str, Any]) -> tuple[Note, ...]:
    """Return the notes on an object that is not a TFJob.

    Args:
        body: an object of any kind.
    """
    notes = Notes()
    if not body.get("kind") or not body.get("apiVersion"):
        notes.refused("", "it is not a Kubernetes object, which has an apiVersion and a kind.", "Remove it.")
        return tuple(notes.found)
    for path in _tfjobs(body, ""):
        notes.none(
            path,
            f"it contains a {KIND}, which is passed on unchanged.",
            f"Convert and replace the {KIND}; the controller that creates it must support PSTrainingJobs.",
        )
    for path in _grants(body):
        notes.none(path, "it grants rights on tfjobs.", "Grant them on pstrainingjobs of the group pstraining.dev.")
    name_selectors_of(body, notes)
    return tuple(notes.found)


def _tfjobs(value: Any, path: str) -> Iterator[str]:
    """Yield the paths of TFJobs in another object, as objects or as texts with a manifest."""
    if isinstance(value, str):
        if _IN_TEXT.search(value):
            yield path
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _tfjobs(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        if path and is_tfjob(value):
            yield path
            return
        for name, item in value.items():
            yield from _tfjobs(item, join(path, name))


def _grants(body: Mapping[str, Any]) -> Iterator[str]:
    rules = body.get("rules") if body.get("kind") in ("Role", "ClusterRole") else None
    for index, rule in enumerate(rules if isinstance(rules, list) else ()):
        resources = rule.get("resources") if isinstance(rule, dict) else None
        if isinstance(resources, list) and "tfjobs" in resources:
            yield f"rules[{index}]"
