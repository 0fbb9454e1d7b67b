"""Errors that end a command, and which of them an answer of the API server stands for."""

import re

from pstraining.api import names
from pstraining.cli.exit_codes import ExitCode
from pstraining.kube.errors import from_response

DEFINITION = f"{names.PLURAL}.{names.GROUP}"
"""The CustomResourceDefinition."""

_ABSENT = re.compile(r'"[^"]+" not found$')
"""How it says that there is no such object; of a kind that it does not know it says something else."""
_DENIED = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)


class CommandError(Exception):
    """Ends a command with a message for people, without a traceback.

    Args:
        message: what happened, and what to do.
        code: the command's exit status.
    """

    def __init__(self, message: str, code: ExitCode = ExitCode.ERROR) -> None:
        super().__init__(message)
        self.code = code


class RequestError(CommandError):
    """The API server did not do what it was asked."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message, ExitCode.ERROR if status else ExitCode.UNREACHABLE)
        self.status = status
        """The HTTP status; 0 if there was no answer."""

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later: there was no answer, or the server is busy or fails."""
        return self.status in (0, 429) or self.status >= 500


class DeniedError(RequestError):
    """The API server does not let this user do it: 401 or 403 in its own words, not in those of a pod behind it."""


class AbsentError(RequestError):
    """There is no such object, in a cluster that knows its kind."""


class ConflictError(RequestError):
    """Others have changed what was to be changed."""

    def __init__(self, message: str, status: int, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message, status)
        self.fields = fields
        """Fields that other managers have set, each with its manager."""


def refusal(status: int, body: bytes | str) -> RequestError:
    """The error that an answer stands for.

    Args:
        status: of HTTP.
        body: of the answer.
    """
    response = from_response(status, body)
    if status == 404 and _ABSENT.search(response.message):
        return AbsentError(f"{response.message}.", status)
    if status == 404:
        return RequestError(
            f"The cluster does not serve {names.KIND}s: {DEFINITION} is not installed, or has another version. "
            "Install the chart of pstraining, or select another cluster with --context. `kubectl pstraining doctor` "
            "reports details.",
            status,
        )
    if status == 409:
        fields = tuple(f"{c.field.removeprefix('.')} ({c.message})" for c in response.causes if c.field)
        return ConflictError(f"Conflict with a concurrent change: {response.message}", status, fields)
    if status == 401 and response.reason:
        return DeniedError(
            f"The API server did not authenticate you: {response.message}. Log in again, or select another --context.",
            status,
        )
    if status == 403 and response.reason:
        return DeniedError(_denial(response.message), status)
    return RequestError(f"The API server rejected the request: {response.message}", status)


def _denial(message: str) -> str:
    found = _DENIED.search(message)
    if found is None:
        return f"The API server denied the request: {message}"
    resource = ".".join(part for part in (found["resource"], found["group"]) if part)
    where = f"in namespace {found['namespace']}" if found["namespace"] else "in all namespaces"
    return (
        f"You ({found['user']}) may not {found['verb']} {resource} {where}: request a role with the verb "
        f"{found['verb']} on {resource}."
    )
