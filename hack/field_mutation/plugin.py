"""A plugin of pytest that removes one field of the spec from every job; `python -m hack.field_mutation` uses it."""

import copy
import json
import os
from typing import Any

import pytest
from pydantic import ValidationError

from pstraining.api.models import PSTrainingJob

NONSENSE = 70
"""The exit code when a job cannot be read without the field; its test's failure then proves nothing."""


def without(value: Any, path: list[str], instead: Any) -> None:
    """Remove a field from an object as JSON, or replace its value."""
    step, rest = path[0], path[1:]
    name = step.removesuffix("[]")
    if not isinstance(value, dict) or name not in value:
        return
    if not rest:
        if instead is None:
            del value[name]
        else:
            value[name] = copy.deepcopy(instead)
        return
    for inner in value[name] if step != name else [value[name]]:
        without(inner, rest, instead)


def pytest_configure() -> None:
    """Remove the field from every job that is read."""
    path = os.environ["PSTRAINING_SWITCHED_OFF"].split(".")
    instead = json.loads(os.environ["PSTRAINING_INSTEAD"])
    original = PSTrainingJob.model_validate

    def read(job: Any, **options: Any) -> PSTrainingJob:
        readable = original(job, **options)
        changed = copy.deepcopy(job)
        without(changed, path, instead)
        try:
            return original(changed, **options) if changed != job else readable
        except ValidationError as error:
            pytest.exit(f"a job without {'.'.join(path)} cannot be read: {error}", returncode=NONSENSE)

    PSTrainingJob.model_validate = staticmethod(read)  # type: ignore[method-assign, assignment]
