"""What an answer of the API server means for a command: the object is not there, or an error in words for people."""

import re

from pstraining.api import names
from pstraining.cli.errors import AbsentError, ConflictError, DeniedError, RequestError
from pstraining.kube.errors import from_response

DEFINITION = f"{names.PLURAL}.{names.GROUP}"
"""The CustomResourceDefinition."""

_ABSENT = re.compile(r'"[^"]+" not found$')
"""How it says that there is no such object; of a kind that it does not know it says something else."""
_DENIED = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)


def refusal(status: int, body: bytes | str) -> RequestError:
    """The error that an answer stands for.

    Args:
        status: of HTTP.
        body: of the answer.
    """
    told = from_response(status, body)
    if status == 404 and _ABSENT.search(told.message):
        return AbsentError(f"{told.message}.", status)
    if status == 404:
        return RequestError(
            f"The cluster does not know {names.KIND}s: {DEFINITION} is not installed, or is of another version. "
            "Install pstraining there with its chart (`kubectl pstraining doctor` says more), or choose another "
            "cluster with --context.",
            status,
        )
    if status == 409:
        fields = tuple(f"{c.field.removeprefix('.')} ({c.message})" for c in told.causes if c.field)
        return ConflictError(f"Somebody else has changed it at the same time: {told.message}", status, fields)
    if status == 401 and told.reason:
        return DeniedError(f"The API server does not know you: {told.message}. Log in again, or see --context.", status)
    if status == 403 and told.reason:
        return DeniedError(_denial(told.message), status)
    return RequestError(f"The API server refused: {told.message}", status)


def _denial(message: str) -> str:
    found = _DENIED.search(message)
    if found is None:
        return f"The API server does not allow it: {message}"
    resource = ".".join(part for part in (found["resource"], found["group"]) if part)
    where = f"in namespace {found['namespace']}" if found["namespace"] else "in all namespaces"
    return (
        f"You ({found['user']}) may not {found['verb']} {resource} {where}: ask for a role with the verb "
        f"{found['verb']} on {resource}."
    )
