"""The cost of jobs whose children are rejected, or whose requests hang, for other jobs.

Both the clean and the poisoned run use a proxy, whose cost is in both.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from bench.controlplane import audit, report
from bench.controlplane.audit import OPERATOR
from bench.controlplane.namespace import Bench
from bench.controlplane.runs import QUIET, Figures, percentile
from bench.controlplane.workloads import job

REFUSE, HANG = "500", "hang"


def is_poisoned(number: int, share: int = 20) -> bool:
    """Every twentieth job."""
    return number % share == share - 1


async def measure(bench: Bench, jobs: int, rounds: int) -> AsyncIterator[Figures]:
    """Yield the figures after each round of a clean run and one run of each poison, with the round's ratios."""
    each: list[dict[str, Figures]] = []
    for _ in range(rounds):
        each.append(await _round(bench, jobs))
        yield _summary(jobs, each)


def _summary(jobs: int, each: list[dict[str, Figures]]) -> Figures:
    medians = {poison: report.medians([found[poison] for found in each]) for poison in ("clean", REFUSE, HANG)}
    for poison, found in medians.items():
        # No healthy job may be lost in any round.
        found["unfinished"] = max(one[poison]["unfinished"] for one in each)
    return medians | {"jobs": jobs, "poisoned": sum(is_poisoned(n) for n in range(jobs)), "each": each}


async def _round(bench: Bench, jobs: int) -> dict[str, Figures]:
    clean = await _run(bench, jobs, "")
    found = {poison: await _run(bench, jobs, poison) for poison in (REFUSE, HANG)}
    return {"clean": clean} | {k: sick | {"p99_ratio": sick["p99"] / clean["p99"]} for k, sick in found.items()}


async def _run(bench: Bench, jobs: int, poison: str) -> Figures:
    async with bench.namespace("poison") as namespace, _proxy(bench.client.configuration, poison) as url:
        kubeconfig = bench.folder / f"{namespace}.kubeconfig"
        _write_kubeconfig(kubeconfig, url)
        program = await bench.starter.behind(kubeconfig, "proxy").operator(namespace)
        try:
            mark = bench.audit.mark()
            manifests = [job(namespace, _name(number), 1, 2) for number in range(jobs)]
            await bench.create_jobs(namespace, manifests)
            healthy = sum(not is_poisoned(n) for n in range(jobs))
            end = asyncio.get_running_loop().time() + bench.limit
            while (running := await bench.running_jobs(namespace, "ok-")) < healthy:
                if asyncio.get_running_loop().time() > end:
                    break
                await asyncio.sleep(1.0 + jobs / 200)
            await bench.audit.quiet(namespace, QUIET, bench.limit, OPERATOR)
            times = audit.job_times(bench.audit.since(mark, namespace), OPERATOR)
            ok = [seconds for name, seconds in times.items() if name.startswith("ok-")]
            return {"unfinished": healthy - running, "p50": percentile(ok, 50), "p99": percentile(ok, 99)}
        finally:
            await program.stop()


def _name(number: int) -> str:
    return f"{'bad' if is_poisoned(number) else 'ok'}-{number}"


def _write_kubeconfig(path: Path, url: str) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "proxy",
        "clusters": [{"name": "proxy", "cluster": {"server": url}}],
        "users": [{"name": "proxy", "user": {}}],
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
    }
    path.write_text(json.dumps(config))


@asynccontextmanager
async def _proxy(configuration: Configuration, poison: str) -> AsyncIterator[str]:
    client = ApiClient(configuration)
    connector = aiohttp.TCPConnector(ssl=client.rest_client.ssl_context, limit=0)
    session = aiohttp.ClientSession(connector=connector, read_bufsize=2**21, auto_decompress=False)

    async def handle(request: web.Request) -> web.StreamResponse:
        data = await request.read() or None
        if poison and request.method == "POST" and data is not None and _is_child_of_the_poisoned(data):
            if poison == REFUSE:
                return web.json_response({"kind": "Status", "code": 500, "message": "poisoned"}, status=500)
            await asyncio.sleep(3600)
        headers = {k: v for k, v in request.headers.items() if k in ("Accept", "Content-Type", "User-Agent")}
        await client.update_params_for_auth(headers, [], ["BearerToken"], request.path, request.method, None)
        url = f"{configuration.host}{request.path_qs}"
        timeout = aiohttp.ClientTimeout(total=None)
        async with session.request(request.method, url, headers=headers, data=data, timeout=timeout) as answer:
            kept = {k: v for k, v in answer.headers.items() if k in ("Content-Type", "Content-Encoding", "Retry-After")}
            if request.query.get("watch") != "true":
                return web.Response(status=answer.status, body=await answer.read(), headers=kept)
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            return response

    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
        await session.close()
        await client.close()  # type: ignore[no-untyped-call]


def _is_child_of_the_poisoned(data: bytes) -> bool:
    body = json.loads(data)
    metadata = body.get("metadata") or {}
    return str(metadata.get("name", "")).startswith("bad-") and body.get("kind") != "Event"
