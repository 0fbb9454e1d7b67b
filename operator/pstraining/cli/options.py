"""Options that several commands have, described once."""

from typing import Annotated

import typer

from pstraining.cli.output import Output

Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="The job's namespace; the context's own by default.")
]
Context = Annotated[str | None, typer.Option(help="The context of the kubeconfig; the current one by default.")]
Format = Annotated[Output, typer.Option("--output", "-o", help="For people, or for programs.")]
Job = Annotated[str, typer.Argument(help="The job.")]
