"""`top JOB`: how fast the tasks of a job train, from two scrapes of their metrics an interval apart."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pstraining.cli.client import ClusterClient, KubeconfigClient, Object
from pstraining.cli.errors import CommandError
from pstraining.cli.formatting import bytes_rate, devices, rate
from pstraining.cli.jobs import job_named, listed, phase, why
from pstraining.cli.metrics.rates import Scrape, TaskRates, as_data, job_rates, server_rates, stragglers, task_rates
from pstraining.cli.metrics.scraping import AT_ONCE, scraped, trains
from pstraining.cli.options import Context, Format, Interval, Job, Namespace
from pstraining.cli.output import Output, PrintedKind, show
from pstraining.cli.tasks import TaskPod, tasks_of


def top(
    job: Job,
    interval: Interval = 5,
    namespace: Namespace = None,
    context: Context = None,
    output: Format = Output.TEXT,
) -> None:
    """Show a job's training rates: devices, steps and examples per second, staleness, traffic and stragglers."""
    cluster = KubeconfigClient(context)
    found = measure(cluster, namespace or cluster.namespace, job, interval)
    show(PrintedKind.RATES, found, output, lambda: picture(found))


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
        sleep: waits for so many of them.

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


def picture(found: dict[str, Any]) -> RenderableType:
    """The same for people."""
    parts: list[RenderableType] = [Text(_headline(found))]
    if measured := [task for task in found["tasks"] if not task["problem"]]:
        parts += [Text(), _tasks(measured)]
    if found["servers"]:
        servers = _table("SERVER", "SENT", "RECEIVED")
        for server in found["servers"]:
            sent, received = server["sentBytesPerSecond"], server["receivedBytesPerSecond"]
            servers.add_row(server["server"], bytes_rate(sent), bytes_rate(received))
        parts += [Text(), servers]
    problems: dict[str, list[str]] = {}
    for task in found["tasks"]:
        if task["problem"]:
            problems.setdefault(task["problem"], []).append(task["task"])
    if problems:
        parts.append(Text())
    parts += [Text(f"{listed(tasks)}: {problem}", "yellow") for problem, tasks in problems.items()]
    return Group(*parts)


def _tasks(measured: Sequence[dict[str, Any]]) -> Table:
    table = _table("TASK", "DEVICES", "STEPS/S", "EXAMPLES/S", "STEP", "STALENESS", "DROPPED", "SENT", "RECEIVED", "")
    for task in measured:
        seconds, dropped = task["stepSeconds"], task["dropped"]
        table.add_row(
            task["task"],
            devices(task["devices"]) or "-",
            rate(task["stepsPerSecond"]),
            rate(task["examplesPerSecond"]),
            "-" if seconds is None else f"{rate(seconds * 1000)} ms",
            rate(task["staleness"]),
            "-" if dropped is None else str(dropped),
            bytes_rate(task["sentBytesPerSecond"]),
            bytes_rate(task["receivedBytesPerSecond"]),
            Text("straggler" if task["straggler"] else "", "yellow"),
        )
    return table


def _headline(found: dict[str, Any]) -> str:
    words = [f"{found['name']}  {found['phase']}"]
    if whole := found["job"]:
        words.append(f"step {whole['step']}, {rate(whole['stepsPerSecond'])} steps/s")
    if found["examplesPerSecond"] is not None:
        words.append(f"{rate(found['examplesPerSecond'])} examples/s")
    if whole:
        words += [f"epoch {whole['epoch']}"] if whole["epoch"] is not None else []
        words += [f"loss {whole['loss']:.4g}"] if whole["loss"] is not None else []
        words += [f"{whole['workersPresent']} workers take part"] if whole["workersPresent"] is not None else []
    return "  ".join([words[0], ", ".join(words[1:])]).rstrip()


def _table(*names: str) -> Table:
    found = Table(box=None, pad_edge=False, header_style="")
    for name in names:
        numeric = name not in ("TASK", "DEVICES", "SERVER", "")
        found.add_column(name, justify="right" if numeric else "left", no_wrap=True)
    return found


def _again(pair: tuple[TaskPod, Scrape | str], scrape: Callable[[TaskPod], Scrape | str]) -> Scrape | str:
    task, before = pair
    return before if isinstance(before, str) else scrape(task)
