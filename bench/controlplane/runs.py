"""The measurements, each a function from a cluster to figures."""

import asyncio
import statistics
from typing import Any

from bench.controlplane import audit
from bench.controlplane.audit import FLOOR, OPERATOR
from bench.controlplane.lower_bound import write_plan
from bench.controlplane.namespace import Bench, sample, together
from bench.controlplane.programs import Program
from bench.controlplane.workloads import Shape, job, rendered
from pstraining.api import names
from pstraining.core.actions import Kind
from pstraining.kube.errors import ApiError

Figures = dict[str, Any]
QUIET = 3.0
"""Seconds without a write after which a load counts as settled."""


async def floor(bench: Bench, shape: Shape, concurrency: int, *, watched: bool = False) -> Figures:
    """Run the client of the lower bound; with `watched`, measure the watch-only program beside it."""
    async with bench.namespace("floor") as namespace:
        plan = bench.folder / f"{namespace}.json"
        write_plan(shape, namespace, plan)
        watcher = await bench.starter.watcher(namespace) if watched else None
        before = watcher.usage() if watcher else None
        mark = bench.audit.mark()
        program = bench.starter.start(namespace, "-m", "bench.controlplane.lower_bound", str(plan), str(concurrency))
        status = await program.ended(bench.limit)
        plan.unlink()
        if status != 0:
            raise RuntimeError(f"the floor client failed: {program.log.read_text()[-2000:]}")
        writes = bench.audit.since(mark, namespace)
        found: Figures = {
            "seconds": audit.time_to_children(writes, FLOOR),
            "creates": sum(audit.counts(writes, FLOOR).values()) - shape.jobs,
        }
        if watcher is not None and before is not None:
            await bench.audit.quiet(namespace, QUIET, bench.limit)
            after = watcher.usage()
            found |= {
                "cpu": after.cpu - before.cpu,
                "rss": after.rss,
                "objects": await bench.watched_objects(namespace),
            }
            await watcher.stop()
        return found


async def operator(bench: Bench, shape: Shape, *, idle: float = 0.0, reactions: int = 0) -> Figures:
    """Measure the operator from the jobs' acceptance until it is idle, and afterwards."""
    async with bench.namespace("operator") as namespace:
        program = await bench.starter.operator(namespace)
        try:
            before, mark = program.usage(), bench.audit.mark()
            await bench.create_jobs(namespace, shape.manifests(namespace))
            await all_run(bench, namespace, shape.jobs)
            await bench.audit.quiet(namespace, QUIET, bench.limit)
            after, writes = program.usage(), bench.audit.since(mark, namespace)
            found = _started(shape, writes) | {
                "cpu": after.cpu - before.cpu,
                "cpu_ms_per_job": 1000 * (after.cpu - before.cpu) / shape.jobs,
                "rss": after.rss,
                "objects": await bench.watched_objects(namespace),
            }
            if idle:
                found["steady"] = await _steady(bench, program, namespace, idle)
            if reactions:
                found["reaction"] = await _reaction(bench, namespace, reactions)
        finally:
            await program.stop()
        if idle:
            found["restart"] = await _restart(bench, namespace)
        return found


async def finished(bench: Bench, sizes: list[int]) -> list[Figures]:
    """Measure the operator's start with finished jobs, whose number grows from size to size in one namespace."""
    found: list[Figures] = []
    async with bench.namespace("finished") as namespace:
        made = 0
        for size in sizes:
            manifests = [job(namespace, f"b-{number}", 1, 2, chief=True) for number in range(made, size)]
            await together(_finish(bench, namespace, m) for m in await bench.create_jobs(namespace, manifests))
            await _chiefs_end(bench, namespace, size)
            made = size
            # The first start may write fields that the benchmark's statuses lack; the second start is measured.
            await _restart(bench, namespace)
            found.append(await _restart(bench, namespace) | {"jobs": size})
    return found


async def _finish(bench: Bench, namespace: str, stored: dict[str, Any]) -> None:
    """Create the objects of a succeeded job: its status, and its chief's Job with a pod, whose log may be read."""
    await bench.set_status(namespace, stored["metadata"]["name"], _ended())
    for made in rendered(stored, stored["metadata"]["uid"]):
        if made.kind is Kind.JOB:
            await bench.client.create(made.kind, namespace, made.body)


async def _chiefs_end(bench: Bench, namespace: str, count: int) -> None:
    """Wait until a number of Jobs are complete; KWOK completes their pods at once."""
    end = asyncio.get_running_loop().time() + bench.limit + count / 10
    while True:
        jobs = await bench.list(f"/apis/batch/v1/namespaces/{namespace}/jobs")
        if sum((j.get("status") or {}).get("succeeded", 0) for j in jobs) == count:
            return
        if asyncio.get_running_loop().time() > end:
            raise TimeoutError(f"not all chiefs of {namespace} end")
        await asyncio.sleep(1.0 + count / 500)


