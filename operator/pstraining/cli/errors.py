"""Errors that end a command, and their mapping from the API server's responses."""

import re

from pstraining.api import names
from pstraining.cli.exit_codes import ExitCode
from pstraining.kube.errors import from_response

DEFINITION = f"{names.PLURAL}.{names.GROUP}"
"""Name of the CustomResourceDefinition."""

_ABSENT = re.compile(r'"[^"]+" not found$')
"""The API server's message about a missing object. The one about an unknown kind differs."""
_DENIED = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)


class CommandError(Exception):
    """An error that ends a command with a message, without a traceback.

    Args:
        message: the problem and the action to take.
        code: the command's exit status.
    """

    def __init__(self, message: str, code: ExitCode = ExitCode.ERROR) -> None:
        super().__init__(message)
        self.code = code


class ArgumentError(CommandError):
    """The arguments are wrong, whatever the cluster: the command does nothing."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.USAGE)


class RequestError(CommandError):
    """A request to the API server failed."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message, ExitCode.ERROR if status else ExitCode.UNREACHABLE)
        self.status = status
        """The HTTP status; 0 without a response."""

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later: no response, an overloaded server or a server error."""
        return self.status in (0, 429) or self.status >= 500


class DeniedError(RequestError):
    """The API server refused the user with 401 or 403. Such responses of pods behind its proxy do not raise this."""


class AbsentError(RequestError):
    """The object does not exist, in a cluster that serves its kind."""


class ConflictError(RequestError):
    """Another client has changed or created the object."""

    def __init__(self, message: str, status: int, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message, status)
        self.fields = fields
        """The fields that other managers own, each with its manager."""


def refusal(status: int, body: bytes | str, path: str) -> RequestError:
    """Return the error for a response of the API server.

    Args:
        status: the HTTP status, 400 or above.
        body: the body of the response.
        path: the request's path.
    """
    response = from_response(status, body)
    if status == 404 and _ABSENT.search(response.message):
        return AbsentError(f"{response.message}.", status)
    if status == 404 and not path.startswith(f"/apis/{names.GROUP}/"):
        # Another API that the cluster does not serve, or the response of a pod or a kubelet.
        return RequestError(f"There is nothing at {path}: {response.message}", status)
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
