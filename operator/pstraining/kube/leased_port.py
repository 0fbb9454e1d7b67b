"""Refuses every write of an operator that does not hold the Lease.

A pass may be running when the Lease is lost: the process was paused, or the API server was unreachable for too long.
The plan of such a pass is outdated if a successor has acted meanwhile. Versions and uids make most of its writes
harmless, but not all: an old replica count would undo the successor's scale-up.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pstraining.core.actions import Kind, Manifest
from pstraining.kube.errors import Transient
from pstraining.kube.port import ApiPort, Object


class LeasedPort:
    """An `ApiPort` whose writes raise Transient while the Lease is not held; reads go through.

    Args:
        port: carries out the calls.
        is_held: whether this operator holds the Lease now.
    """

    def __init__(self, port: ApiPort, is_held: Callable[[], bool]) -> None:
        self._port = port
        self._is_held = is_held

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """See `ApiPort.get`."""
        return await self._port.get(kind, namespace, name)

    async def create(self, kind: Kind, namespace: str, body: Manifest) -> Object:
        """See `ApiPort.create`."""
        return await self._guarded().create(kind, namespace, body)

    async def apply(self, kind: Kind, namespace: str, name: str, body: Manifest) -> Object:
        """See `ApiPort.apply`."""
        return await self._guarded().apply(kind, namespace, name, body)

    async def replace(self, kind: Kind, namespace: str, name: str, uid: str, parts: Mapping[str, Any]) -> Object:
        """See `ApiPort.replace`."""
        return await self._guarded().replace(kind, namespace, name, uid, parts)

    async def delete(
        self, kind: Kind, namespace: str, name: str, uid: str, grace_seconds: int | None = None
    ) -> Object | None:
        """See `ApiPort.delete`."""
        return await self._guarded().delete(kind, namespace, name, uid, grace_seconds)

    async def patch_status(self, namespace: str, name: str, body: Manifest) -> Object:
        """See `ApiPort.patch_status`."""
        return await self._guarded().patch_status(namespace, name, body)

    async def create_event(self, namespace: str, body: Manifest) -> None:
        """See `ApiPort.create_event`."""
        await self._guarded().create_event(namespace, body)

    def _guarded(self) -> ApiPort:
        if not self._is_held():
            raise Transient("this operator does not hold the Lease; the holder makes the write")
        return self._port
