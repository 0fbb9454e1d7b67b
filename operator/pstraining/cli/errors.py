"""What a command says when it cannot do what it was asked."""

import re

from pstraining.api import names
from pstraining.kube.errors import ApiError, Conflict, NotFound, from_response

DEFINITION = f"{names.PLURAL}.{names.GROUP}"
"""The CustomResourceDefinition."""
_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)
"""The API server's words."""


class CommandError(Exception):
    """Ends a command with a message for people, without a traceback."""


class AbsentError(CommandError):
    """There is no such object, in a cluster that knows its kind."""


class DeniedError(CommandError):
    """The user has no right to it."""


class ConflictError(CommandError):
    """Others have changed what was to be changed."""

    def __init__(self, message: str, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields
        """What others have set, each with who it was."""


def explained(status: int, body: str) -> CommandError:
    """What an API server's refusal means.

    Args:
        status: of HTTP; 0 if no connection that can be trusted was made.
        body: of the answer.
    """
    told = from_response(status, body)
    match status:
        case 0:
            return CommandError(
                f"The API server cannot be trusted: {told.message}. Check the kubeconfig's certificates."
            )
        case 401:
            return CommandError("The API server does not know you (401): renew the credentials of the kubeconfig.")
        case 403:
            return _denied(told)
    if isinstance(told, NotFound):
        if told.reason:
            return AbsentError(f"{told.message}.")
        return CommandError(
            f"This cluster has no PSTrainingJobs: the CustomResourceDefinition {DEFINITION} is not installed, or is of "
            "another version. Install the chart; `kubectl pstraining doctor` says more."
        )
    if isinstance(told, Conflict):
        fields = tuple(f"{c.field.removeprefix('.')} ({c.message})" for c in told.causes if c.field)
        return ConflictError(f"Somebody else has changed it at the same time: {told.message}", fields)
    return CommandError(f"The API server refuses it ({status}): {told.message}")


def _denied(told: ApiError) -> CommandError:
    found = _FORBIDDEN.search(told.message)
    if found is None:
        # A quota, an admission webhook: in its own words.
        return CommandError(f"The API server forbids it: {told.message}")
    resource = f"{found['resource']}.{found['group']}" if found["group"] else found["resource"]
    where = f"in namespace {found['namespace']}" if found["namespace"] else "in all namespaces"
    return DeniedError(f"{found['user']} may not {found['verb']} {resource} {where}: ask for a role that allows it.")
