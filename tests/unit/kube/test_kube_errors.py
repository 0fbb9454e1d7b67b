"""The classification of the API server's responses."""

import json
from typing import Any

import pytest

from pstraining.kube.errors import (
    ApiError,
    Conflict,
    NotFound,
    Refused,
    StatusCause,
    Transient,
    from_exception,
    from_response,
)


def status(message: str, reason: str = "", **details: Any) -> str:
    return json.dumps({"kind": "Status", "message": message, "reason": reason, "details": details})


TYPED_PATCH = (
    "failed to create typed patch object (ns/x; apps/v1, Kind=Deployment): .spec.foo: field not declared in schema"
)


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (400, "unknown field", Refused),
        (401, "Unauthorized", Transient),
        (403, "forbidden", Refused),
        (404, "not found", NotFound),
        (405, "method not allowed", Refused),
        (408, "request timeout", Transient),
        (409, "already exists", Conflict),
        (410, "too old", Transient),
        (413, "too large", Refused),
        (415, "unsupported", Refused),
        (422, "invalid", Refused),
        (429, "too many requests", Transient),
        (500, "boom", Transient),
        (500, TYPED_PATCH, Refused),
        (500, "etcdserver: request is too large", Refused),
        (500, "Internal error occurred: failed calling webhook", Transient),
        (502, "bad gateway", Transient),
        (503, "unavailable", Transient),
        (504, "Timeout: request did not complete", Transient),
    ],
)
def test_class_by_status(code: int, message: str, expected: type[ApiError]) -> None:
    error = from_response(code, status(message))
    assert type(error) is expected
    assert error.message == message
    assert error.status == code


@pytest.mark.parametrize(("code", "invalid"), [(400, True), (403, False), (422, True), (500, True)])
def test_a_rejection_concerns_the_object_or_the_action(code: int, invalid: bool) -> None:
    error = from_response(code, status(TYPED_PATCH))
    assert isinstance(error, Refused)
    assert error.invalid is invalid


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (400, 'admission webhook "validate.kyverno.svc-fail" denied the request: label team is missing'),
        (422, 'admission webhook "x.y" denied the request: spec: Invalid value'),
        (
            422,
            "statefulsets.apps \"digits-ps\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied "
            "request: label team is missing",
        ),
        (422, "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: failed expression: false"),
        (401, "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: failed expression: false"),
        (404, 'admission webhook "quota.example.com" denied the request: queues.example.com "gpu" not found'),
        (409, 'admission webhook "quota.example.com" denied the request: the quota is exhausted'),
    ],
)
def test_a_policy_may_change_and_so_its_denial_is_not_final(code: int, message: str) -> None:
    error = from_response(code, status(message))
    assert isinstance(error, Refused)
    assert not error.invalid


@pytest.mark.parametrize(
    ("code", "message", "too_large"),
    [
        (413, "Request entity too large: limit is 3145728", True),
        (500, "etcdserver: request is too large", True),
        (500, "rpc error: trying to send message larger than max (2097155 vs. 2097152)", True),
        (422, "spec.worker.replicas: Invalid value", False),
        (500, TYPED_PATCH, False),
    ],
)
def test_a_limit_of_size_is_recognized(code: int, message: str, too_large: bool) -> None:
    error = from_response(code, status(message))
    assert isinstance(error, Refused)
    assert error.too_large is too_large


def test_an_occupied_name_is_distinguished_from_an_outdated_view() -> None:
    taken = from_response(409, status('configmaps "digits" already exists', "AlreadyExists"))
    outdated = from_response(409, status("the object has been modified", "Conflict"))
    assert isinstance(taken, Conflict)
    assert isinstance(outdated, Conflict)
    assert (taken.already_exists, outdated.already_exists) == (True, False)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Precondition failed: UID in precondition: a, UID in object meta: b", True),
        ('Operation cannot be fulfilled on ConfigMap "x": the UID in the precondition (a) does not match', True),
        ("the object has been modified; please apply your changes to the latest version", False),
    ],
)
def test_another_object_of_the_name(message: str, expected: bool) -> None:
    error = from_response(409, status(message, "Conflict"))
    assert isinstance(error, Conflict)
    assert error.precondition_failed is expected


def test_an_apply_for_another_object() -> None:
    causes = [{"reason": "FieldValueInvalid", "message": "field is immutable", "field": "metadata.uid"}]
    error = from_response(422, status('ConfigMap "x" is invalid: metadata.uid', "Invalid", causes=causes))
    assert isinstance(error, Conflict)
    assert not error.already_exists


def test_a_terminating_namespace() -> None:
    causes = [
        {"reason": "NamespaceTerminating", "message": "namespace x is being terminated", "field": "metadata.namespace"}
    ]
    error = from_response(403, status("unable to create new content", "Forbidden", causes=causes))
    assert isinstance(error, Refused)
    assert error.namespace_terminating
    assert error.causes == (
        StatusCause("NamespaceTerminating", "namespace x is being terminated", "metadata.namespace"),
    )
    assert not from_response(403, status("no", "Forbidden")).causes


@pytest.mark.parametrize(
    ("headers", "details", "expected"),
    [
        ({"Retry-After": "7"}, {}, 7.0),
        ({}, {"retryAfterSeconds": 3}, 3.0),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, {}, None),
        ({}, {}, None),
    ],
)
def test_the_delay_that_the_api_server_requests(
    headers: dict[str, str], details: dict[str, Any], expected: float | None
) -> None:
    assert from_response(429, status("slow down", **details), headers).retry_after == expected


@pytest.mark.parametrize("body", [b"<html>Bad gateway</html>", b"[]", b"", "\ud83e".encode(errors="surrogatepass")])
def test_the_message_of_a_proxy(body: bytes) -> None:
    error = from_response(502, body)
    assert isinstance(error, Transient)
    assert error.message


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError(), "TimeoutError"),
        (ConnectionResetError("peer"), "ConnectionResetError: peer"),
        (ValueError("not JSON"), "ValueError: not JSON"),
    ],
)
def test_no_answer(error: Exception, words: str) -> None:
    found = from_exception(error)
    assert (found.message, found.status) == (words, 0)
