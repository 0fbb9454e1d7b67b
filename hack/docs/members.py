"""Descriptions of enum members: the string below each in the source."""

import ast
from collections.abc import Mapping
from enum import StrEnum
from inspect import getsource


class UndocumentedError(Exception):
    """A member has no text."""


def texts(kind: type[StrEnum]) -> Mapping[StrEnum, str]:
    """Return the text below each member of an enum, in one line.

    Raises:
        UndocumentedError: names the members without one.
    """
    definition = ast.parse(getsource(kind)).body[0]
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for member, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(member, ast.Assign) and isinstance(member.targets[0], ast.Name) and isinstance(text, ast.Expr):
            assert isinstance(text.value, ast.Constant)
            found[kind[member.targets[0].id]] = " ".join(str(text.value.value).split())
    if missing := [member.name for member in kind if member not in found]:
        raise UndocumentedError(
            f"{kind.__module__}: {', '.join(missing)} of {kind.__name__}: say below the member what it means, "
            "for the pages of docs/reference"
        )
    return found
