"""What an API server's refusals mean to whoever runs a command."""

import json
from typing import Any

import pytest

from pstraining.cli.errors import AbsentError, CommandError, ConflictError, DeniedError, explained


def status(code: int, reason: str, message: str, **details: Any) -> str:
    return json.dumps({"kind": "Status", "code": code, "reason": reason, "message": message, "details": details})


FORBIDDEN = (
    'pstrainingjobs.pstraining.dev "x" is forbidden: User "eve" cannot get resource "pstrainingjobs" in API group '
)


@pytest.mark.parametrize(
    ("code", "body", "kind", "message"),
    [
        (
            403,
            status(403, "Forbidden", f'{FORBIDDEN}"pstraining.dev" in the namespace "team"'),
            DeniedError,
            "eve may not get pstrainingjobs.pstraining.dev in namespace team: ask for a role that allows it.",
        ),
        (
            403,
            status(
                403, "Forbidden", 'nodes is forbidden: User "eve" cannot list resource "nodes" in API group "" at the'
            ),
            DeniedError,
            "eve may not list nodes in all namespaces: ask for a role that allows it.",
        ),
        (
            403,
            status(403, "Forbidden", "exceeded quota: jobs"),
            CommandError,
            "The API server forbids it: exceeded quota: jobs",
        ),
        (404, status(404, "NotFound", 'namespaces "x" not found'), AbsentError, 'namespaces "x" not found.'),
        (
            404,
            "404 page not found\n",
            CommandError,
            "This cluster has no PSTrainingJobs: the CustomResourceDefinition pstrainingjobs.pstraining.dev is not "
            "installed, or is of another version. Install the chart; `kubectl pstraining doctor` says more.",
        ),
        (
            409,
            status(409, "Conflict", "the object has been modified"),
            ConflictError,
            "Somebody else has changed it at the same time: the object has been modified",
        ),
        (
            401,
            status(401, "Unauthorized", "Unauthorized"),
            CommandError,
            "The API server does not know you (401): renew the credentials of the kubeconfig.",
        ),
        (
            422,
            status(422, "Invalid", "spec.ps.server: Invalid value"),
            CommandError,
            "The API server refuses it (422): spec.ps.server: Invalid value",
        ),
        (503, "upstream gone", CommandError, "The API server refuses it (503): upstream gone"),
        (
            0,
            "SSLError: self-signed",
            CommandError,
            "The API server cannot be trusted: SSLError: self-signed. Check the kubeconfig's certificates.",
        ),
    ],
)
def test_refusals(code: int, body: str, kind: type[CommandError], message: str) -> None:
    found = explained(code, body)
    assert type(found) is kind
    assert str(found) == message


def test_a_conflict_names_the_fields_and_who_has_set_them() -> None:
    cause = {"reason": "FieldManagerConflict", "message": 'conflict with "hpa"', "field": ".spec.worker.replicas"}
    found = explained(409, status(409, "Conflict", "Apply failed with 1 conflict", causes=[cause]))
    assert isinstance(found, ConflictError)
    assert found.fields == ('spec.worker.replicas (conflict with "hpa")',)
