"""`top JOB`: show a job's training rates, from two scrapes of its tasks' metrics."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pstraining.cli.client import KubeconfigClient
from pstraining.cli.formatting import bytes_rate, devices, rate
from pstraining.cli.jobs import listed
from pstraining.cli.metrics.measurement import measure
from pstraining.cli.options import Context, Format, Interval, Job, Namespace
from pstraining.cli.output import Output, PrintedKind, UncutTable, show


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


def picture(found: dict[str, Any]) -> RenderableType:
    """Render a job's rates as text."""
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
    found = UncutTable(box=None, pad_edge=False, header_style="")
    for name in names:
        numeric = name not in ("TASK", "DEVICES", "SERVER", "")
        found.add_column(name, justify="right" if numeric else "left", no_wrap=True)
    return found
