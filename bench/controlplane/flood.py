"""The cost of a namespace full of objects that imitate those of jobs, for the operator and for another namespace.

Every user with the role `edit` may create them. They are events with a reason that the operator watches and long
messages, and ConfigMaps and StatefulSets with the labels of a job that exists. Three runs alternate: without these
objects, with them in a namespace that the operator does not watch, and in one that it watches. The second shows the
cost of the API server, which shares the machine's cores. Ratios are computed among the three.
"""

import uuid
from collections.abc import AsyncIterator
from typing import Any, Final

from bench.controlplane import audit, report
from bench.controlplane.audit import OPERATOR
from bench.controlplane.namespace import Bench, together
from bench.controlplane.runs import QUIET, Figures, all_run, percentile
from bench.controlplane.workloads import Shape, job
from pstraining.api import names

TEXT_BYTES: Final = 20_000
"""Bytes of a message, of a ConfigMap's data and annotation, and of a StatefulSet's environment."""
PATHS: Final = {"Event": "api/v1", "ConfigMap": "api/v1", "StatefulSet": "apis/apps/v1"}
"""The path of each kind of the flood, before its namespace."""
Object = dict[str, Any]
BATCH: Final = 1_000
"""Objects that are created at a time: a body is in memory until it is sent."""


async def measure(bench: Bench, objects: int, jobs: int, rounds: int) -> AsyncIterator[Figures]:
    """Yield the figures after each round of runs without the flood, with an unwatched one, and with a watched one.

    Args:
        bench: the cluster.
        objects: number of events, of ConfigMaps and of StatefulSets.
        jobs: number of jobs in the other namespace, with 1 PS and 2 workers each.
        rounds: number of times that the three runs are made.
    """
    each: list[Figures] = []
    for _ in range(rounds):
        clean = await _run(bench, 0, jobs)
        unwatched = await _run(bench, objects, jobs, watched=False)
        flooded = await _run(bench, objects, jobs)
        ratios = {f"{what}_ratio": flooded[what] / clean[what] for what in ("rss", "p99")}
        ratios["own_p99_ratio"] = flooded["p99"] / unwatched["p99"]
        runs = {"clean_": clean, "unwatched_": unwatched, "": flooded}
        each.append({name + k: v for name, run in runs.items() for k, v in run.items()} | ratios)
        yield report.medians(each) | {"objects": objects, "jobs": jobs, "each": each}


async def _run(bench: Bench, objects: int, jobs: int, *, watched: bool = True) -> Figures:
    async with bench.namespace("others") as others, bench.namespace("flood") as flooded:
        (imitated,) = await bench.create_jobs(flooded, [_suspended(flooded)])
        await _flood(bench, imitated, objects // 2)
        program = await bench.starter.operator(others, *((flooded,) if watched else ()))
        try:
            mark = bench.audit.mark()
            await bench.create_jobs(others, Shape(jobs, 1, 2).manifests(others))
            await _flood(bench, imitated, objects - objects // 2)
            await all_run(bench, others, jobs)
            await bench.audit.quiet(others, QUIET, bench.limit, OPERATOR)
            times = audit.job_times(bench.audit.since(mark, others), OPERATOR)
            return {"rss": program.usage().rss, "p99": percentile(list(times.values()), 99)}
        finally:
            await program.stop()


def _suspended(namespace: str) -> Object:
    """Return the job whose children are imitated; it has none of its own."""
    found = job(namespace, "imitated", 1, 2)
    return {**found, "spec": {**found["spec"], "runPolicy": {"suspend": True}}}


async def _flood(bench: Bench, imitated: Object, count: int) -> None:
    for start in range(0, count, BATCH):
        numbers = range(start, min(start + BATCH, count))
        await together(_write(bench, body) for _ in numbers for body in _bodies(imitated))


async def _write(bench: Bench, body: Object) -> None:
    path = f"/{PATHS[body['kind']]}/namespaces/{body['metadata']['namespace']}/{body['kind'].lower()}s"
    await bench.request("POST", path, body)


def _bodies(imitated: Object) -> list[Object]:
    uid, job_uid, namespace = str(uuid.uuid4()), imitated["metadata"]["uid"], imitated["metadata"]["namespace"]
    metadata = {"name": f"f-{uid}", "namespace": namespace}
    copied = {**metadata, "labels": {names.LABEL_JOB: "imitated", names.LABEL_JOB_UID: job_uid}}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata,
        "type": "Warning",
        "reason": "FailedCreate",
        "message": uid + "x" * TEXT_BYTES,
        "involvedObject": {"kind": "StatefulSet", "namespace": namespace, "name": "none-ps", "uid": uid},
    }
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**copied, "annotations": {"note": uid + "y" * TEXT_BYTES}},
        "data": {"cluster.json": uid + "y" * TEXT_BYTES},
    }
    env = [{"name": "NOTE", "value": uid + "z" * TEXT_BYTES}]
    template = {"metadata": {"labels": {"f": uid}}, "spec": {"containers": [{"name": "c", "image": "i", "env": env}]}}
    spec = {"replicas": 0, "serviceName": "none", "selector": {"matchLabels": {"f": uid}}, "template": template}
    return [event, config_map, {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": copied, "spec": spec}]
