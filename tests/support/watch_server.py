"""kopf's stream of jobs from an API server whose answers a test gives."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import kopf
from aiohttp import web
from aiohttp.test_utils import TestServer
from kopf._cogs.clients import auth, watching
from kopf._cogs.structs.credentials import Vault, VaultKey
from kopf._cogs.structs.references import NamespaceName, Resource

from pstraining.controller.registration import build_settings
from pstraining.controller.watch import Watches

JOBS = Resource(group="pstraining.dev", version="v1alpha1", plural="pstrainingjobs", namespaced=True)


@asynccontextmanager
async def jobs_of(
    answer: Callable[[web.Request], Awaitable[web.Response]], *, retries: int, kind: Resource = JOBS
) -> AsyncIterator[tuple[Watches, AsyncIterator[Any]]]:
    """Provide watches, and within them kopf's stream of the jobs, or of another kind, in namespace b.

    Args:
        answer: answers each request.
        retries: how often kopf repeats a request that fails; it does not wait in between.
        kind: the kind.
    """
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        info = kopf.ConnectionInfo(server=str(server.make_url("")))
        auth.vault_var.set(Vault({VaultKey("test"): info}))
        watches, settings = Watches(1, ("b",)), build_settings()
        settings.networking.error_backoffs = (0.0,) * retries
        try:
            with watches.taken(lambda found: None):
                yield watches, watching.infinite_watch(settings=settings, resource=kind, namespace=NamespaceName("b"))
        finally:
            await auth.vault_var.get().close()


@asynccontextmanager
async def followed_until_forbidden(
    watches: Watches, stream: AsyncIterator[Any], is_enough: Callable[[], bool] = lambda: False
) -> AsyncIterator[asyncio.Task[None]]:
    """Follow a stream in a task, within which a list is reported as forbidden; 20 s are enough for all of it.

    Args:
        watches: the watches of the stream.
        stream: kopf's stream.
        is_enough: whether the task ends after an event of the stream.
    """

    async def follow() -> None:
        async for _ in stream:
            if is_enough():
                return

    task = asyncio.create_task(follow())
    try:
        async with asyncio.timeout(20):
            while not watches.forbidden():  # noqa: ASYNC110 - another task writes it
                await asyncio.sleep(0.005)
            yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
