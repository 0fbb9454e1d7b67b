"""Options that several commands have, described once."""

from pathlib import Path
from typing import Annotated

import typer

from pstraining.cli.output import Output
from pstraining.cli.tasks import TaskRole

Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="The job's namespace; the context's own by default.")
]
Context = Annotated[str | None, typer.Option(help="The context of the kubeconfig; the current one by default.")]
Format = Annotated[Output, typer.Option("--output", "-o", help="For people, or for programs.")]
Job = Annotated[str, typer.Argument(help="The job.")]
Files = Annotated[
    list[Path],
    typer.Option(
        "--filename", "-f", help="A file of manifests, YAML or JSON; - for standard input. May be given several times."
    ),
]
RoleOption = Annotated[
    TaskRole | None, typer.Option("--role", help="Only tasks of this role; standbys are of role ps.")
]
IndexOption = Annotated[int | None, typer.Option("--index", help="Only the task of this index; needs --role.")]
Wait = Annotated[bool, typer.Option("--wait", help="Follow the job until it is so; the exit status tells.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait at most.", min=0)]
