"""How commands print what they have found: tables for people, JSON or YAML for programs."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TextIO

import typer
import yaml
from rich.console import Console, RenderableType

from pstraining.api import names
from pstraining.api.text import printable_but_coloured
from pstraining.cli.reading.scalars import PLAIN, scalar


class Output(StrEnum):
    """What is printed."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


API_VERSION: Final = f"cli.{names.GROUP}/v1alpha1"
"""Of what commands print for programs. It changes with a field that means something else or goes, not with new ones."""


class PrintedKind(StrEnum):
    """What commands print for programs."""

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
    """What was found with its apiVersion and kind; of a sequence a list of that kind, as the API has them."""
    if isinstance(found, Mapping):
        return {"apiVersion": API_VERSION, "kind": str(kind), **found}
    return {"apiVersion": API_VERSION, "kind": f"{kind}List", "items": list(found)}


def show(
    kind: PrintedKind, found: Mapping[str, Any] | Sequence[Any], output: Output, picture: Callable[[], RenderableType]
) -> None:
    """Print what was found.

    Args:
        kind: what it is.
        found: as mappings, sequences and scalars, for programs.
        output: what is wanted.
        picture: the same for people: coloured in a terminal; plain, and as wide as it is, where it is piped.
    """
    match output:
        case Output.JSON:
            typer.echo(json.dumps(for_programs(kind, found), indent=2))
        case Output.YAML:
            typer.echo(yaml_text(for_programs(kind, found)), nl=False)
        case Output.TEXT:
            console = Console(highlight=False)
            if not console.is_terminal:
                console = Console(highlight=False, width=WIDE)
            console.print(picture())


WIDE = 500
"""Columns of output that is no terminal's: no line is broken."""


def yaml_text(found: Any) -> str:
    """YAML that every reader of Kubernetes' world takes as it is meant, in the order of its fields."""
    return yaml.dump(found, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDE)


class TerminalGuard:
    """A text stream that shows escape codes instead of passing them on to the terminal, except for colours.

    Args:
        stream: of the terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text, printable but coloured; return the number of its characters."""
        self._stream.write(printable_but_coloured(text))
        return len(text)


def guard_terminals() -> None:
    """Guard stdout and stderr where they are terminals: what pods and other clients wrote is shown there.

    kubectl does the same since 1.26 (CVE-2021-25743).
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream.isatty() and not isinstance(stream, TerminalGuard):
            setattr(sys, name, TerminalGuard(stream))


class _Dumper(yaml.SafeDumper):
    """Writes no aliases, scripts as blocks, and texts that others take for numbers or truth values in quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else "'" if _is_ambiguous(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


def _is_ambiguous(text: str) -> bool:
    """Whether a text without quotes, such as 1e-3, 0o7 or y, is a number or a truth value to kubectl's library."""
    try:
        return not isinstance(scalar(PLAIN, text), str)
    except ValueError:
        return True


_Dumper.add_representer(str, _text)
