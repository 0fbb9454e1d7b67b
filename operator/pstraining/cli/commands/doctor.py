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
from pstraining.cli.options import Context, Format
from pstraining.cli.output import Output, show


def doctor(
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Where jobs are to run; the context's own by default.")
    ] = None,
    context: Context = None,
    output: Format = Output.TEXT,
    cpu: Annotated[str, typer.Option(help="What a parameter server needs, to see whether nodes have room.")] = "500m",
    memory: Annotated[str, typer.Option(help="The same, of memory.")] = "1Gi",
) -> None:
    """Check cluster and install: each check says ok, warn or fail, and what to do next; exit status 1 if one fails.

    It looks at the API server's version, the CRD (is it this version's?), the operator and its Lease, your rights, room
    on nodes, storage for checkpoints, the network, and the operator's metrics. It changes nothing, and works with few
    rights: what you may not read is a warning.
    """
    try:
        need = Amount.of({"cpu": cpu, "memory": memory})
    except ValueError as error:
        raise CommandError(f"--cpu {cpu} --memory {memory}: these are no quantities, such as 500m and 1Gi") from error
    found = list(_all(context, namespace, need))
    show(report(found), output, lambda: picture(found))
    if any(c.result is Result.FAIL for c in found):
        raise typer.Exit(1)


def _all(context: str | None, namespace: str | None, need: Amount) -> Iterator[Check]:
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
