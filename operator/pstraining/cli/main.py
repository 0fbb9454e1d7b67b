"""The command line: `kubectl pstraining COMMAND`, or `kubectl-pstraining COMMAND`."""

import sys

import typer

from pstraining.cli.convert import convert
from pstraining.cli.doctor import doctor
from pstraining.cli.errors import CommandError
from pstraining.cli.logs import logs
from pstraining.cli.plan import plan
from pstraining.cli.scale import scale
from pstraining.cli.status import status
from pstraining.cli.submit import submit
from pstraining.cli.suspend import resume, suspend
from pstraining.cli.takeover import takeover
from pstraining.cli.top import top
from pstraining.cli.validate import validate

COMMANDS = (validate, plan, submit, status, logs, top, scale, suspend, resume, takeover, convert, doctor)
"""One file each, in the order of the help."""

app = typer.Typer(help="Parameter-server training jobs.", no_args_is_help=True)


def root() -> None:
    """Parameter-server training jobs on Kubernetes."""


# A callback keeps the name of the command, also while it is the only one.
app.callback()(root)
for command in COMMANDS:
    app.command()(command)


def main() -> None:
    """The executable."""
    try:
        app()
    except CommandError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
