"""Implements the port over HTTP with the configuration, credentials and connections of kubernetes.aio's client.

Bodies are plain JSON. The typed Api classes of kubernetes.aio validate every body and parse every answer into models,
which costs more than the request itself. This module needs only a few paths and five verbs.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
import orjson
from kubernetes.aio.client import ApiClient, Configuration

from pstraining.api import names
from pstraining.api.container_logs import kubelet_error
from pstraining.core.actions import Kind, Manifest
from pstraining.core.observe import controller_uid
from pstraining.kube.errors import ApiError, NotFound, from_exception, from_response
from pstraining.kube.paths import EVENTS, LEASES, RESOURCES, SECRETS
from pstraining.kube.port import Object
from pstraining.kube.slots import AdaptiveLimiter

logger = logging.getLogger(__name__)

IN_FLIGHT: Final = 32
"""Maximum number of concurrent requests; more only make an API server slower."""
ADDRESSES: Final = 4
"""Maximum number of concurrent creations of Services that get a cluster IP. With 16, an API server created 38 per
second, with 8 it created 71, with one 119. Under load some creations took longer than ten seconds and were sent again.
With 2, a busy API server that took a second for each one delayed all other creations. With 8, the ten Services of one
large job were the last of its children to exist; with 3 they were not."""
WARNINGS_MAX: Final = 50
"""Maximum number of events that are read about one object: Kubernetes counts repetitions in one event."""
LOG_ATTEMPTS: Final = 4
"""Attempts to read a log whose container the kubelet does not find."""
LOG_PAUSE_SECONDS: Final = 1.0
LOG_ERROR_BYTES: Final = 4096
"""Number of bytes from which content is a log, and not an error."""
JSON: Final = "application/json"
METADATA: Final = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Accept this for a list without specs, which are much larger."""
APPLY: Final = "application/apply-patch+yaml"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"


