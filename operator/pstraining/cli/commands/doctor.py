"""`doctor`: find the reasons that a job, or all jobs, do not run, and the actions to take.

The command only reads. A missing right is a warning that names it; the other checks continue.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pstraining.cli.client import ClusterClient, KubeconfigClient
from pstraining.cli.doctor.checks import Amount, Check, CheckResult
from pstraining.cli.doctor.examination import examine
from pstraining.cli.doctor.job_causes import causes
from pstraining.cli.doctor.job_evidence import gathered
from pstraining.cli.errors import ArgumentError, CommandError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.jobs import job_named, phase
from pstraining.cli.metrics.measurement import measure
from pstraining.cli.options import Context, Format, job_argument
from pstraining.cli.output import Output, PrintedKind, show
from pstraining.resources.resource_requests import parse

MEASURED: Final = 3.0
"""Seconds between the scrapes that measure a running job's rate."""
CPU: Final = "500m"
MEMORY: Final = "1Gi"
"""CPU and memory of a parameter server for which nodes need room, by default."""
CORES_MAX: Final = 10_000
MEMORY_MIN: Final = "1Mi"
"""Less is a number without its unit, or with the unit m."""


def doctor(
    job: Annotated[
        str | None,
        typer.Argument(
            parser=job_argument,
            metavar="JOB",
            help="Name of the job to examine, or pstj/NAME. Default: the installation.",
        ),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of the jobs. Default: the context's namespace.")
    ] = None,
    context: Context = None,
    output: Format = Output.TEXT,
    cpu: Annotated[
        str | None,
        typer.Option(help=f"CPU of a parameter server, to check the capacity of nodes. Default: {CPU}."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help=f"Memory of a parameter server, to check the capacity of nodes. Default: {MEMORY}."),
    ] = None,
) -> None:
    """Find out why jobs do not run: the causes of one job's problem, or checks of the cluster and the installation.

    With a job, the command reads its conditions, pods, events, logs and rates. It prints the likely causes, the most
    likely one first, with the next steps.

    Without a job, the checks cover the version of the API server, the CRD, the operator and its Lease, your rights, the
    capacity of nodes, storage for checkpoints, the network, and the operator's metrics. They change nothing. A check
    for which you lack a right is a warning.

    Each line begins with ok, warn or fail. The exit status is 1 if one begins with fail.
    """
    if job is not None and (cpu is not None or memory is not None):
        raise ArgumentError("--cpu and --memory check the installation, and not a job: remove them, or the job's name.")
    if job is not None:
        diagnosis = examine_job(KubeconfigClient(context), namespace, job, datetime.now(UTC))
        show(PrintedKind.DIAGNOSIS, diagnosis, output, lambda: job_picture(diagnosis))
        if diagnosis["result"] == CheckResult.FAIL:
            raise typer.Exit(ExitCode.ERROR)
        return
    need = size_of(CPU if cpu is None else cpu, MEMORY if memory is None else memory)
    found = list(_all(context, namespace, need))
    show(PrintedKind.INSTALLATION, report(found), output, lambda: picture(found))
    if any(c.result is CheckResult.FAIL for c in found):
        raise typer.Exit(ExitCode.ERROR)


def size_of(cpu: str, memory: str) -> Amount:
    """Return the size of a parameter server.

    Args:
        cpu: the value of --cpu.
        memory: the value of --memory.

    Raises:
        ArgumentError: a value is not a quantity, or no parameter server has it.
    """
    try:
        need = Amount.of({"cpu": cpu, "memory": memory})
    except ValueError as error:
        raise ArgumentError(f"--cpu {cpu} --memory {memory}: not quantities such as 500m and 1Gi") from error
    if not 0 < need.cpu <= CORES_MAX:
        raise ArgumentError(f"--cpu {cpu}: must be more than 0 and at most {CORES_MAX} cores, such as 4 or 500m.")
    if need.memory < parse(MEMORY_MIN):
        raise ArgumentError(f"--memory {memory}: must be at least {MEMORY_MIN}, and have a unit, such as 16Gi.")
    return need


def examine_job(cluster: ClusterClient, namespace: str | None, name: str, now: datetime) -> dict[str, Any]:
    """Return the likely causes of a job's problem, for programs.

    Args:
        cluster: the job's cluster.
        namespace: the job's namespace; by default the context's.
        name: the job's name.
        now: the present time.

    Raises:
        CommandError: the job does not exist.
    """
    namespace = namespace or cluster.namespace
    job = job_named(cluster, namespace, name)

    def steps_per_second() -> float | None:
        rates = measure(cluster, namespace, name, MEASURED)["job"]
        return None if rates is None else rates["stepsPerSecond"]

    evidence, unknown = gathered(cluster, job, now, steps_per_second)
    found = causes(evidence)
    first = found[0] if found and found[0].result is CheckResult.FAIL else None
    return {
        "namespace": namespace,
        "name": name,
        "phase": phase(job),
        "mostLikely": None if first is None else {"cause": first.name, "message": first.message, "todo": first.todo},
        **report([*found, *unknown] or [Check("job", CheckResult.OK, "no problem was found")]),
    }


def job_picture(found: dict[str, Any]) -> RenderableType:
    """Render a diagnosis as text."""
    checks = [Check(c["check"], CheckResult(c["result"]), c["message"], c["todo"]) for c in found["checks"]]
    likely = found["mostLikely"]
    last = f"Most likely: {likely['message'].rstrip('.')}. {likely['todo']}" if likely else ""
    return Group(Text(f"{found['name']}  {found['phase']}"), picture(checks), *([Text(last)] if last else []))


def _all(context: Context, namespace: str | None, need: Amount) -> Iterator[Check]:
    try:
        cluster = KubeconfigClient(context)
    except ArgumentError:
        raise
    except CommandError as error:
        yield Check("kubeconfig", CheckResult.FAIL, str(error))
        return
    yield from examine(cluster, namespace or cluster.namespace, need, datetime.now(UTC))


def report(found: list[Check]) -> dict[str, Any]:
    """Return the checks and the worst of their results, for programs."""
    worst = max(found, key=lambda c: [*CheckResult].index(c.result)).result
    checks = [{"check": c.name, "result": str(c.result), "message": c.message, "todo": c.todo} for c in found]
    return {"result": str(worst), "checks": checks}


def picture(found: list[Check]) -> RenderableType:
    """Render checks as a table."""
    styles = {CheckResult.OK: "green", CheckResult.WARN: "yellow", CheckResult.FAIL: "bold red"}
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for check in found:
        text = Text(check.message)
        if check.todo:
            text.append(f"\n-> {check.todo}", style="dim")
        table.add_row(Text(str(check.result), style=styles[check.result]), check.name, text)
    return table
