"""`doctor`: what of the cluster and the install may keep jobs from running, and what to do about it.

It only reads. What the user may not read is a warning that names the right; the other checks go on.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from pstraining.cli.client import KubeconfigClient
from pstraining.cli.doctor.checks import Amount, Check, Result
from pstraining.cli.doctor.examination import examine
from pstraining.cli.errors import CommandError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.options import Context, Format
from pstraining.cli.output import Output, PrintedKind, show


def doctor(
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of the jobs. Default: the context's namespace.")
    ] = None,
    context: Context = None,
    output: Format = Output.TEXT,
    cpu: Annotated[str, typer.Option(help="CPU of a parameter server, to check the capacity of nodes.")] = "500m",
    memory: Annotated[str, typer.Option(help="Memory of a parameter server, to check the capacity of nodes.")] = "1Gi",
) -> None:
    """Check the cluster and the installation. Each check reports ok, warn or fail, and what to do next.

    The checks cover the version of the API server, the CRD, the operator and its Lease, your rights, the capacity of
    nodes, storage for checkpoints, the network, and the operator's metrics. They change nothing. A check that you have
    no right for is a warning. The exit status is 1 if a check fails.
    """
    try:
        need = Amount.of({"cpu": cpu, "memory": memory})
    except ValueError as error:
        raise CommandError(f"--cpu {cpu} --memory {memory}: not quantities such as 500m and 1Gi") from error
    found = list(_all(context, namespace, need))
    show(PrintedKind.INSTALLATION, report(found), output, lambda: picture(found))
    if any(c.result is Result.FAIL for c in found):
        raise typer.Exit(ExitCode.ERROR)


def _all(context: Context, namespace: str | None, need: Amount) -> Iterator[Check]:
    try:
        cluster = KubeconfigClient(context)
    except CommandError as error:
        yield Check("kubeconfig", Result.FAIL, str(error))
        return
    yield from examine(cluster, namespace or cluster.namespace, need, datetime.now(UTC))


def report(found: list[Check]) -> dict[str, Any]:
    """The checks, for programs, with the worst result of all."""
    worst = max(found, key=lambda c: [*Result].index(c.result)).result
    said = [{"check": c.name, "result": str(c.result), "message": c.message, "todo": c.todo} for c in found]
    return {"result": str(worst), "checks": said}


def picture(found: list[Check]) -> RenderableType:
    """The checks, for people."""
    styles = {Result.OK: "green", Result.WARN: "yellow", Result.FAIL: "bold red"}
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for check in found:
        said = Text(check.message)
        if check.todo:
            said.append(f"\n-> {check.todo}", style="dim")
        table.add_row(Text(str(check.result), style=styles[check.result]), check.name, said)
    return table
