"""Classifies failed requests into four errors; their messages are the API server's.

Only the work queue retries. The executor turns Refused into a verdict and raises every other error to the queue.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")
"""Messages for an object that exceeds etcd's limit; the API server reports them with status 500."""
PERMANENT_ERRORS = ("failed to create typed patch object", *TOO_LARGE)
"""Messages of permanent errors that the API server reports with status 500."""

NO_WEBHOOK = ("failed calling webhook", "conversion webhook for ")
"""Messages for a webhook that does not answer; the API server reports them with status 500."""

DENIED = re.compile(
    r"^admission webhook \"[^\"]*\" denied the request"
    r"|ValidatingAdmissionPolicy '[^']*' (with binding '[^']*' )?denied request"
)
"""The messages of admission policies. By default, their status is 400 or 422, as that of an invalid object. A policy
may choose any other: a webhook that does not find an object that it needs returns 404."""

UID_PRECONDITION = re.compile(r"UID in (the )?precondition", re.IGNORECASE)
"""The message for a delete with another uid. It varies between the kinds in the API server's cache and other kinds."""


@dataclass(frozen=True)
class StatusCause:
    """One entry of a Status object's details.causes."""

    reason: str
    message: str
    field: str


class ApiError(Exception):
    """A request that failed."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        causes: tuple[StatusCause, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        """The HTTP status; 0 without an answer."""
        self.reason = reason
        """The reason of the Status object; empty without one."""
        self.causes = causes
        self.retry_after = retry_after
        """Seconds that the API server requests the client to wait; None without such a request."""


class Conflict(ApiError):  # noqa: N818 - says what happened
    """409: the object has changed since it was read, or its name is taken."""

    @property
    def already_exists(self) -> bool:
        """Whether the name is taken."""
        return self.reason == "AlreadyExists"

    @property
    def precondition_failed(self) -> bool:
        """Whether the name now belongs to another object."""
        return UID_PRECONDITION.search(self.message) is not None


class NotFound(ApiError):  # noqa: N818 - says what happened
    """404: the object does not exist."""

    @property
    def unserved(self) -> bool:
        """Whether the API server does not know the kind, or a proxy answered: the answer is no Status object."""
        return not self.reason


class Transient(ApiError):  # noqa: N818 - says what happened
    """A temporary failure: 429, 5xx, 401 while a token is replaced, timeouts, broken connections."""

    @property
    def of_webhook(self) -> bool:
        """Whether a webhook for admission or conversion does not answer. Other kinds of objects may have none."""
        return any(text in self.message for text in NO_WEBHOOK)


class Refused(ApiError):  # noqa: N818 - says what happened
    """The API server rejects the request permanently: 400, 403, 422 and similar, and denials of policies."""

    @property
    def invalid(self) -> bool:
        """Whether the object itself is invalid; otherwise the request is forbidden, or denied by a policy."""
        return self.status != 403 and DENIED.search(self.message) is None

    @property
    def too_large(self) -> bool:
        """Whether the object exceeds a limit of size: the API server's (413) or etcd's."""
        return self.status == 413 or any(text in self.message for text in TOO_LARGE)

    @property
    def namespace_terminating(self) -> bool:
        """Whether the namespace, and the job with it, is being deleted."""
        return any(c.reason == "NamespaceTerminating" for c in self.causes)


def from_response(status: int, body: bytes | str, headers: Mapping[str, str] | None = None) -> ApiError:
    """Return the error for an answer.

    Args:
        status: the HTTP status.
        body: a Kubernetes Status object, or the answer of a proxy in front of the API server.
        headers: the answer's headers.
    """
    parsed = _status_object(body)
    details = parsed.get("details") or {}
    causes = tuple(
        StatusCause(str(c.get("reason", "")), str(c.get("message", "")), str(c.get("field", "")))
        for c in details.get("causes") or ()
        if isinstance(c, dict)
    )
    message = str(parsed.get("message") or "") or _text(body) or f"HTTP status {status}"
    # An apply with another uid than the object's fails with 409 if the object is absent and with 422 if it exists.
    is_other_object = status == 422 and any(c.field == "metadata.uid" for c in causes)
    return _class_of(409 if is_other_object else status, message)(
        message,
        status=status,
        reason=str(parsed.get("reason") or ""),
        causes=causes,
        retry_after=_retry_after(headers or {}, details),
    )


def from_exception(error: BaseException) -> Transient:
    """Return the error for a request without a usable answer: timeout, connection error, invalid JSON."""
    text = str(error)
    return Transient(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _class_of(status: int, message: str) -> type[ApiError]:
    if status < 500 and status != 429 and DENIED.search(message):
        return Refused
    if status == 404:
        return NotFound
    if status == 409:
        return Conflict
    if status >= 500 and any(text in message for text in PERMANENT_ERRORS):
        return Refused
    if status >= 500 or status in (401, 408, 410, 429):
        return Transient
    return Refused


def _status_object(body: bytes | str) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _text(body: bytes | str) -> str:
    text = body.decode(errors="replace") if isinstance(body, bytes) else body
    return text.strip()[:500]


def _retry_after(headers: Mapping[str, str], details: Mapping[str, Any]) -> float | None:
    value = headers.get("Retry-After") or details.get("retryAfterSeconds")
    try:
        return max(0.0, float(value)) if value is not None else None
    except ValueError:
        return None  # the header may also be a date; our own back-off applies then
