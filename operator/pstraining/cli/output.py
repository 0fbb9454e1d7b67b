"""Output of the commands: tables for people, JSON or YAML for programs."""

import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Any, Final, TextIO

import typer
import yaml
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table

from pstraining.api import names
from pstraining.api.text import printable_but_coloured
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.reading.scalars import PLAIN, scalar


class Output(StrEnum):
    """Output format, the value of --output."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


API_VERSION: Final = f"cli.{names.GROUP}/v1alpha1"
"""apiVersion of printed objects. It changes when a field is removed or changes its meaning, not with new fields."""


class PrintedKind(StrEnum):
    """Kinds of the objects that commands print for programs."""

    VALIDATION = "ValidationReport"
    CONVERSION = "ConversionReport"
    PLAN = "JobPlan"
    SUMMARY = "JobSummary"
    STATUS = "JobStatus"
    RATES = "JobRates"
    INSTALLATION = "InstallationReport"
    DIAGNOSIS = "JobDiagnosis"
    REPORT = "JobReport"
    VERSIONS = "Versions"


def for_programs(kind: PrintedKind, found: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    """Add apiVersion and kind. A sequence becomes a list of that kind, as in the Kubernetes API."""
    if isinstance(found, Mapping):
        return {"apiVersion": API_VERSION, "kind": str(kind), **found}
    return {"apiVersion": API_VERSION, "kind": f"{kind}List", "items": list(found)}


def show(
    kind: PrintedKind, found: Mapping[str, Any] | Sequence[Any], output: Output, picture: Callable[[], RenderableType]
) -> None:
    """Print a result in the output format.

    Args:
        kind: kind of the printed object.
        found: the result as mappings, sequences and scalars.
        output: the output format.
        picture: renders the result as text; coloured in a terminal, plain and without wrapping in a pipe.
    """
    match output:
        case Output.JSON:
            typer.echo(json.dumps(for_programs(kind, found), indent=2))
        case Output.YAML:
            typer.echo(yaml_text(for_programs(kind, found)), nl=False)
        case Output.TEXT:
            # Texts come from pods and other clients: [/x] and :ab: are not markup.
            # Not rich's is_terminal: FORCE_COLOR, as in CI, asks for colours and not for a terminal's width.
            width = None if is_terminal() else WIDE
            console = _Console(highlight=False, markup=False, emoji=False, width=width)
            console.print(picture(), crop=False)  # a terminal breaks the lines of an UncutTable


def is_terminal() -> bool:
    """Whether the standard output is a terminal; it may also be closed, as by `>&-`."""
    return sys.stdout is not None and sys.stdout.isatty()


def is_coloured() -> bool:
    """Whether the standard output is a terminal with colours. NO_COLOR and TERM=dumb ask for none, as of rich."""
    has_colours = os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
    return is_terminal() and has_colours and not os.environ.get("NO_COLOR")


class UncutTable(Table):
    """A table whose columns with `no_wrap` are never cut: a narrow terminal breaks its lines, as it does kubectl's."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, which is wider than the terminal if it must be."""
        free, least = options.update(max_width=WIDE), 2 * (len(self.columns) - 1)
        for column in self.columns:
            cells = (column.header, *(column.cells if column.no_wrap else ()))
            least += max(Measurement.get(console, free, cell).maximum for cell in cells)
        yield from super().__rich_console__(console, options.update(max_width=max(options.max_width, least)))


class _Console(Console):
    """A console that leaves the end of the output's reader to the command."""

    def on_broken_pipe(self) -> None:
        """Raise the error again, instead of ending the program with status 1."""
        raise BrokenPipeError


@contextmanager
def written() -> Iterator[None]:
    """Write all output at the end, so that an error in writing it is still handled."""
    try:
        yield
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()


@contextmanager
def until_unread() -> Iterator[None]:
    """Write all output at the end; if its reader has ended, drop the rest and end the command with UNREAD."""
    try:
        with written():
            yield
    except BrokenPipeError:
        drop_output()
        raise typer.Exit(ExitCode.UNREAD) from None


def drop_output() -> None:
    """Drop the rest of the output, which Python would write at its end, because nothing reads it any more."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except BrokenPipeError:
            with suppress(OSError):  # not a file, as in tests
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


_BREAKS = frozenset("\x85\u2028\u2029\ufeff")
_Base: Any = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper
WIDE = 500
"""Width, in columns, of output outside a terminal, so that no line is wrapped."""


def yaml_text(found: Any) -> str:
    """Return YAML in the order of the fields. YAML 1.1 and 1.2 parsers, kubectl's included, read the same values.

    libyaml writes the same text several times as fast; but it escapes emojis, and refuses halves of surrogate pairs.
    """
    with suppress(UnicodeEncodeError):
        text: str = yaml.dump(found, Dumper=_FastDumper, sort_keys=False, allow_unicode=True, width=WIDE)
        if "\\U" not in text:
            return text
    return yaml.dump(found, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDE)


class TerminalGuard:
    """A text stream that escapes terminal control codes, except for colours.

    Args:
        stream: the terminal's stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text with escaped control codes and return its number of characters."""
        self._stream.write(printable_but_coloured(text))
        return len(text)


def guard_terminals() -> None:
    """Guard stdout and stderr if they are terminals, because commands print text from pods and other clients.

    kubectl does the same since 1.26 (CVE-2021-25743).
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream.isatty() and not isinstance(stream, TerminalGuard):
            setattr(sys, name, TerminalGuard(stream))


def allow_all_characters() -> None:
    """Let stdout accept every character, because texts from pods may have more than the locale's encoding.

    Pipes and files get UTF-8, as from kubectl. In a terminal, characters that it lacks are escaped.
    """
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="backslashreplace")


class _Dumper(yaml.SafeDumper):
    """A dumper without aliases that writes multi-line strings as blocks and quotes ambiguous ones."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _FastDumper(_Base):  # type: ignore[misc]
    """The same with libyaml."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Other line breaks than \n are only safe as escapes: parsers normalise them.
    style = '"' if _BREAKS.intersection(text) else "|" if "\n" in text else "'" if _is_ambiguous(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


def _is_ambiguous(text: str) -> bool:
    """Return whether kubectl's YAML library reads the unquoted text, such as 1e-3, 0o7 or y, as a non-string."""
    try:
        return not isinstance(scalar(PLAIN, text), str)
    except ValueError:
        return True


_Dumper.add_representer(str, _text)
_FastDumper.add_representer(str, _text)
