"""Options that several commands have, described once."""

from typing import Annotated

import typer

from pstraining.cli.output import Output
from pstraining.cli.tasks import TaskRole

Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace of the job. Default: the context's namespace.")
]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig. Default: the current context.")]
Format = Annotated[
    Output, typer.Option("--output", "-o", help="Output format: text to read, json or yaml for programs.")
]
Job = Annotated[str, typer.Argument(help="Name of the job.")]
Files = Annotated[
    list[str],
    typer.Option(
        "--filename",
        "-f",
        help="File, folder, pattern or URL of manifests, YAML or JSON; - reads standard input. Can be repeated.",
        metavar="FILE",
    ),
]
Recursive = Annotated[bool, typer.Option("--recursive", "-R", help="Read the folders in the folders of -f, too.")]
RoleOption = Annotated[
    TaskRole | None, typer.Option("--role", help="Show only tasks with this role. Standbys have the role ps.")
]
IndexOption = Annotated[
    int | None, typer.Option("--index", help="Show only the task with this index. Requires --role.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the result. The exit status reports it.")]
Timeout = Annotated[float, typer.Option(help="Maximum seconds to wait.", min=0)]