class KubeClient:
    """ApiPort and LeasePort over HTTP."""

    def __init__(self, configuration: Configuration, *, timeout: float = 10.0, user_agent: str = "pstraining") -> None:
        """Create a client without sending a request.

        Args:
            configuration: the API server's address, and our credentials.
            timeout: seconds after which a request fails, including the connection.
            user_agent: the operator's name in the API server's audit log.
        """
        self.configuration = configuration
        self._api = ApiClient(configuration)
        self._timeout = aiohttp.ClientTimeout(total=timeout, connect=timeout)
        self._user_agent = user_agent
        self._requests = AdaptiveLimiter(IN_FLIGHT)
        self._addresses = AdaptiveLimiter(ADDRESSES)

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def create(self, kind: Kind, namespace: str, body: Manifest) -> Object:
        """POST with strict field validation."""
        query = {"fieldManager": names.FIELD_MANAGER, "fieldValidation": "Strict"}
        path = RESOURCES[kind].path(namespace)
        if not takes_address(kind, body):
            return await self._request("POST", path, query, dict(body))
        release = await self._addresses.acquire()
        try:
            return await self._request("POST", path, query, dict(body))
        finally:
            release()

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Read one object."""
        return await self._request("GET", RESOURCES[kind].path(namespace, name))

    async def owned(self, kind: Kind, namespace: str, uid: str) -> list[Object]:
        """Read the metadata of all objects of a kind whose controller has this uid."""
        answer = await self._request("GET", RESOURCES[kind].path(namespace), accept=METADATA)
        return [found for found in answer.get("items") or () if controller_uid(found) == uid]

    async def apply(self, kind: Kind, namespace: str, name: str, body: Manifest) -> Object:
        """Forced server-side apply by our field manager."""
        path = RESOURCES[kind].path(namespace, name)
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true", "fieldValidation": "Strict"}
        return await self._request("PATCH", path, query, dict(body), APPLY)

    async def replace(self, kind: Kind, namespace: str, name: str, uid: str, parts: Mapping[str, Any]) -> Object:
        """JSON Patch by our field manager; writing the uid as well makes it a precondition."""
        path = RESOURCES[kind].path(namespace, name)
        query = {"fieldManager": names.FIELD_MANAGER, "fieldValidation": "Strict"}
        return await self._request("PATCH", path, query, json_patch({"/metadata/uid": uid, **parts}), JSON_PATCH)

    async def resize(self, namespace: str, name: str, uid: str, container: str, resources: Mapping[str, Any]) -> Object:
        """Strategic merge patch of the subresource `resize` by our field manager, with the uid as a precondition."""
        path = RESOURCES[Kind.POD].path(namespace, name, "resize")
        query = {"fieldManager": names.FIELD_MANAGER, "fieldValidation": "Strict"}
        containers = [{"name": container, "resources": dict(resources)}]
        body = {"metadata": {"uid": uid}, "spec": {"containers": containers}}
        return await self._request("PATCH", path, query, body, STRATEGIC_MERGE_PATCH)

    async def delete(
        self, kind: Kind, namespace: str, name: str, uid: str, grace_seconds: int | None = None
    ) -> Object | None:
        """Delete in the background with a uid precondition."""
        body: dict[str, Any] = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        answer = await self._request("DELETE", RESOURCES[kind].path(namespace, name), body=body)
        # Some kinds return a Status, others the object's last state. An object has a deletionTimestamp only while
        # finalizers or a grace period keep it.
        metadata = answer.get("metadata") or {}
        kept_by = metadata.get("finalizers") if grace_seconds == 0 else metadata.get("deletionTimestamp")
        return answer if kept_by else None

    async def patch_status(self, namespace: str, name: str, body: Manifest) -> Object:
        """Forced server-side apply to the status subresource by the status's own field manager."""
        path = RESOURCES[Kind.PS_TRAINING_JOB].path(namespace, name, "status")
        query = {"fieldManager": names.STATUS_FIELD_MANAGER, "force": "true"}
        return await self._request("PATCH", path, query, dict(body), APPLY)

    async def merge_status(self, kind: Kind, namespace: str, name: str, version: str, status: Manifest) -> Object:
        """JSON merge patch to the status subresource by our field manager."""
        path = RESOURCES[kind].path(namespace, name, "status")
        body = {"metadata": {"resourceVersion": version}, "status": dict(status)}
        return await self._request("PATCH", path, {"fieldManager": names.FIELD_MANAGER}, body, MERGE_PATCH)

    async def patch_progress(self, namespace: str, name: str, version: str, progress: Manifest) -> Object:
        """JSON merge patch to the status subresource by the progress's own field manager."""
        path = RESOURCES[Kind.PS_TRAINING_JOB].path(namespace, name, "status")
        body = {"metadata": {"resourceVersion": version}, "status": {"training": dict(progress)}}
        return await self._request("PATCH", path, {"fieldManager": names.PROGRESS_FIELD_MANAGER}, body, MERGE_PATCH)

    async def review_token(self, token: str, audience: str) -> Mapping[str, Any]:
        """Return the status of a TokenReview for one audience."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        answer = await self._request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body=body)
        status: Mapping[str, Any] = answer.get("status") or {}
        return status

    async def get_secret(self, namespace: str, name: str) -> Object:
        """Read a Secret."""
        return await self._request("GET", SECRETS.path(namespace, name))

    async def create_secret(self, namespace: str, body: Manifest) -> Object:
        """Create a Secret; raises Conflict if it exists already."""
        return await self._request("POST", SECRETS.path(namespace), body=dict(body))

    async def warnings(self, namespace: str, uid: str) -> list[Object]:
        """Read the events of type Warning about one object, at most WARNINGS_MAX."""
        query = {"fieldSelector": f"type=Warning,involvedObject.uid={uid}", "limit": str(WARNINGS_MAX)}
        answer = await self._request("GET", f"/api/v1/namespaces/{namespace}/events", query)
        return list(answer.get("items") or ())

    async def log(self, namespace: str, pod: str, container: str, *, previous: bool, lines: int, limit: int) -> bytes:
        """Return the last lines of a container's log, and of these the first `limit` bytes.

        The kubelet may name a container that it has just removed, until it has updated the pod's status. The log is
        then requested again.

        Raises:
            NotFound: there is no such pod, or its kubelet does not find the log.
        """
        query = {"container": container, "tailLines": str(lines), "limitBytes": str(limit)}
        query |= {"previous": "true"} if previous else {}
        path = RESOURCES[Kind.POD].path(namespace, pod, "log")
        for attempt in range(LOG_ATTEMPTS):
            await asyncio.sleep(LOG_PAUSE_SECONDS if attempt else 0)
            release = await self._requests.acquire(("GET", path, None))
            try:
                content = await self._fetch("GET", path, query, None, JSON, accept="*/*")
            finally:
                release()
            error = kubelet_error(content.decode(errors="replace")) if len(content) < LOG_ERROR_BYTES else None
            if error is None:
                return content
        raise _logged(NotFound(f"the kubelet does not find the log: {error}", status=404), "GET", path)

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
        """Whether the API server serves our kind: its CRD is installed and established."""
        return await self._serves(names.API_VERSION, names.PLURAL)

    async def queues_are_served(self) -> bool:
        """Whether the API server serves Kueue's Workloads in the version that the operator uses, and creates them.

        While a CRD is being deleted, the API server deletes its objects, and lists no verb that writes one.
        """
        resource = RESOURCES[Kind.WORKLOAD]
        return await self._serves(resource.api_version, resource.plural, "create")

    async def assigns_ids(self) -> bool:
        """Whether the platform assigns pods their user and group IDs: the API server serves OpenShift's
        SecurityContextConstraints."""
        return await self._serves("security.openshift.io/v1", "securitycontextconstraints")

    async def pods_are_resized(self) -> bool:
        """Whether the API server serves the subresource by which running pods are resized (Kubernetes 1.33)."""
        return await self._serves("v1", "pods/resize")

    async def _serves(self, api_version: str, plural: str, verb: str = "get") -> bool:
        try:
            resources = await self._request("GET", f"/{'apis' if '/' in api_version else 'api'}/{api_version}")
        except NotFound:
            return False
        found = (r for r in resources.get("resources") or () if r.get("name") == plural)
        return any(verb in (r.get("verbs") or (verb,)) for r in found)

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Object:
        """Send one request and return its answer as JSON.

        Raises:
            ApiError: one of its four classes; no other error is raised.
        """
        # Only the path of a creation lacks the object's name; some bodies have no metadata.
        name = (body.get("metadata") or {}).get("name") if method == "POST" else None
        release = await self._requests.acquire((method, path, name))
        try:
            return await self._send(method, path, query, body, content_type, accept)
        finally:
            release()

    async def _send(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Any, content_type: str, accept: str
    ) -> Object:
        data = await self._fetch(method, path, query, body, content_type, accept)
        try:
            content = orjson.loads(data)
        except ValueError as error:
            raise _logged(from_exception(error), method, path) from error
        return content if isinstance(content, dict) else {}

    async def _fetch(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        accept: str = JSON,
    ) -> bytes:
        headers = {"Accept": accept, "Content-Type": content_type, "User-Agent": self._user_agent}
        url = f"{self.configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, None)
            answer = await self._api.rest_client.request(  # type: ignore[no-untyped-call]
                method, url, headers=headers, body=body, _request_timeout=self._timeout
            )
            data: bytes = await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            raise _logged(from_exception(error), method, path) from error
        if not 200 <= answer.status <= 299:
            raise _logged(from_response(answer.status, data, answer.headers), method, path)
        return data


def json_patch(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the operations (RFC 6902) that set all values by their JSON pointers; None removes a member."""
    # "add" replaces the value of a member that exists (4.1). "remove" demands that the member exists.
    return [
        {"op": "remove", "path": place} if value is None else {"op": "add", "path": place, "value": value}
        for place, value in values.items()
    ]


def takes_address(kind: Kind, body: Manifest) -> bool:
    """Whether the API server assigns a cluster IP to a new object."""
    return kind is Kind.SERVICE and (body.get("spec") or {}).get("clusterIP") != "None"


def _logged(error: ApiError, method: str, path: str) -> ApiError:
    logger.debug("%s %s: %s %s", method, path, error.status, error.message)
    return error
