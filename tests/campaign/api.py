"""The campaign's own access to the API server, without a proxy: raw requests, and one view of all namespaces."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from pstraining.api import names

Object = dict[str, Any]

JOBS = f"/apis/{names.API_VERSION}"
BASES = {
    "pods": "/api/v1",
    "services": "/api/v1",
    "configmaps": "/api/v1",
    "persistentvolumeclaims": "/api/v1",
    "statefulsets": "/apis/apps/v1",
    "deployments": "/apis/apps/v1",
    "jobs": "/apis/batch/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
    names.PLURAL: JOBS,
}
"""The API path of each kind that a job may own."""
QUEUE_API = "/apis/kueue.x-k8s.io/v1beta2"


@dataclass(frozen=True)
class Answer:
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Object:
        """Return the decoded JSON body."""
        found: Object = json.loads(self.body or b"{}")
        return found


class Api:
    """Sends requests to the API server."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.bases = dict(BASES)
        """The API path of each kind that a job may own in this cluster."""
        self._client = ApiClient(configuration)
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._client.rest_client.ssl_context, limit=0), read_bufsize=2**21
        )

    async def close(self) -> None:
        """Close all connections."""
        await self.session.close()
        await self._client.close()  # type: ignore[no-untyped-call]

    def stream(self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None) -> Any:
        """Send a request whose response the caller reads inside the block."""
        timeout = aiohttp.ClientTimeout(total=None)
        return self.session.request(
            method, self.configuration.host + path, headers=headers or {}, data=body or None, timeout=timeout
        )

    async def send(self, method: str, path: str, headers: dict[str, str], body: bytes | None) -> Answer:
        """Send a request unchanged."""
        async with self.stream(method, path, headers, body) as answer:
            kept = {k: v for k, v in answer.headers.items() if k in ("Content-Type", "Retry-After")}
            return Answer(answer.status, kept, await answer.read())

    async def ask(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Object:
        """Send a request that must succeed; return the decoded JSON. An object to delete may be absent."""
        sent = None if body is None else json.dumps(body).encode()
        answer = await self.send(method, path, {"Content-Type": content, "Accept": "application/json"}, sent)
        if answer.status >= 400 and not (method == "DELETE" and answer.status == 404):
            raise AssertionError(f"{method} {path}: {answer.status} {answer.body.decode(errors='replace')[:500]}")
        return answer.json()

    async def merge(self, path: str, body: Object) -> Object:
        """Apply a merge patch."""
        return await self.ask("PATCH", path, body, "application/merge-patch+json")


@dataclass
class Watched:
    """The current jobs and pods of all namespaces."""

    api: Api
    objects: dict[tuple[str, str], dict[str, Object]] = field(default_factory=dict)
    """By plural and namespace, then by uid."""
    born: dict[str, dict[str, Object]] = field(default_factory=dict)
    """Every pod since the beginning, by namespace and uid."""
    history: dict[str, list[tuple[str, Object]]] = field(default_factory=dict)
    """Every version of the pods and of Kueue's Workloads, by namespace: the type of the event, and the object."""
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    async def open(self) -> None:
        """Start the watches."""
        followed = [plural for plural in ("pods", names.PLURAL, "workloads") if plural in self.api.bases]
        self._tasks = [asyncio.create_task(self._follow(plural)) for plural in followed]

    async def close(self) -> None:
        """Stop the watches."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def pods(self, namespace: str) -> list[Object]:
        """Return the pods of a namespace."""
        return list(self.objects.get(("pods", namespace), {}).values())

    def workloads(self, namespace: str) -> list[Object]:
        """Return Kueue's Workloads in a namespace."""
        return list(self.objects.get(("workloads", namespace), {}).values())

    def job(self, namespace: str) -> Object | None:
        """Return the only job of a namespace."""
        return next(iter(self.objects.get((names.PLURAL, namespace), {}).values()), None)

    async def until(self, check: Callable[[], bool], what: str, limit: float) -> None:
        """Wait until the condition holds for the watched objects.

        Raises:
            TimeoutError: the condition does not become true.
            AssertionError: a watch has ended.
        """
        for task in self._tasks:
            assert not task.done(), f"the campaign's own watch ended: {task.exception()}"
        try:
            async with asyncio.timeout(limit), self._changed:
                await self._changed.wait_for(check)
        except TimeoutError:
            raise TimeoutError(f"not within {limit:.0f} s: {what}") from None

    async def _follow(self, plural: str) -> None:
        while True:
            path = f"{self.api.bases[plural]}/{plural}"
            listed = await self.api.ask("GET", path)
            for key in [k for k in self.objects if k[0] == plural]:
                del self.objects[key]
            for item in listed["items"]:
                await self._see(plural, "ADDED", item)
            version = listed["metadata"]["resourceVersion"]
            async with self.api.stream("GET", f"{path}?watch=true&resourceVersion={version}") as answer:
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        break
                    await self._see(plural, event["type"], event["object"])

    async def _see(self, plural: str, kind: str, found: Object) -> None:
        metadata = found["metadata"]
        held = self.objects.setdefault((plural, metadata["namespace"]), {})
        if kind == "DELETED":
            held.pop(metadata["uid"], None)
        else:
            held[metadata["uid"]] = found
        if plural != names.PLURAL:
            self.history.setdefault(metadata["namespace"], []).append((kind, found))
        if plural == "pods":
            self.born.setdefault(metadata["namespace"], {})[metadata["uid"]] = found
        async with self._changed:
            self._changed.notify_all()
