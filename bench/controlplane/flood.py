"""The cost of a namespace full of objects that imitate those of jobs, for the operator and for another namespace.

Every user with the role `edit` may create them. They are events with a reason that the operator watches and long
messages, and ConfigMaps with a job's labels. Runs without and with these objects alternate, and ratios are computed in
pairs.
"""

import uuid
from collections.abc import AsyncIterator
from typing import Any, Final

from bench.controlplane import audit, report
from bench.controlplane.audit import OPERATOR
from bench.controlplane.namespace import Bench, together
from bench.controlplane.runs import QUIET, Figures, all_run, percentile
from bench.controlplane.workloads import Shape
from pstraining.api import names

TEXT_BYTES: Final = 20_000
"""Bytes of a message, and of a ConfigMap's data."""
BATCH: Final = 1_000
"""Objects that are created at a time: a body is in memory until it is sent."""


async def measure(bench: Bench, objects: int, jobs: int, rounds: int) -> AsyncIterator[Figures]:
    """Yield the figures after each round of a run without and a run with the flood.

    Args:
        bench: the cluster.
        objects: number of events, and of ConfigMaps.
        jobs: number of jobs in the other namespace, with 1 PS and 2 workers each.
        rounds: number of pairs.
    """
    each: list[Figures] = []
    for _ in range(rounds):
        clean, flooded = await _run(bench, 0, jobs), await _run(bench, objects, jobs)
        ratios = {f"{what}_ratio": flooded[what] / clean[what] for what in ("rss", "p99")}
        each.append({f"clean_{k}": v for k, v in clean.items()} | flooded | ratios)
        yield report.medians(each) | {"objects": objects, "jobs": jobs, "each": each}


async def _run(bench: Bench, objects: int, jobs: int) -> Figures:
    async with bench.namespace("others") as others, bench.namespace("flood") as flooded:
        await _flood(bench, flooded, objects // 2)
        program = await bench.starter.operator(others, flooded)
        try:
            mark = bench.audit.mark()
            await bench.create_jobs(others, Shape(jobs, 1, 2).manifests(others))
            await _flood(bench, flooded, objects - objects // 2)
            await all_run(bench, others, jobs)
            await bench.audit.quiet(others, QUIET, bench.limit, OPERATOR)
            times = audit.job_times(bench.audit.since(mark, others), OPERATOR)
            return {"rss": program.usage().rss, "p99": percentile(list(times.values()), 99)}
        finally:
            await program.stop()


async def _flood(bench: Bench, namespace: str, count: int) -> None:
    for start in range(0, count, BATCH):
        numbers = range(start, min(start + BATCH, count))
        await together(_write(bench, namespace, body) for _ in numbers for body in _bodies(namespace))


async def _write(bench: Bench, namespace: str, body: dict[str, Any]) -> None:
    plural = "events" if body["kind"] == "Event" else "configmaps"
    await bench.request("POST", f"/api/v1/namespaces/{namespace}/{plural}", body)


def _bodies(namespace: str) -> list[dict[str, Any]]:
    uid = str(uuid.uuid4())
    metadata = {"name": f"f-{uid}", "namespace": namespace}
    labels = {names.LABEL_JOB: "none", names.LABEL_JOB_UID: uid}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata,
        "type": "Warning",
        "reason": "FailedCreate",
        "message": uid + "x" * TEXT_BYTES,
        "involvedObject": {"kind": "StatefulSet", "namespace": namespace, "name": "none-ps", "uid": uid},
    }
    data = {"cluster.json": uid + "y" * TEXT_BYTES}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**metadata, "labels": labels}, "data": data}
    return [event, config_map]
