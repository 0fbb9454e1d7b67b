"""Refuses every write of an operator that does not hold the Lease.

A pass may be running when the Lease is lost: the process was paused, or the API server was unreachable for too long.
The plan of such a pass is outdated if a successor has acted meanwhile. Versions and uids make most of its writes
harmless, but not all: an old replica count would undo the successor's scale-up. A write that was already sent cannot be
withdrawn either. An operator that stops before its answer therefore lets the Lease expire, and does not release it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from pstraining.core.actions import Kind, Manifest
from pstraining.kube.errors import Transient
from pstraining.kube.port import ApiPort, Object

_Answer = TypeVar("_Answer")


class LeasedPort:
    """An `ApiPort` whose writes raise Transient while the Lease is not held; reads are always sent.

    Args:
        port: carries out the calls.
        is_held: returns whether this operator holds the Lease now.
        on_write: called after each successful write.
    """

    def __init__(self, port: ApiPort, is_held: Callable[[], bool], on_write: Callable[[], None] = lambda: None) -> None:
        self._port = port
        self._is_held = is_held
        self._on_write = on_write
        self._is_unanswered = False

    @property
    def is_unanswered(self) -> bool:
        """Whether a write was cancelled before its answer; the API server may still carry it out."""
        return self._is_unanswered

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """See `ApiPort.get`."""
        return await self._port.get(kind, namespace, name)

    async def owned(self, kind: Kind, namespace: str, uid: str) -> list[Object]:
        """See `ApiPort.owned`."""
        return await self._port.owned(kind, namespace, uid)

    async def queues_are_served(self) -> bool:
        """See `ApiPort.queues_are_served`."""
        return await self._port.queues_are_served()

    async def create(self, kind: Kind, namespace: str, body: Manifest) -> Object:
        """See `ApiPort.create`."""
        return await self._sent(lambda: self._port.create(kind, namespace, body))

    async def apply(self, kind: Kind, namespace: str, name: str, body: Manifest) -> Object:
        """See `ApiPort.apply`."""
        return await self._sent(lambda: self._port.apply(kind, namespace, name, body))

    async def replace(self, kind: Kind, namespace: str, name: str, uid: str, parts: Mapping[str, Any]) -> Object:
        """See `ApiPort.replace`."""
        return await self._sent(lambda: self._port.replace(kind, namespace, name, uid, parts))

    async def resize(self, namespace: str, name: str, uid: str, container: str, resources: Mapping[str, Any]) -> Object:
        """See `ApiPort.resize`."""
        return await self._sent(lambda: self._port.resize(namespace, name, uid, container, resources))

    async def delete(
        self, kind: Kind, namespace: str, name: str, uid: str, grace_seconds: int | None = None
    ) -> Object | None:
        """See `ApiPort.delete`."""
        return await self._sent(lambda: self._port.delete(kind, namespace, name, uid, grace_seconds))

    async def merge_status(self, kind: Kind, namespace: str, name: str, version: str, status: Manifest) -> Object:
        """See `ApiPort.merge_status`."""
        return await self._sent(lambda: self._port.merge_status(kind, namespace, name, version, status))

    async def patch_status(self, namespace: str, name: str, body: Manifest) -> Object:
        """See `ApiPort.patch_status`."""
        return await self._sent(lambda: self._port.patch_status(namespace, name, body))

    async def patch_progress(self, namespace: str, name: str, version: str, progress: Manifest) -> Object:
        """See `ApiPort.patch_progress`."""
        return await self._sent(lambda: self._port.patch_progress(namespace, name, version, progress))

    async def warnings(self, namespace: str, uid: str) -> list[Object]:
        """See `ApiPort.warnings`."""
        return await self._port.warnings(namespace, uid)

    async def create_event(self, namespace: str, body: Manifest) -> None:
        """See `ApiPort.create_event`."""
        await self._sent(lambda: self._port.create_event(namespace, body))

    async def _sent(self, call: Callable[[], Awaitable[_Answer]]) -> _Answer:
        if not self._is_held():
            raise Transient("this operator does not hold the Lease; the holder makes the write")
        try:
            answer = await call()
        except asyncio.CancelledError:
            self._is_unanswered = True
            raise
        self._on_write()
        return answer
