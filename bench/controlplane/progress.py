"""The cost of jobs' progress reports, and of their writes, for the operator.

This process sends the reports, with tokens of the jobs' pods that the API server has issued. KWOK completes a chief's
pod at once: worker 0 of jobs without a chief reports. The age of the progress in a status follows from the times of the
reports and of the writes in the audit log.
"""

import asyncio
import base64
import ssl
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import aiohttp

from bench.controlplane import audit
from bench.controlplane.audit import OPERATOR
from bench.controlplane.namespace import Bench, together
from bench.controlplane.programs import Program
from bench.controlplane.runs import QUIET, Figures, all_run
from bench.controlplane.workloads import Shape
from pstraining.api import names
from pstraining.controller.progress.certificates import CERTIFICATE
from pstraining.progress import PERIOD_SECONDS
from pstraining.resources.installation import progress_audience, progress_path
from pstraining.runtime.local import hold_port

TOKEN_SECONDS: Final = 2 * 60 * 60
STEPS: Final = 10_000_000
"""Number of steps with which no report is a milestone, which the operator would write earlier."""
WRITE: Final = "patch pstrainingjobs/status"


@dataclass
class _Reporter:
    """The program of one job."""

    job: str
    url: str
    headers: Mapping[str, str]
    step: int = 0
    refused: int = 0
    sent: list[float] = field(default_factory=list)
    """Times of the reports, in seconds since 1970."""

    async def report(self, session: aiohttp.ClientSession) -> None:
        """Send one report over a new connection: the operator closes an idle one within a minute."""
        self.step += 100
        self.sent.append(time.time())
        status = {
            "step": self.step,
            "steps": STEPS,
            "progressPercentage": 0,
            "epoch": 0,
            "loss": f"{1 / self.step:.6g}",
        }
        async with session.post(self.url, json={"trainerStatus": status}, headers=self.headers) as answer:
            self.refused += answer.status != 200

    async def run(self, session: aiohttp.ClientSession, delay: float, seconds: float, period: float) -> None:
        """Report once per period for a given time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        await asyncio.sleep(delay)
        while loop.time() < end:
            due = loop.time() + period
            await self.report(session)
            await asyncio.sleep(min(due, end) - loop.time())


async def measure(bench: Bench, jobs: int, seconds: float, period: float = PERIOD_SECONDS) -> Figures:
    """Measure running jobs of 1 PS and 2 workers, each of which reports once per period.

    Args:
        bench: the cluster.
        jobs: number of jobs.
        seconds: duration of the reports, after a first period in which every token is reviewed.
        period: seconds from one report of a job to the next.
    """
    async with bench.namespace("progress") as namespace:
        with ExitStack() as held:
            port = hold_port(held)
        program = await bench.starter.operator(namespace, progress_port=port)
        try:
            await bench.create_jobs(namespace, Shape(jobs, 1, 2).manifests(namespace))
            await all_run(bench, namespace, jobs)
            await bench.audit.quiet(namespace, QUIET, bench.limit)
            reporters = await _reporters(bench, namespace, f"https://127.0.0.1:{port}")
            connector = aiohttp.TCPConnector(ssl=await _trusted(bench, namespace), force_close=True, limit=0)
            async with aiohttp.ClientSession(connector=connector) as session:
                first = await _cost(bench, namespace, program, reporters, session, period, period)
                found = await _cost(bench, namespace, program, reporters, session, seconds, period)
            return found | {"jobs": jobs, "first_share": first["share"]}
        finally:
            await program.stop()


async def _cost(
    bench: Bench,
    namespace: str,
    program: Program,
    reporters: list[_Reporter],
    session: aiohttp.ClientSession,
    seconds: float,
    period: float,
) -> Figures:
    """Return the operator's use of resources, and its writes, while all jobs report."""
    loop, before, mark = asyncio.get_running_loop(), program.usage(), bench.audit.mark()
    start, sent = loop.time(), sum(r.step for r in reporters)
    each = enumerate(reporters)
    await asyncio.gather(*(r.run(session, n * period / len(reporters), seconds, period) for n, r in each))
    elapsed, used = loop.time() - start, program.usage().cpu - before.cpu
    requests = bench.audit.since(mark, namespace)
    writes = audit.counts(requests, OPERATOR)
    count = writes.pop(WRITE, 0)
    written: dict[str, list[float]] = {}
    for request in requests:
        if request.agent == OPERATOR and request.ok and f"{request.verb} {request.resource}" == WRITE:
            written.setdefault(request.name, []).append(request.accepted)
    return {
        "reports": (sum(r.step for r in reporters) - sent) // 100,
        "refused": sum(r.refused for r in reporters),
        "writes": count,
        "writes_per_second": count / elapsed,
        "other_writes": sum(writes.values()),
        "share": used / elapsed,
        "cpu_ms_per_write": 1000 * used / max(count, 1),
        "age": max(oldest(reporter.sent, written.get(reporter.job, ())) for reporter in reporters),
    }


def oldest(reports: Sequence[float], writes: Sequence[float]) -> float:
    """Return the greatest age in seconds that a job's progress has between its writes; 0 with fewer than two of them.

    Args:
        reports: when the program reported, in order.
        writes: when the API server had accepted a write, in order. A write has the newest report before it.
    """
    shown = ((after, bisect_right(reports, before)) for before, after in pairwise(writes))
    return max((after - reports[number - 1] for after, number in shown if number), default=0.0)


async def _reporters(bench: Bench, namespace: str, server: str) -> list[_Reporter]:
    selector = f"{names.LABEL_ROLE}%3D{names.WORKER},{names.LABEL_INDEX}%3D0"
    pods = await bench.list(f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")
    return await together(_reporter(bench, server, pod["metadata"]) for pod in pods)


async def _reporter(bench: Bench, server: str, pod: Mapping[str, Any]) -> _Reporter:
    """The program of a pod, with a token as the kubelet would have projected it."""
    namespace, labels = pod["namespace"], pod["labels"]
    body = {
        "spec": {
            "audiences": [progress_audience(labels[names.LABEL_JOB_UID])],
            "expirationSeconds": TOKEN_SECONDS,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"]},
        },
    }
    made = await bench.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token", body)
    url = server + progress_path(namespace, labels[names.LABEL_JOB])
    return _Reporter(labels[names.LABEL_JOB], url, {"Authorization": f"Bearer {made['status']['token']}"})


async def _trusted(bench: Bench, namespace: str) -> ssl.SSLContext:
    """Return a context that trusts the operator's certificate authority."""
    secret = await bench.request("GET", f"/api/v1/namespaces/{namespace}/secrets/{OPERATOR}-progress")
    return ssl.create_default_context(cadata=base64.b64decode(secret["data"][CERTIFICATE]).decode())
