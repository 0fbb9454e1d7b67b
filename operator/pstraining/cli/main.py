"""The command line: `kubectl pstraining COMMAND`, or `kubectl-pstraining COMMAND`."""

import sys

import typer

from pstraining.cli.commands.convert import convert
from pstraining.cli.commands.doctor import doctor
from pstraining.cli.commands.logs import logs
from pstraining.cli.commands.plan import plan
from pstraining.cli.commands.scale import scale
from pstraining.cli.commands.status import status
from pstraining.cli.commands.submit import submit
from pstraining.cli.commands.suspend import resume, suspend
from pstraining.cli.commands.takeover import takeover
from pstraining.cli.commands.top import top
from pstraining.cli.commands.validate import validate
from pstraining.cli.errors import CommandError
from pstraining.cli.options import with_connection
from pstraining.cli.output import guard_terminals

COMMANDS = (validate, plan, submit, status, logs, top, scale, suspend, resume, takeover, convert, doctor)
"""One file each, in the order of the help."""

app = typer.Typer(help="Submit, watch and change parameter-server training jobs.", no_args_is_help=True)


def root() -> None:
    """Submit, watch and change parameter-server training jobs on Kubernetes."""


# A callback keeps the name of the command, also while it is the only one.
app.callback()(root)
for command in COMMANDS:
    app.command()(with_connection(command))


def main() -> None:
    """The executable."""
    guard_terminals()
    try:
        app()
    except CommandError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
