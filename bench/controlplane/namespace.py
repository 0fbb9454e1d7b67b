"""A namespace for one run, and the benchmark's requests in it."""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from bench.controlplane.audit import LOADER, AuditLog
from bench.controlplane.programs import ROOT, Starter
from pstraining.api import names
from pstraining.controller.registration import CHILDREN
from pstraining.core.actions import Kind
from pstraining.kube.client import APPLY, KubeClient
from pstraining.kube.connection import load_configuration
from pstraining.kube.errors import ApiError, NotFound, Transient
from pstraining.kube.paths import Resource

CONCURRENCY = 32
"""Number of concurrent requests while a load is created."""
CRD = ROOT / "crds" / "pstraining.dev_pstrainingjobs.yaml"
MERGE = "application/merge-patch+json"
LIST_ATTEMPTS: Final = 5
Renew = Callable[[], None]


@dataclass
class Bench:
    """One cluster."""

    client: KubeClient
    audit: AuditLog
    starter: Starter
    folder: Path
    limit: float
    """Time limit in seconds for each wait."""
    renew: Renew | None = None
    """Recreates the cluster at the same address; None for a cluster of another process."""

    @asynccontextmanager
    async def namespace(self, what: str) -> AsyncIterator[str]:
        """Provide a new namespace, and delete it afterwards.

        If possible the whole cluster is recreated instead. Every program then starts with an empty cluster, and the
        thousands of objects of a large load need no garbage collection.
        """
        name = f"bench-{what}-{uuid.uuid4().hex[:6]}"
        await self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        try:
            yield name
        finally:
            if self.renew is None:
                await self.request("DELETE", f"/api/v1/namespaces/{name}")
                await self._gone(name)
            else:
                await self.client.close()
                await asyncio.to_thread(self.renew)
                self.client = await _connected(self.starter.target)

    async def request(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Any:
        """Send one request."""
        return await self.client._request(method, path, None, body, content)

    async def create_jobs(self, namespace: str, manifests: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """POST jobs as fast as possible."""
        made = (self.client.create(Kind.PS_TRAINING_JOB, namespace, manifest) for manifest in manifests)
        return await together(made)

    async def set_status(self, namespace: str, name: str, status: dict[str, Any]) -> None:
        """Store a job's status."""
        path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}/{name}/status"
        await self.request("PATCH", path, {"status": status}, MERGE)

    async def list(self, path: str) -> list[dict[str, Any]]:
        """Return all objects of a collection, with a long timeout for lists of thousands on a busy machine."""
        for _ in range(LIST_ATTEMPTS - 1):
            try:
                return list((await self.request("GET", path)).get("items") or ())
            except Transient:
                await asyncio.sleep(1.0)
        return list((await self.request("GET", path)).get("items") or ())

    async def running_jobs(self, namespace: str, prefix: str = "") -> int:
        """Return the running jobs with a name's prefix whose workers are all ready."""
        jobs = await self.list(f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}")
        found = [j.get("status") or {} for j in jobs if j["metadata"]["name"].startswith(prefix)]
        return sum(
            s.get("phase") == "Running" and s["worker"].get("ready") == s["worker"].get("desired") for s in found
        )

    async def watched_objects(self, namespace: str) -> int:
        """Return the number of objects in the operator's watches."""
        count = len(await self.list(f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"))
        for group, version, plural in CHILDREN:
            api = f"apis/{group}/{version}" if group else f"api/{version}"
            path = Resource(api, plural).path(namespace)
            count += len(await self.list(f"{path}?labelSelector={names.LABEL_JOB_UID}"))
        return count

    async def _gone(self, namespace: str) -> None:
        for _ in range(int(self.limit * 2)):
            try:
                await self.request("GET", f"/api/v1/namespaces/{namespace}")
            except NotFound:
                return
            except ApiError:
                pass
            await asyncio.sleep(0.5)
        raise TimeoutError(f"namespace {namespace} does not go")


@asynccontextmanager
async def opened(
    target: dict[str, str], audit: Path, folder: Path, limit: float, renew: Renew | None = None
) -> AsyncIterator[Bench]:
    """Provide the benchmark on one cluster, with the CRD installed."""
    bench = Bench(await _connected(target), AuditLog(audit), Starter(target, folder), folder, limit, renew)
    try:
        yield bench
    finally:
        await bench.starter.stop()
        await bench.client.close()


async def _connected(target: dict[str, str]) -> KubeClient:
    client = KubeClient(await load_configuration(target), user_agent=f"{LOADER}/1", timeout=60)
    crd = yaml.safe_load(CRD.read_text())
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
    await client._request("PATCH", path, {"fieldManager": LOADER, "force": "true"}, crd, APPLY)
    while not await client.api_is_served():  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    return client


async def together(work: Iterable[Any], concurrency: int = CONCURRENCY) -> list[Any]:
    """Await many coroutines, a number of them concurrently."""
    slots = asyncio.Semaphore(concurrency)

    async def one(each: Any) -> Any:
        async with slots:
            return await each

    return list(await asyncio.gather(*(one(each) for each in work)))


def sample(found: list[Any], count: int) -> list[Any]:
    """Return a sample, which is equal in every run."""
    return random.Random(1).sample(found, min(count, len(found)))
