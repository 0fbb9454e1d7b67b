"""The lower bound: a client that only POSTs jobs and their children, which are rendered in advance.

    python -m bench.controlplane.lower_bound PLAN CONCURRENCY

The plan is a JSON file: a list of jobs, each with its path and body and those of its children. A child waits for the
reply to its job's request, whose uid its owner reference needs. There are no other waits.
"""

import asyncio
import json
import sys
from pathlib import Path

import aiohttp
from kubernetes.aio.client import ApiClient

from bench.controlplane.audit import FLOOR
from bench.controlplane.workloads import UID, Shape, rendered
from pstraining.core.actions import Kind
from pstraining.kube.connection import load_configuration
from pstraining.kube.paths import RESOURCES


def write_plan(shape: Shape, namespace: str, path: Path) -> None:
    """Render all requests in advance."""
    jobs = []
    for manifest in shape.manifests(namespace):
        children = [(RESOURCES[c.kind].path(namespace), json.dumps(c.body)) for c in rendered(manifest)]
        jobs.append((RESOURCES[Kind.PS_TRAINING_JOB].path(namespace), json.dumps(manifest), children))
    path.write_text(json.dumps(jobs))


async def post(jobs: list[tuple[str, str, list[tuple[str, str]]]], concurrency: int) -> None:
    """Send all requests."""
    configuration = await load_configuration()
    client = ApiClient(configuration)
    headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": FLOOR}
    await client.update_params_for_auth(headers, [], ["BearerToken"], "/", "POST", None)
    slots = asyncio.Semaphore(concurrency)
    connector = aiohttp.TCPConnector(ssl=client.rest_client.ssl_context, limit=concurrency)

    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def send(path: str, body: str) -> bytes:
            async with slots, session.post(f"{configuration.host}{path}", data=body.encode()) as answer:
                answer.raise_for_status()
                return await answer.read()

        async def job(path: str, body: str, children: list[tuple[str, str]]) -> None:
            uid = json.loads(await send(path, body))["metadata"]["uid"]
            await asyncio.gather(*(send(where, what.replace(UID, uid)) for where, what in children))

        await asyncio.gather(*(job(*each) for each in jobs))
    await client.close()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    asyncio.run(post(json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])))
