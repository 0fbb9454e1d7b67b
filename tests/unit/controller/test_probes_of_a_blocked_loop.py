"""The probes of an operator whose event loop is blocked."""

import asyncio
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from pstraining.controller.health import Health, Heartbeat

LIMIT_SECONDS = 0.05


def livez(port: int) -> tuple[int, str]:
    """Ask once the loop has been blocked for longer than the limit."""
    time.sleep(2 * LIMIT_SECONDS)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.asyncio
async def test_probes_are_answered_while_the_loop_is_blocked(unused_tcp_port: int) -> None:
    heartbeat = Heartbeat(LIMIT_SECONDS)
    stop = Health({"loop": heartbeat.check}, {}).serve(unused_tcp_port)
    beating = asyncio.create_task(heartbeat.beat())
    await asyncio.sleep(0)
    with ThreadPoolExecutor(1) as pool:
        status, text = pool.submit(livez, unused_tcp_port).result(30)  # this coroutine blocks the loop meanwhile
    assert status == 503
    assert "the event loop has been blocked" in text
    beating.cancel()
    stop()
