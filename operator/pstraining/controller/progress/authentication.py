"""Decides from a request's token and the job's pods whether it may report the job's progress, or read its history.

The API server reviews a token (TokenReview) for the audience of this one job, and returns the pod that the token was
issued for. A token that names another audience or pod is refused without a review, so forged tokens cost no request.
"""

import asyncio
import base64
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson

from pstraining.controller.informer_cache import InformerCache, Key
from pstraining.core.progress import has_chief_duty, may_report
from pstraining.resources.installation import progress_audience

REVIEW_SECONDS: Final = 300.0
"""Seconds for which the API server's answer about a token is reused."""
REVIEWS_MAX: Final = 20_000
"""Maximum number of kept answers."""
IN_FLIGHT: Final = 8
"""Maximum number of concurrent reviews."""
POD_NAME: Final = "authentication.kubernetes.io/pod-name"
POD_UID: Final = "authentication.kubernetes.io/pod-uid"


class TokenPort(Protocol):
    """Reviews tokens."""

    async def review_token(self, token: str, audience: str) -> Mapping[str, Any]:
        """Return the status of a TokenReview."""


@dataclass(frozen=True)
class Refusal:
    """The refusal of a request."""

    status: int
    """The status code of HTTP, such as 401, 403 or 404."""
    message: str


@dataclass(frozen=True)
class Claims:
    """The claims of a token, before the API server has reviewed them."""

    audiences: tuple[str, ...]
    namespace: str
    pod_name: str
    pod_uid: str


@dataclass(frozen=True)
class AcceptedPod:
    """The pod whose request is accepted."""

    uid: str
    """The uid of the job."""
    pod_uid: str


@dataclass(frozen=True)
class Unreviewed:
    """A request whose token agrees with the cached objects, and has to be reviewed by the API server."""

    uid: str
    """The uid of the job."""
    claims: Claims
    token: str
    audience: str
    digest: bytes
    """Identifies the token and the audience."""


def read_claims(token: str) -> Claims | None:
    """Return the unverified claims of a pod's token; None if the text is not a pod's token."""
    try:
        payload = token.split(".")[1]
        found = orjson.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        audiences, kubernetes = found["aud"], found["kubernetes.io"]
        pod = kubernetes["pod"]
        names = tuple(audiences) if isinstance(audiences, list) else (str(audiences),)
        claimed = kubernetes["namespace"], pod["name"], pod["uid"]
        return Claims(names, *claimed) if all(isinstance(value, str) for value in claimed) else None
    except (IndexError, KeyError, TypeError, ValueError):
        return None


class Authenticator:
    """Authenticates requests."""

    def __init__(self, port: TokenPort, cache: InformerCache, clock: Callable[[], float] = time.monotonic) -> None:
        """Create an authenticator.

        Args:
            port: reviews tokens.
            cache: the jobs and their pods.
            clock: monotonic seconds.
        """
        self._port, self._cache, self._clock = port, cache, clock
        self._reviewed: OrderedDict[bytes, float] = OrderedDict()
        self._slots = asyncio.Semaphore(IN_FLIGHT)

    async def authenticate(self, key: Key, header: str, *, reads: bool = False) -> AcceptedPod | Refusal:
        """Return the pod that may report the progress of its job, or read the history.

        Args:
            key: the job that the request names.
            header: the request's header Authorization.
            reads: whether the request reads the history; otherwise it reports progress.

        Raises:
            ApiError: the API server could not review the token.
        """
        found = self.known(key, header, reads=reads)
        if not isinstance(found, Unreviewed):
            return found
        if await self._is_valid(found):
            return AcceptedPod(found.uid, found.claims.pod_uid)
        return Refusal(401, "the API server does not accept the token")

    def known(self, key: Key, header: str, *, reads: bool = False) -> AcceptedPod | Refusal | Unreviewed:
        """Return the same as `authenticate` if no review is needed. It may be called in any thread.

        Args:
            key: the job that the request names.
            header: the request's header Authorization.
            reads: see `authenticate`.
        """
        scheme, _, token = header.partition(" ")
        claims = read_claims(token.strip()) if scheme.lower() == "bearer" else None
        if claims is None:
            return Refusal(401, "the request needs a bearer token: the one in the pod's projected volume")
        job, pod = self._cache.job_and_pod(key, claims.pod_name)
        uid = "" if job is None else str(job["metadata"]["uid"])
        # One answer for both: a pod with any token must not find out which jobs exist.
        if job is None or progress_audience(uid) not in claims.audiences or claims.namespace != key[0]:
            return Refusal(403, "the token was issued for another job, or the job no longer exists")
        allowed = has_chief_duty if reads else may_report
        if pod is None or pod["metadata"]["uid"] != claims.pod_uid or not allowed(job, pod):
            what = "reads the history" if reads else "reports progress"
            return Refusal(403, f"only the newest pod of the chief, or of worker 0 in a job without one, {what}")
        audience, text = progress_audience(uid), token.strip()
        digest = hashlib.sha256(f"{audience}\0{text}".encode()).digest()
        if self._reviewed.get(digest, 0.0) > self._clock():
            return AcceptedPod(uid, claims.pod_uid)
        return Unreviewed(uid, claims, text, audience, digest)

    async def _is_valid(self, request: Unreviewed) -> bool:
        async with self._slots:
            status = await self._port.review_token(request.token, request.audience)
        valid = _confirms(status, request.audience, request.claims)
        if valid:
            self._reviewed[request.digest] = self._clock() + REVIEW_SECONDS
            self._reviewed.move_to_end(request.digest)
            while len(self._reviewed) > REVIEWS_MAX:
                self._reviewed.popitem(last=False)
        return valid


def _confirms(status: Mapping[str, Any], audience: str, claims: Claims) -> bool:
    """Whether the API server confirms a token's claims."""
    user = status.get("user") or {}
    extra = user.get("extra") or {}
    return (
        status.get("authenticated") is True
        and audience in (status.get("audiences") or ())
        and str(user.get("username", "")).startswith(f"system:serviceaccount:{claims.namespace}:")
        and list(extra.get(POD_NAME) or ()) == [claims.pod_name]
        and list(extra.get(POD_UID) or ()) == [claims.pod_uid]
    )
