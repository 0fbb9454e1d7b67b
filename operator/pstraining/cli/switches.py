"""Commands with kubectl's switches, and names of values in the help.

As for kubectl, --wait=true is --wait, and --wait=false is its absence. -o=json is -o json. The type may precede the
names of jobs, as in `suspend pstj digits`.
"""

from collections.abc import Container, Sequence
from typing import Any, Final

from typer.core import TyperArgument, TyperCommand, TyperGroup

from pstraining.cli.errors import ArgumentError
from pstraining.cli.jobs import TYPES
from pstraining.cli.output import until_unread

_TRUE: Final = frozenset(("1", "t", "T", "true", "True", "TRUE"))
_FALSE: Final = frozenset(("0", "f", "F", "false", "False", "FALSE"))
"""Go's truth values (strconv.ParseBool)."""
_JOBS: Final = ("job", "jobs")
"""Names of the arguments with jobs."""
SHORT: Final = 2
"""Length of an option's name of one letter, such as -o."""


class _ReadableHelp:
    """Lets the help go to a reader that ends early, such as `head`, as the output of each command does."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the arguments, and print the help if they ask for it."""
        with until_unread():
            return super().make_context(*args, **options)  # type: ignore[misc] # of the other base class


class KubectlGroup(_ReadableHelp, TyperGroup):  # type: ignore[misc] # untyped upstream
    """All commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises:
            ArgumentError: an option of a command precedes it, as kubectl accepts for its own commands.
        """
        name = args[0].partition("=")[0] if args else ""
        name = name if name.startswith("--") else name[:SHORT]
        params = [param for command in self.commands.values() for param in command.params]
        if name.startswith("-") and any(name in param.opts for param in params) and not ctx.resilient_parsing:
            raise ArgumentError(
                f"{name}: options come after the command, as in `{ctx.command_path} status --namespace team`."
            )
        left: list[str] = super().parse_args(ctx, args)
        return left


class KubectlCommand(_ReadableHelp, TyperCommand):  # type: ignore[misc] # untyped upstream
    """A command that accepts values after = as kubectl does: --wait=true, --force=false, -o=json.

    Its help names the value of an option by the option, as `--tail TAIL`, instead of by its type in Python.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for param in self.params:
            if isinstance(param, TyperArgument):
                param.display_type_rich = lambda ctx: None
            elif param.metavar is None and not param.type_descriptor.is_choice:
                param.metavar = param.name.upper()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments."""
        options = [param for param in self.params if param.param_type_name == "option"]
        named = {name for option in options if option.is_flag for name in option.opts}
        short = {name for option in options if not option.is_flag for name in option.opts if len(name) == SHORT}
        given = switches(args, named, short)
        if any(param.name in _JOBS for param in self.params):
            valued = {name for option in options if not option.is_flag for name in option.opts}
            given = without_type(given, valued)
        left: list[str] = super().parse_args(ctx, given)
        if not ctx.resilient_parsing:  # as for a completion
            _check_timeout(ctx, args)
        return left


def _check_timeout(ctx: Any, args: Sequence[str]) -> None:
    """Check that a limit of --wait comes with --wait. Scripts for kubectl may write --wait=false and a limit.

    Raises:
        ArgumentError: the command would ignore the limit, and end at once.
    """
    source = ctx.get_parameter_source("timeout")
    is_given = source is not None and source.name == "COMMANDLINE"
    if is_given and ctx.params.get("wait") is False and not any(arg.startswith("--wait=") for arg in args):
        raise ArgumentError("--timeout is the limit of --wait: add --wait, or remove --timeout.")


def switches(args: Sequence[str], named: Container[str], short: Container[str] = ()) -> list[str]:
    """Return the arguments with switches for their values: --wait for --wait=true, nothing for --wait=false.

    Args:
        args: the arguments.
        named: the names of the switches.
        short: the names of one letter of options with values. -o=json becomes -o and json.
    """
    found: list[str] = []
    for index, arg in enumerate(args):
        if arg == "--":
            return found + list(args[index:])
        name, equals, value = arg.partition("=")
        if equals and name in short:
            found += [name, value]
        elif not equals or name not in named or value not in _TRUE | _FALSE:
            found.append(arg)
        elif value in _TRUE:
            found.append(name)
        else:
            found = [one for one in found if one != name]
    return found


def without_type(args: Sequence[str], valued: Container[str]) -> list[str]:
    """Return the arguments without a type before the names of jobs: digits for pstj digits.

    Args:
        args: the arguments.
        valued: the names of options whose value is the next argument.
    """
    found, words = list[int](), iter(enumerate(args))
    for index, arg in words:
        if arg in valued:
            next(words, None)
        elif not arg.startswith("-"):
            found.append(index)
    several = len(found) > 1 and args[found[0]].lower() in TYPES
    return [arg for index, arg in enumerate(args) if not several or index != found[0]]
