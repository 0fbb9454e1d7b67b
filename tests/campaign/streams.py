"""The treatment of a watch's events on their way to the operator."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable

from tests.campaign.faults import OnWatch

GONE = (
    json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}})
    + "\n"
).encode()
RELIST_SECONDS = 0.5
"""Seconds after which a stream that drops every event sends status 410."""
DELAY_SECONDS = 0.6
SPREAD_SECONDS = 0.4
"""Maximum delay of a reordered event, in seconds."""
BOOKMARK_SECONDS = 0.5
"""Seconds between bookmarks where a silent stream must be detected; a real API server sends one per minute."""

Send = Callable[[bytes], Awaitable[None]]


async def disturb(fault: OnWatch, events: AsyncIterator[bytes], send: Send, dice: random.Random) -> None:
    """Pass events on with faults; returning ends the stream."""
    match fault:
        case OnWatch.CLOSED:
            async for event in events:
                await send(event)
                return
        case OnWatch.GONE:
            number = 0
            async for event in events:
                await send(event)
                number += 1
                if number == 2:
                    await send(GONE)
                    return
        case OnWatch.DROPPED:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RELIST_SECONDS):
                    async for _ in events:
                        pass
            await send(GONE)
        case OnWatch.DOUBLED:
            before: dict[str, bytes] = {}
            async for event in events:
                uid = json.loads(event)["object"]["metadata"].get("uid", "")
                await send(event + event + before.get(uid, b""))
                before[uid] = event
        case OnWatch.DELAYED:
            await delayed(events, send, lambda: DELAY_SECONDS)
        case OnWatch.REORDERED:
            await delayed(events, send, lambda: dice.uniform(0, SPREAD_SECONDS))
        case OnWatch.SILENT:
            async for _ in events:
                pass


async def delayed(events: AsyncIterator[bytes], send: Send, delay: Callable[[], float]) -> None:
    """Pass events on in their order, each with its own delay."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()

    async def pass_on() -> None:
        while (item := await waiting.get()) is not None:
            await asyncio.sleep(max(0.0, item[0] - loop.time()))
            await send(item[1])

    passing = asyncio.create_task(pass_on())
    try:
        async for event in events:
            waiting.put_nowait((loop.time() + delay(), event))
        waiting.put_nowait(None)
        await passing
    finally:
        passing.cancel()


async def with_bookmarks(events: AsyncIterator[bytes], send: Send, kind: str, version: str) -> None:
    """Pass events on, with regular bookmarks."""
    last = [version]

    async def mark() -> None:
        while True:
            await asyncio.sleep(BOOKMARK_SECONDS)
            found = {"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": last[0]}}
            await send(json.dumps({"type": "BOOKMARK", "object": found}).encode() + b"\n")

    marking = asyncio.create_task(mark())
    try:
        async for event in events:
            last[0] = json.loads(event)["object"]["metadata"].get("resourceVersion", last[0])
            await send(event)
    finally:
        marking.cancel()
