"""Evaluates the CEL rules of the CRD with the library `common-expression-language`.

The library has CEL's own operators, macros and functions, but not those that Kubernetes adds: a rule that calls one of
these fails with a CelError (docs/project/decisions/0015-the-cli-parses-with-libraries.md lists the differences).
"""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cel import Context, Program


class CelError(Exception):
    """An expression has a syntax error, or its evaluation failed."""


def context(variables: Mapping[str, Any]) -> "Context":
    """Convert variables to CEL values, once for all expressions that read them."""
    import cel  # a slow import (0.2 s): the package imports a terminal prompt

    return cel.Context(dict(variables))


@cache
def program(expression: str) -> "Program":
    """Parse an expression.

    Raises:
        CelError: the syntax is wrong.
    """
    import cel

    try:
        return cel.compile(expression)
    except ValueError as error:
        raise CelError(_line(error)) from error


def evaluate(expression: str, variables: "Context") -> Any:
    """Evaluate an expression.

    Raises:
        CelError: the syntax is wrong, a field or function does not exist, or a type does not fit.
    """
    try:
        return program(expression).execute(variables)
    except KeyError as error:
        raise CelError(f"no such key: {error.args[0]}") from error
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CelError(_line(error)) from error


def _line(error: Exception) -> str:
    """Return the message in one line. The library marks the position of a syntax error below the expression."""
    return " ".join(str(error).split())
