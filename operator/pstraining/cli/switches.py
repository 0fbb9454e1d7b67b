"""Commands with kubectl's switches, and names of values in the help.

As for kubectl, --wait=true is --wait, and --wait=false is its absence.
"""

from collections.abc import Container, Sequence
from typing import Any, Final

from typer.core import TyperArgument, TyperCommand

_TRUE: Final = frozenset(("1", "t", "T", "true", "True", "TRUE"))
_FALSE: Final = frozenset(("0", "f", "F", "false", "False", "FALSE"))
"""Go's truth values (strconv.ParseBool)."""


class KubectlCommand(TyperCommand):  # type: ignore[misc] # untyped upstream
    """A command that accepts values of its switches, as kubectl does: --wait=true, --force=false.

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
        named = {name for option in self.params if getattr(option, "is_flag", False) for name in option.opts}
        left: list[str] = super().parse_args(ctx, switches(args, named))
        return left


def switches(args: Sequence[str], named: Container[str]) -> list[str]:
    """Return the arguments with switches for their values: --wait for --wait=true, nothing for --wait=false.

    Args:
        args: the arguments.
        named: the names of the switches.
    """
    found: list[str] = []
    for index, arg in enumerate(args):
        if arg == "--":
            return found + list(args[index:])
        name, equals, value = arg.partition("=")
        if not equals or name not in named or value not in _TRUE | _FALSE:
            found.append(arg)
        elif value in _TRUE:
            found.append(name)
        else:
            found = [one for one in found if one != name]
    return found
