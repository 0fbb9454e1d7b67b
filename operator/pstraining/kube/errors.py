"""What can go wrong with a request, in four classes; the words stay the API server's.

Only the work queue retries. The executor turns a refusal into a verdict, everything else is raised to the queue.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PERMANENT_ERRORS = (
    "failed to create typed patch object",
    "etcdserver: request is too large",
    "trying to send message larger than max",
)
"""What the API server answers with 500 although the request will never do."""

UID_PRECONDITION = re.compile(r"UID in (the )?precondition", re.IGNORECASE)
"""Its words for a delete that meant another object, one for built-in kinds in the cache and one for the rest."""


@dataclass(frozen=True)
class Cause:
    """One entry of status.details.causes."""

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
        causes: tuple[Cause, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        """The HTTP status; 0 if there was no answer."""
        self.reason = reason
        """The reason of the Status object, in the API server's word."""
        self.causes = causes
        self.retry_after = retry_after
        """Seconds that the API server asks to be left alone for."""


class Conflict(ApiError):  # noqa: N818 - says what happened
    """409: the object is not what the request takes it for, or its name is taken."""

    @property
    def already_exists(self) -> bool:
        """The name is taken."""
        return self.reason == "AlreadyExists"

    @property
    def precondition_failed(self) -> bool:
        """The object that has this name now is not the one that was meant."""
        return UID_PRECONDITION.search(self.message) is not None


class NotFound(ApiError):  # noqa: N818 - says what happened
    """404: no such object."""

    @property
    def unserved(self) -> bool:
        """There is nothing at that path at all, not even a Status to say so: the kind is not known."""
        return not self.reason


class Transient(ApiError):  # noqa: N818 - says what happened
    """Nobody's fault: 429, 5xx, 401 while a token is replaced, timeouts, broken connections."""


class Refused(ApiError):  # noqa: N818 - says what happened
    """The API server will never take this: 400, 403, 422 and their like."""

    @property
    def invalid(self) -> bool:
        """The object itself is wrong; otherwise it is not allowed here or now."""
        return self.status != 403

    @property
    def namespace_terminating(self) -> bool:
        """The namespace is on its way out, and the job with it."""
        return any(c.reason == "NamespaceTerminating" for c in self.causes)


def from_response(status: int, body: bytes | str, headers: Mapping[str, str] | None = None) -> ApiError:
    """The error that an answer stands for.

    Args:
        status: the HTTP status.
        body: a Kubernetes Status object, or whatever a proxy in front of the API server had to say.
        headers: the answer's headers.
    """
    told = _status_object(body)
    details = told.get("details") or {}
    causes = tuple(
        Cause(str(c.get("reason", "")), str(c.get("message", "")), str(c.get("field", "")))
        for c in details.get("causes") or ()
        if isinstance(c, dict)
    )
    message = str(told.get("message") or "") or _text(body) or f"HTTP status {status}"
    # An apply that means another uid than the object has: 409 where the object is absent, 422 where there is one.
    another_object = status == 422 and any(c.field == "metadata.uid" for c in causes)
    return _class_of(409 if another_object else status, message)(
        message,
        status=status,
        reason=str(told.get("reason") or ""),
        causes=causes,
        retry_after=_retry_after(headers or {}, details),
    )


def from_exception(error: BaseException) -> Transient:
    """A request that got no answer: timeout, refused or broken connection, a garbled answer."""
    words = str(error)
    return Transient(f"{type(error).__name__}: {words}" if words else type(error).__name__)


def _class_of(status: int, message: str) -> type[ApiError]:
    if status == 404:
        return NotFound
    if status == 409:
        return Conflict
    if status >= 500 and any(words in message for words in PERMANENT_ERRORS):
        return Refused
    if status >= 500 or status in (401, 408, 410, 429):
        return Transient
    return Refused


def _status_object(body: bytes | str) -> dict[str, Any]:
    try:
        told = json.loads(body)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _text(body: bytes | str) -> str:
    text = body.decode(errors="replace") if isinstance(body, bytes) else body
    return text.strip()[:500]


def _retry_after(headers: Mapping[str, str], details: Mapping[str, Any]) -> float | None:
    told = headers.get("Retry-After") or details.get("retryAfterSeconds")
    try:
        return max(0.0, float(told)) if told is not None else None
    except ValueError:
        return None  # the header may also be a date; our own backoff does then
