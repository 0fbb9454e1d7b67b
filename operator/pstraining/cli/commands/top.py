"""`top JOB`: how fast the tasks of a job train, from two scrapes of their metrics an interval apart."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pstraining.api import contract
from pstraining.cli.client import ClusterClient, KubeconfigClient, Object
from pstraining.cli.errors import CommandError, DeniedError, RequestError
from pstraining.cli.formatting import bytes_rate, rate
from pstraining.cli.jobs import job_named, listed, phase, why
from pstraining.cli.metrics.rates import Scrape, TaskRates, as_data, job_rates, server_rates, stragglers, task_rates
from pstraining.cli.metrics.samples import read
from pstraining.cli.options import Context, Format, Job, Namespace
from pstraining.cli.output import Output, show
from pstraining.cli.status.pod_state import state
from pstraining.cli.tasks import TaskPod, TaskRole, tasks_of

AT_ONCE: Final = 16
"""Tasks that are scraped at the same time."""


def top(
    job: Job,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between the two scrapes.")] = 5,
    namespace: Namespace = None,
    context: Context = None,
    output: Format = Output.TEXT,
) -> None:
    """Show a job's training rates: steps and examples per second, staleness, traffic and stragglers."""
    cluster = KubeconfigClient(context)
    found = measure(cluster, namespace or cluster.namespace, job, interval)
    show(found, output, lambda: picture(found))


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
    tasks = [t for t in tasks_of(job, cluster.pods(namespace, name)) if _trains(t)]
    if not tasks:
        raise CommandError(
            f"{name} currently has no chief and no workers, and its phase is {phase(job)}. {why(job)}".rstrip()
        )

    def scrape(task: TaskPod) -> Scrape | str:
        return _scrape(cluster, job, task, clock)

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
    table = _table("TASK", "STEPS/S", "EXAMPLES/S", "STEP", "STALENESS", "DROPPED", "SENT", "RECEIVED", "")
    for task in measured:
        seconds, dropped = task["stepSeconds"], task["dropped"]
        table.add_row(
            task["task"],
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
        numeric = name not in ("TASK", "SERVER", "")
        found.add_column(name, justify="right" if numeric else "left", no_wrap=True)
    return found


def _trains(task: TaskPod) -> bool:
    """Whether it is of a role that serves metrics, and its pod has not ended."""
    return task.pod.role in (TaskRole.CHIEF, TaskRole.WORKER) and not task.pod.terminal


def _again(pair: tuple[TaskPod, Scrape | str], scrape: Callable[[TaskPod], Scrape | str]) -> Scrape | str:
    task, before = pair
    return before if isinstance(before, str) else scrape(task)


def _scrape(cluster: ClusterClient, job: Object, task: TaskPod, clock: Callable[[], float]) -> Scrape | str:
    """A task's metrics, or the reason why it has none."""
    if not task.pod.container.running:
        return f"is not running: {state(task)}"
    port = metrics_port(task)
    if isinstance(port, str):
        return port
    try:
        text = cluster.metrics(task.manifest["metadata"]["namespace"], task.pod.name, port)
        return Scrape(clock(), read(text))
    except DeniedError:
        raise
    except RequestError as error:
        return _unserved(str(error), port, isolated=_isolation(job) == "Full")
    except ValueError as error:
        return f"port {port} does not serve metrics: {error}"


def metrics_port(task: TaskPod) -> int | str:
    """Where a task serves metrics; or in words, why that is not known."""
    containers: list[Object] = (task.manifest.get("spec") or {}).get("containers") or []
    named = [c for c in containers if c.get("name") == task.container]
    variables = [v for c in named for v in c.get("env") or () if v["name"] == contract.ENV_METRICS_PORT]
    if not variables:
        return contract.METRICS_PORT
    variable = variables[-1]
    text = str(variable.get("value", ""))
    if not text and "valueFrom" not in variable:
        return contract.METRICS_PORT
    if text.isdecimal() and 0 < int(text) < 65536:
        return int(text)
    return f"its port is unknown: its template sets {contract.ENV_METRICS_PORT} to {text or 'a value from elsewhere'}"


def _unserved(message: str, port: int, *, isolated: bool) -> str:
    if "connection refused" in message:
        return f"port {port} refuses connections: the task is not training yet, or does not use pstraining.runtime"
    if isolated:
        return f"port {port} does not respond: with spec.network.isolation Full, only the job's own pods can reach it"
    return f"port {port}: {message}"


def _isolation(job: Object) -> str:
    return str((job["spec"].get("network") or {}).get("isolation", ""))
