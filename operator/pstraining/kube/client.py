"""The port over HTTP, on kubernetes.aio's client: its configuration, credentials and connections, plain JSON bodies.

The typed Api classes validate every body and parse every answer into models, which costs more than the request
itself; what is needed of them here is eight paths and five verbs.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
import orjson
from kubernetes.aio.client import ApiClient, Configuration

from pstraining.api import names
from pstraining.core.actions import Kind, Manifest
from pstraining.kube.errors import ApiError, NotFound, from_exception, from_response
from pstraining.kube.paths import EVENTS, LEASES, RESOURCES
from pstraining.kube.places import Places
from pstraining.kube.port import Object

logger = logging.getLogger(__name__)

IN_FLIGHT: Final = 32
"""Requests that are in flight at a time; more only make an API server slower."""
ADDRESSES: Final = 4
"""Creations of Services with an address of their own among them. With 16 at a time an API server made a third of what
it made with one (38 and 119 a second, 71 with 8), and under load some took longer than ten seconds, so that they were
sent again. With 2 a busy one, which took a second for each, held all other creations up; with 8 the ten of one large
job were the last of its children to be there, with 3 they were not."""
JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"
JSON_PATCH: Final = "application/json-patch+json"


class KubeClient:
    """ApiPort and LeasePort over HTTP."""

    def __init__(self, configuration: Configuration, *, timeout: float = 10.0, user_agent: str = "pstraining") -> None:
        """Make a client; nothing is sent yet.

        Args:
            configuration: where the API server is, and our credentials.
            timeout: seconds after which a request counts as failed, connecting included.
            user_agent: who we are in the API server's audit log.
        """
        self.configuration = configuration
        self._api = ApiClient(configuration)
        self._timeout = aiohttp.ClientTimeout(total=timeout, connect=timeout)
        self._user_agent = user_agent
        self._places = Places(IN_FLIGHT)
        self._addresses = Places(ADDRESSES)

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def create(self, kind: Kind, namespace: str, body: Manifest) -> Object:
        """POST with strict field validation."""
        query = {"fieldManager": names.FIELD_MANAGER, "fieldValidation": "Strict"}
        path = RESOURCES[kind].path(namespace)
        if not takes_address(kind, body):
            return await self._request("POST", path, query, dict(body))
        leave = await self._addresses.take()
        try:
            return await self._request("POST", path, query, dict(body))
        finally:
            leave()

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Read one object."""
        return await self._request("GET", RESOURCES[kind].path(namespace, name))

    async def apply(self, kind: Kind, namespace: str, name: str, body: Manifest) -> Object:
        """Forced server-side apply by our field manager."""
        path = RESOURCES[kind].path(namespace, name)
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true", "fieldValidation": "Strict"}
        return await self._request("PATCH", path, query, dict(body), APPLY)

    async def replace(self, kind: Kind, namespace: str, name: str, uid: str, parts: Mapping[str, Any]) -> Object:
        """JSON Patch by our field manager; the uid, written as well, is a precondition."""
        path = RESOURCES[kind].path(namespace, name)
        query = {"fieldManager": names.FIELD_MANAGER, "fieldValidation": "Strict"}
        values = {"/metadata/uid": uid, **parts}
        body = [{"op": "replace", "path": place, "value": value} for place, value in values.items()]
        return await self._request("PATCH", path, query, body, JSON_PATCH)

    async def delete(
        self, kind: Kind, namespace: str, name: str, uid: str, grace_seconds: int | None = None
    ) -> Object | None:
        """Delete in the background with a uid precondition."""
        body: dict[str, Any] = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        answer = await self._request("DELETE", RESOURCES[kind].path(namespace, name), body=body)
        # Some kinds answer with a Status, some with the object as it was last; only one that is still held by
        # finalizers or a grace period says since when it is being deleted.
        metadata = answer.get("metadata") or {}
        held = metadata.get("finalizers") if grace_seconds == 0 else metadata.get("deletionTimestamp")
        return answer if held else None

    async def patch_status(self, namespace: str, name: str, body: Manifest) -> Object:
        """Forced server-side apply to the status subresource by the status's own field manager."""
        path = RESOURCES[Kind.PS_TRAINING_JOB].path(namespace, name, "status")
        query = {"fieldManager": names.STATUS_FIELD_MANAGER, "force": "true"}
        return await self._request("PATCH", path, query, dict(body), APPLY)

    async def create_event(self, namespace: str, body: Manifest) -> None:
        """POST an event."""
        await self._request("POST", EVENTS.path(namespace), {"fieldManager": names.FIELD_MANAGER}, dict(body))

    async def get_lease(self, namespace: str, name: str) -> Object:
        """Read the Lease."""
        return await self._request("GET", LEASES.path(namespace, name))

    async def create_lease(self, namespace: str, body: Mapping[str, Any]) -> Object:
        """Create the Lease."""
        return await self._request("POST", LEASES.path(namespace), body=dict(body))

    async def replace_lease(self, namespace: str, name: str, body: Mapping[str, Any]) -> Object:
        """Replace the Lease."""
        return await self._request("PUT", LEASES.path(namespace, name), body=dict(body))

    async def api_is_served(self) -> bool:
        """Whether the API server knows our kind: its CRD is installed and accepted."""
        try:
            found = await self._request("GET", f"/apis/{names.API_VERSION}")
        except NotFound:
            return False
        return any(r.get("name") == names.PLURAL for r in found.get("resources") or ())

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
    ) -> Object:
        """Send one request; its answer as JSON.

        Raises:
            ApiError: any of its four classes, nothing else.
        """
        name = body["metadata"].get("name") if method == "POST" else None  # the others' paths have it
        leave = await self._places.take((method, path, name))
        try:
            return await self._send(method, path, query, body, content_type)
        finally:
            leave()

    async def _send(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Any, content_type: str
    ) -> Object:
        headers = {"Accept": JSON, "Content-Type": content_type, "User-Agent": self._user_agent}
        url = f"{self.configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, None)
            answer = await self._api.rest_client.request(  # type: ignore[no-untyped-call]
                method, url, headers=headers, body=body, _request_timeout=self._timeout
            )
            data: bytes = await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            raise _told(from_exception(error), method, path) from error
        if not 200 <= answer.status <= 299:
            raise _told(from_response(answer.status, data, answer.headers), method, path)
        try:
            found = orjson.loads(data)
        except ValueError as error:
            raise _told(from_exception(error), method, path) from error
        return found if isinstance(found, dict) else {}


def takes_address(kind: Kind, body: Manifest) -> bool:
    """Whether the API server has to find an address for a new object."""
    return kind is Kind.SERVICE and (body.get("spec") or {}).get("clusterIP") != "None"


def _told(error: ApiError, method: str, path: str) -> ApiError:
    logger.debug("%s %s: %s %s", method, path, error.status, error.message)
    return error