async def _restart(bench: Bench, namespace: str) -> Figures:
    mark = bench.audit.mark()
    program = await bench.starter.operator(namespace)
    try:
        await program.idle(2.0, bench.limit)
        used = program.usage()
        return {
            "writes": sum(audit.counts(bench.audit.since(mark, namespace), OPERATOR).values()),
            "cpu": used.cpu,
            "rss": used.rss,
            "objects": await bench.watched_objects(namespace),
        }
    finally:
        await program.stop()


async def _steady(bench: Bench, program: Program, namespace: str, seconds: float) -> Figures:
    mark, before = bench.audit.mark(), program.usage()
    await asyncio.sleep(seconds)
    writes = audit.counts(bench.audit.since(mark, namespace), OPERATOR)
    return {
        "seconds": seconds,
        "writes": sum(writes.values()),
        "core_share": (program.usage().cpu - before.cpu) / seconds,
    }


async def _reaction(bench: Bench, namespace: str, count: int) -> Figures:
    """Measure the seconds from a change of a pod or a Deployment to the operator's accepted write about it."""
    jobs = sample(await bench.list(f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"), 2 * count)
    chosen = [job["metadata"]["name"] for job in jobs]
    mark = bench.audit.mark()
    for name in chosen[:count]:
        await _fail_worker(bench, namespace, name)
        await asyncio.sleep(0.1)
    for name in chosen[count:]:
        await bench.request("DELETE", f"/apis/apps/v1/namespaces/{namespace}/deployments/{names.worker_name(name, 1)}")
        await asyncio.sleep(0.1)
    await bench.audit.quiet(namespace, QUIET, bench.limit, OPERATOR)
    writes = bench.audit.since(mark, namespace)
    reported, recreated = [], []
    for name in chosen:
        mine = [w for w in writes if w.agent == OPERATOR and (w.name == name or w.name.startswith(f"{name}-")) and w.ok]
        worker = names.worker_name(name, 1)
        for write in writes:
            if (
                write.verb == "patch"
                and write.resource == "pods/status"
                and write.name.startswith(f"{names.worker_name(name, 0)}-")
            ):
                if write.agent == audit.LOADER:
                    reported += _first(mine, write.accepted, "pstrainingjobs/status")
            elif write.verb == "delete" and write.resource == "deployments" and write.name == worker:
                recreated += _first(mine, write.accepted, "deployments")
    return {
        "reported": len(reported),
        "recreated": len(recreated),
        "reported_p50": percentile(reported, 50),
        "reported_p99": percentile(reported, 99),
        "recreated_p50": percentile(recreated, 50),
        "recreated_p99": percentile(recreated, 99),
    }


async def _fail_worker(bench: Bench, namespace: str, job: str) -> None:
    """Write a status as the kubelet would: worker 0's container exited with 1 and runs again."""
    selector = f"{names.LABEL_JOB}%3D{job},{names.LABEL_ROLE}%3D{names.WORKER},{names.LABEL_INDEX}%3D0"
    (pod,) = await bench.list(f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")
    (container,) = pod["status"]["containerStatuses"]
    last = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": pod["metadata"]["creationTimestamp"]}}
    status = {"containerStatuses": [{**container, "restartCount": 1, "lastState": last}]}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/status"
    await bench.request("PATCH", path, {"status": status}, "application/merge-patch+json")


async def all_run(bench: Bench, namespace: str, jobs: int) -> None:
    """Wait until all jobs run with all workers."""
    end = asyncio.get_running_loop().time() + bench.limit
    while True:
        try:
            if await bench.running_jobs(namespace) == jobs:
                return
        except ApiError:
            pass
        if asyncio.get_running_loop().time() > end:
            raise TimeoutError(f"not all jobs of {namespace} run")
        # A list of a thousand jobs is expensive for the API server that is being measured.
        await asyncio.sleep(1.0 + jobs / 200)


def _started(shape: Shape, writes: list[audit.Write]) -> Figures:
    found = audit.counts(writes, OPERATOR)
    status, events = found.pop("patch pstrainingjobs/status", 0), found.pop("create events", 0)
    creates = sum(n for what, n in found.items() if what.startswith("create "))
    times = list(audit.job_times(writes, OPERATOR).values())
    return {
        "seconds": audit.time_to_children(writes, OPERATOR),
        "creates": creates,
        "children": shape.children,
        "status_writes_per_job": status / shape.jobs,
        "events_per_job": events / shape.jobs,
        "other_writes": sum(found.values()) - creates,
        "failed_writes": sum(w.agent == OPERATOR and not w.ok and w.resource != "leases" for w in writes),
        "job_p50": percentile(times, 50),
        "job_p99": percentile(times, 99),
    }


def _first(mine: list[audit.Write], after: float, resource: str) -> list[float]:
    times = [w.accepted - after for w in mine if w.resource == resource and w.accepted > after]
    return [min(times)] if times else []


def percentile(values: list[float], percent: int) -> float | None:
    """Return a percentile; None without values."""
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _ended() -> Figures:
    at = "2030-01-01T12:00:00Z"
    condition = {
        "type": "Succeeded",
        "status": "True",
        "reason": "ChiefSucceeded",
        "message": "",
        "lastTransitionTime": at,
    }
    return {"conditions": [{**condition, "observedGeneration": 1}], "phase": "Succeeded", "completionTime": at}
