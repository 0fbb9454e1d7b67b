"""The command line: `kubectl pstraining COMMAND`, or `kubectl-pstraining COMMAND`."""

import sys

import typer

from pstraining.cli.cluster import KubeconfigCluster
from pstraining.cli.errors import CommandError
from pstraining.cli.takeover import take_over

app = typer.Typer(help="Parameter-server training jobs.", no_args_is_help=True, add_completion=False)


def root() -> None:
    """Parameter-server training jobs on Kubernetes."""


def takeover(
    job: str = typer.Argument(help="The job."),
    shard: int = typer.Option(help="The shard whose standby is to take over."),
    namespace: str | None = typer.Option(None, "--namespace", "-n", help="The job's namespace."),
    context: str | None = typer.Option(None, help="The context of the kubeconfig; the current one by default."),
    timeout: float = typer.Option(60, help="Seconds to wait."),
) -> None:
    """Let a standby take over a shard now; a plain program goes on from its newest checkpoint."""
    typer.echo(take_over(KubeconfigCluster(context), job, shard, namespace, timeout))


# A callback keeps the name of the command, also while it is the only one.
app.callback()(root)
app.command()(takeover)


def main() -> None:
    """The executable."""
    try:
        app()
    except CommandError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
