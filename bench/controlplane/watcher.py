"""The watch-only program: kopf with the operator's settings, kinds and selectors, and handlers that do nothing.

python -m bench.controlplane.watcher NAMESPACE
"""

import asyncio
import sys
from typing import Any

import kopf

from pstraining.controller import logs, registration
from pstraining.controller.settings import LogFormat
from pstraining.kube.connection import load_configuration


async def watch(namespace: str) -> None:
    """Watch until the process is stopped."""
    configuration = await load_configuration()
    registry = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await registration.connection_info(configuration)

    async def event(**_: Any) -> None:
        """Do nothing."""

    kopf.on.login(id="login", registry=registry)(login)
    for group, version, plural in registration.WATCHED:
        kopf.on.event(group, version, plural, id=f"event-{plural}", registry=registry)(event)
    settings = registration.build_settings()
    await kopf.operator(registry=registry, settings=settings, standalone=True, namespaces=[namespace])


if __name__ == "__main__":
    logs.configure("WARNING", LogFormat.JSON)
    asyncio.run(watch(sys.argv[1]))
