"""Measures a job's training rates with two scrapes of its tasks."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from pstraining.api import names
from pstraining.api.standby import StandbyMode
from pstraining.cli.client import ClusterClient, Object
from pstraining.cli.errors import CommandError
from pstraining.cli.jobs import job_named, phase, without
from pstraining.cli.metrics.rates import Scrape, TaskRates, as_data, job_rates, server_rates, stragglers, task_rates
from pstraining.cli.metrics.scraping import AT_ONCE, scraped, trains
from pstraining.cli.tasks import TaskPod, possible, tasks_of


def measure(
    cluster: ClusterClient,
    namespace: str,
    name: str,
    interval: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Scrape a job's tasks twice and return the rates, for programs.

    Args:
        cluster: the job's cluster.
        namespace: the job's namespace.
        name: the job's name.
        interval: seconds between the two scrapes.
        clock: a monotonic clock, in seconds.
        sleep: waits for a number of seconds.

    Raises:
        CommandError: the job does not exist or has no running chief or worker, or metrics may not be read.
    """
    job = job_named(cluster, namespace, name)
    tasks = [t for t in tasks_of(job, cluster.pods(namespace, name)) if trains(t)]
    if not tasks:
        raise CommandError(without(job, "no chief and no workers"))

    def scrape(task: TaskPod) -> Scrape | str:
        return scraped(cluster, job, task, clock)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        before = list(pool.map(scrape, tasks))
        # If no task serves metrics, the second scrape is skipped.
        if any(isinstance(found, Scrape) for found in before):
            sleep(interval)
        after = list(pool.map(lambda pair: _again(pair, scrape), zip(tasks, before, strict=True)))
    return describe(job, tasks, before, after)


def describe(
    job: Object, tasks: Sequence[TaskPod], before: Sequence[Scrape | str], after: Sequence[Scrape | str]
) -> dict[str, Any]:
    """Return the rates between two scrapes, for programs.

    Args:
        job: the job.
        tasks: the tasks that were scraped.
        before: the first scrape of each task, or the reason for its failure.
        after: the second scrape.
    """
    found, pairs = {}, []
    for task, first, second in zip(tasks, before, after, strict=True):
        if isinstance(first, Scrape) and isinstance(second, Scrape):
            pairs.append((first, second))
            found[task.pod.uid] = task_rates(first, second)
        else:
            found[task.pod.uid] = TaskRates(problem=second if isinstance(second, str) else str(first))
    slow = stragglers(found)
    found = {uid: replace(rates, straggler=uid in slow) for uid, rates in found.items()}
    whole = job_rates(pairs)
    examples = [r.examples_per_second for r in found.values() if r.examples_per_second is not None]
    return {
        "namespace": job["metadata"]["namespace"],
        "name": job["metadata"]["name"],
        "phase": phase(job),
        "job": None if whole is None else as_data(whole),
        "examplesPerSecond": sum(examples) if examples else None,
        "tasks": [{"task": t.name, "pod": t.pod.name, **as_data(found[t.pod.uid])} for t in tasks],
        "servers": _of_job(job, server_rates(pairs)),
    }


def _of_job(job: Object, servers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out servers that were removed: programs that train on keep their counters, which no longer increase."""
    standby = job["spec"][names.PS].get("standby") or {}
    members = 1 + (standby.get("replicasPerShard") or 1) * (standby.get("mode") == StandbyMode.HOT)
    there = {names.task_name(names.PS, i, m) for i in range(possible(job, names.PS)) for m in range(members)}
    return [
        one for one in servers if one["server"] in there or one["receivedBytesPerSecond"] or one["sentBytesPerSecond"]
    ]


def _again(pair: tuple[TaskPod, Scrape | str], scrape: Callable[[TaskPod], Scrape | str]) -> Scrape | str:
    task, before = pair
    return before if isinstance(before, str) else scrape(task)
