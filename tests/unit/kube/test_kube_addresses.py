"""Services with an address are created a few at a time, because more of them only slow an API server down."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from pstraining.core.actions import Kind
from pstraining.kube.client import ADDRESSES, KubeClient
from pstraining.kube.port import Object

pytestmark = pytest.mark.asyncio


class SlowClient(KubeClient):
    """Holds requests until they are released, and counts those in flight."""

    def __init__(self) -> None:
        super().__init__(Configuration())
        self.go = asyncio.Event()
        self.under_way = 0

    async def _send(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Any, content: str, accept: str
    ) -> Object:
        self.under_way += 1
        await self.go.wait()
        return {}


async def sent(kind: Kind, spec: dict[str, Any]) -> int:
    client = SlowClient()
    body = {"metadata": {"name": "a"}, "spec": spec}
    tasks = [asyncio.create_task(client.create(kind, "ns", body)) for _ in range(ADDRESSES + 3)]
    for _ in range(10):
        await asyncio.sleep(0)
    found = client.under_way
    client.go.set()
    await asyncio.gather(*tasks)
    assert client.under_way == ADDRESSES + 3, "none is lost"
    await client.close()
    return found


async def test_only_a_few_services_with_an_address_are_created_at_a_time() -> None:
    assert await sent(Kind.SERVICE, {"ports": []}) == ADDRESSES


async def test_objects_without_an_address_do_not_wait() -> None:
    assert await sent(Kind.SERVICE, {"clusterIP": "None"}) == ADDRESSES + 3
    assert await sent(Kind.DEPLOYMENT, {}) == ADDRESSES + 3
