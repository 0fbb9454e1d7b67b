"""The command line: `kubectl pstraining COMMAND`, or `kubectl-pstraining COMMAND`."""

import errno
import io
import sys
from functools import cache
from typing import Any, Final

import typer

from pstraining.cli.command_table import COMMANDS, PROGRAM, interruptible
from pstraining.cli.errors import CommandError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.options import with_connection
from pstraining.cli.output import allow_all_characters, drop_output, guard_terminals
from pstraining.cli.switches import KubectlCommand, KubectlGroup

SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""-h is an alias of --help, as in kubectl."""

_UNWRITTEN: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a full disk, and of one that fails."""

app = typer.Typer(
    cls=KubectlGroup,
    help="Submit, watch and change parameter-server training jobs.",
    no_args_is_help=True,
    context_settings=SETTINGS,
    # Plain help and errors, as kubectl's: boxes would break lines in CI logs.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,  # kubectl completes its plugins by kubectl_complete-pstraining
)


def root() -> None:
    """Submit, watch and change parameter-server training jobs on Kubernetes."""


# Without a callback, typer drops the name of a program's only command.
app.callback()(root)
for command in COMMANDS:
    texts = {"short_help": command.summary, "epilog": command.epilog()}
    app.command(command.name, cls=KubectlCommand, context_settings=SETTINGS, **texts)(
        interruptible(with_connection(command.run))
    )


@cache
def program() -> Any:
    """Return the click command. Cached, because building it takes most of the time of a short command."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the executable `kubectl-pstraining`."""
    allow_all_characters()
    guard_terminals()
    try:
        _run()
    except BrokenPipeError:  # of the error output
        drop_output()
        sys.exit(ExitCode.UNREAD)


def _run() -> None:
    try:
        program()(prog_name=PROGRAM)
    except CommandError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(error.code)
    except OSError as error:
        if error.errno not in _UNWRITTEN:
            raise
        typer.echo(f"Error: The output cannot be written: {error.strerror}.", err=True)
        sys.stdout = io.StringIO()  # its rest cannot be written at the end, either
        sys.exit(ExitCode.ERROR)


if __name__ == "__main__":
    main()
