"""The operator reads a log again while the kubelet names a container that it has just removed."""

from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from pstraining.kube import client
from pstraining.kube.client import KubeClient
from pstraining.kube.errors import NotFound

GONE = b"unable to retrieve container logs for containerd://0a1b"


async def read(monkeypatch: pytest.MonkeyPatch, answers: Iterator[bytes]) -> bytes:
    """Read a log with these answers of the API server."""

    async def fetch(*_: Any, **__: Any) -> bytes:
        return next(answers)

    monkeypatch.setattr(KubeClient, "_fetch", fetch)
    monkeypatch.setattr(client, "LOG_PAUSE_SECONDS", 0.0)
    kube = KubeClient(Configuration(host="http://127.0.0.1:1"))
    try:
        return await kube.log("team", "digits-worker-0", "tensorflow", previous=False, lines=10, limit=100)
    finally:
        await kube.close()


@pytest.mark.parametrize("log", [b"one\ntwo\n", b"", GONE + b"\n", b"x" * client.LOG_ERROR_BYTES])
@pytest.mark.parametrize("errors", [0, client.LOG_ATTEMPTS - 1])
@pytest.mark.asyncio
async def test_the_log_that_the_kubelet_finds_later_is_returned(
    monkeypatch: pytest.MonkeyPatch, log: bytes, errors: int
) -> None:
    assert await read(monkeypatch, iter([*[GONE] * errors, log])) == log


@pytest.mark.asyncio
async def test_an_error_of_the_kubelet_is_never_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFound, match="the kubelet does not find the log: unable to retrieve"):
        await read(monkeypatch, iter([GONE] * client.LOG_ATTEMPTS))
