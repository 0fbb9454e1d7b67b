"""How fast the tasks of a job train, from two scrapes of each."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from pstraining.cli.client import ClusterClient, Object
from pstraining.cli.errors import CommandError
from pstraining.cli.jobs import job_named, phase, why
from pstraining.cli.metrics.rates import Scrape, TaskRates, as_data, job_rates, server_rates, stragglers, task_rates
from pstraining.cli.metrics.scraping import AT_ONCE, scraped, trains
from pstraining.cli.tasks import TaskPod, tasks_of


def measure(
    cluster: ClusterClient,
    namespace: str,
    name: str,
    interval: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Scrape a job's tasks twice.

    Args:
        cluster: where the job is.
        namespace: the job's.
        name: the job.
        interval: seconds between the two scrapes.
        clock: seconds that pass.
        sleep: waits for a number of seconds.

    Raises:
        CommandError: there is no such job, it has no tasks that train, or metrics may not be read.
    """
    job = job_named(cluster, namespace, name)
    tasks = [t for t in tasks_of(job, cluster.pods(namespace, name)) if trains(t)]
    if not tasks:
        raise CommandError(
            f"{name} currently has no chief and no workers, and its phase is {phase(job)}. {why(job)}".rstrip()
        )

    def scrape(task: TaskPod) -> Scrape | str:
        return scraped(cluster, job, task, clock)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        before = list(pool.map(scrape, tasks))
        # Where no task serves metrics, a second scrape has none either.
        if any(isinstance(found, Scrape) for found in before):
            sleep(interval)
        after = list(pool.map(lambda pair: _again(pair, scrape), zip(tasks, before, strict=True)))
    return describe(job, tasks, before, after)


def describe(
    job: Object, tasks: Sequence[TaskPod], before: Sequence[Scrape | str], after: Sequence[Scrape | str]
) -> dict[str, Any]:
    """The rates from two scrapes, for programs.

    Args:
        job: the job.
        tasks: the tasks that were scraped.
        before: the first scrape of each, or the reason why it has none.
        after: the second one.
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
        "servers": server_rates(pairs),
    }


def _again(pair: tuple[TaskPod, Scrape | str], scrape: Callable[[TaskPod], Scrape | str]) -> Scrape | str:
    task, before = pair
    return before if isinstance(before, str) else scrape(task)
