"""`kubectl pstraining <TAB>`: kubectl runs `kubectl_complete-pstraining` with the words typed so far.

The output has the format of kubectl's own commands (cobra's __complete): on each line a candidate, a tab and its
description, and on the last line cobra's directive. https://github.com/kubernetes/kubernetes/pull/105867
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from threading import Thread
from typing import Any, Final

import typer

from pstraining.cli.client import KubeconfigClient
from pstraining.cli.command_table import COMMANDS, PROGRAM
from pstraining.cli.commands.wait import GOALS
from pstraining.cli.connection import kubeconfig
from pstraining.cli.connection.overrides import Overrides
from pstraining.cli.errors import CommandError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.main import program
from pstraining.cli.options import CONNECTION
from pstraining.cli.output import drop_output, written

FILES: Final = ("files", "file", "folder", "kubeconfig", "certificate_authority", "client_certificate", "client_key")
"""Options whose values are files or folders."""
SECONDS: Final = 3.0
"""Time limit for requests to the cluster."""


class Directive(IntEnum):
    """cobra's ShellCompDirective: whether the shell also offers files."""

    FILES = 0
    NO_FILES = 4


@dataclass(frozen=True)
class Completion:
    """The words that may come next."""

    candidates: tuple[tuple[str, str], ...] = ()
    """Pairs of a word and its description."""
    directive: Directive = Directive.NO_FILES

    def starting_with(self, begin: str) -> "Completion":
        """Return only the candidates with this prefix."""
        return Completion(tuple(c for c in self.candidates if c[0].startswith(begin)), self.directive)

    def lines(self) -> Iterator[str]:
        """Yield the lines that kubectl reads."""
        yield from (f"{word}\t{text}" if text else word for word, text in self.candidates)
        yield f":{self.directive:d}"


Names = Callable[[str, Mapping[str, Any]], Iterable[str]]
"""Looks up the values of an argument, by its name and the options given, in the cluster or the kubeconfig."""


def complete(words: Sequence[str], names: Names) -> Completion:
    """Return the words that may come next.

    Args:
        words: the words after `kubectl pstraining`; the last one is incomplete and may be empty.
        names: looks up jobs, namespaces and contexts.
    """
    *before, begin = words or ("",)
    if not before:
        return Completion(tuple((c.name, c.summary) for c in COMMANDS)).starting_with(begin)
    tree: Any = program()
    if before[0] not in tree.commands:
        return Completion()
    command = tree.commands[before[0]]
    parent = typer.Context(tree, info_name=PROGRAM)
    context = command.make_context(before[0], before[1:], parent=parent, resilient_parsing=True)
    options = [p for p in command.get_params(context) if p.param_type_name == "option"]
    if (taken := _waits_for_value(options, before[-1])) is not None:
        return _values(taken, context, names, begin)
    option, equals, rest = begin.partition("=")
    if equals and (taken := _waits_for_value(options, option)) is not None:
        found = _values(taken, context, names, rest)
        return Completion(tuple((f"{option}={word}", text) for word, text in found.candidates), found.directive)
    if begin.startswith("-"):
        return Completion(tuple(_options(options, before))).starting_with(begin)
    arguments = (p for p in command.params if p.param_type_name == "argument")
    free = [p for p in arguments if p.nargs == -1 or not context.params.get(p.name)]
    return _values(free[0], context, names, begin) if free else Completion()


def main() -> None:
    """Run the executable `kubectl_complete-pstraining`."""
    try:
        with written():
            typer.echo("\n".join(complete(sys.argv[1:], found_names).lines()))
    except BrokenPipeError:
        drop_output()
        sys.exit(ExitCode.UNREAD)


def found_names(what: str, given: Mapping[str, Any]) -> list[str]:
    """Return names from the cluster or the kubeconfig; none if the cluster does not respond in time.

    Args:
        what: job, namespace, context, cluster or user; there are no names for anything else.
        given: the command's options.
    """
    found: list[str] = []

    def look() -> None:
        try:
            found.extend(_look_up(what, given))
        except CommandError:
            return  # a shell shows no errors while a word is completed

    thread = Thread(target=look, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return sorted(found)


def _look_up(what: str, given: Mapping[str, Any]) -> list[str]:
    overrides = _overrides(given)
    if what in ("context", "cluster", "user"):
        return list(getattr(kubeconfig.load(overrides, os.environ), f"{what}s"))
    if what not in ("job", "namespace"):
        return []
    cluster = KubeconfigClient(overrides)
    if what == "namespace":
        return [str(found["metadata"]["name"]) for found in cluster.listed("/api/v1/namespaces")]
    return [str(job["metadata"]["name"]) for job in cluster.jobs(given.get("namespace") or cluster.namespace)]


def _overrides(given: Mapping[str, Any]) -> Overrides:
    """Return the values of the connection's options so far."""
    values: dict[str, Any] = {field: given[field] for field in CONNECTION if given.get(field)}
    lists = {field: tuple(value) for field, value in values.items() if isinstance(value, list)}
    return Overrides(**{**values, **lists})


def _waits_for_value(options: Iterable[Any], word: str) -> Any:
    """Return the option that a word names if its value comes next; otherwise None."""
    return next((o for o in options if word in o.opts and not (o.is_flag or o.count)), None)


def _values(parameter: Any, context: typer.Context, names: Names, begin: str) -> Completion:
    """Return the values of an option or an argument that begin with a prefix."""
    if parameter.name == "goal":
        return Completion(tuple((goal, "") for goal in GOALS)).starting_with(begin)
    items = parameter.shell_complete(context, begin)
    if any(item.type == "file" for item in items) or parameter.name in FILES:
        return Completion(directive=Directive.FILES)
    what = "job" if parameter.name == "jobs" else parameter.name
    words = [str(item.value) for item in items] or names(what, context.params)
    there = context.params.get("jobs") or ()
    return Completion(tuple((word, "") for word in words if word not in there)).starting_with(begin)


def _options(options: Iterable[Any], before: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the long names of the options that may still be given, with their descriptions."""
    for option in options:
        if not option.hidden and (option.multiple or not {*option.opts} & {*before}):
            yield max(option.opts, key=len), (option.help or "").split(". ")[0].rstrip(".")


if __name__ == "__main__":
    main()
