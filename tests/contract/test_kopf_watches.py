"""The operator's expectations of kopf's private functions for watches; a release that changes them fails here.

`controller/watch.py` is the only module that names them. It replaces `fetch_objs` and `infinite_watch` while the
operator runs. So kopf must look both up in their modules, and must list through `fetch_objs` with our settings.
"""

import ast
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kopf._cogs.clients import fetching, watching
from kopf._cogs.structs.references import Resource
from kopf._core.reactor import queueing

import pstraining
from pstraining.controller.registration import build_settings
from pstraining.controller.watch import Watches

PACKAGE = Path(pstraining.__file__).parent
SEAM = "controller/watch.py"
PRIVATE = {"kopf._cogs.clients", "kopf._cogs.clients.errors"}
JOBS = Resource(group="pstraining.dev", version="v1alpha1", plural="pstrainingjobs", namespaced=True)


def pod(name: str, version: int) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": str(version)}
    return {"kind": "Pod", "metadata": metadata}


def private_imports(source: str) -> set[str]:
    if "kopf._" not in source:
        return set()
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {module for module in modules if module.startswith("kopf._")}


def test_only_one_module_uses_kopfs_private_names() -> None:
    found = {path.relative_to(PACKAGE).as_posix(): private_imports(path.read_text()) for path in PACKAGE.rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {SEAM: PRIVATE}


@pytest.mark.asyncio
async def test_kopf_lists_and_watches_through_the_functions_that_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fetch_objs(**_: Any) -> AsyncIterator[Any]:
        yield [pod("listed", 1)], "9"  # the list is newer than the operator's version

    async def watch_objs(*, since: str, **_: Any) -> AsyncIterator[Any]:
        assert since == "9", "the watch begins where the list ended"
        yield {"type": "ADDED", "object": pod("watched", 8)}
        await asyncio.Event().wait()

    async def processor(**_: Any) -> None:
        pytest.fail("kopf processes an object")

    monkeypatch.setattr(fetching, "fetch_objs", fetch_objs)
    monkeypatch.setattr(watching, "watch_objs", watch_objs)
    received, both = [], asyncio.Event()

    def receive(event: dict[str, Any]) -> None:
        received.append((event["type"], event["object"]["metadata"]["name"]))
        if len(received) == 2:
            both.set()

    watches = Watches(expected=1)
    with watches.taken(receive):
        task = asyncio.create_task(
            queueing.watcher(namespace=None, settings=build_settings(), resource=JOBS, processor=processor)
        )
        try:
            await asyncio.wait_for(both.wait(), 10)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert received == [(None, "listed"), ("ADDED", "watched")]
    assert watches.synced, "kopf marks the end of a list"
    assert watches._newest == {("pstrainingjobs", None): 9}, "the list came through fetch_objs"
