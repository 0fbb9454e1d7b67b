"""How commands print what they have found: tables for people, JSON or YAML for programs."""

import json
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import typer
import yaml
from rich.console import Console, RenderableType


class Output(StrEnum):
    """What is printed."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


def show(found: Any, output: Output, picture: Callable[[], RenderableType]) -> None:
    """Print what was found.

    Args:
        found: as mappings, sequences and scalars, for programs.
        output: what is wanted.
        picture: the same for people: coloured in a terminal; plain, and as wide as it is, where it is piped.
    """
    match output:
        case Output.JSON:
            typer.echo(json.dumps(found, indent=2))
        case Output.YAML:
            typer.echo(yaml.safe_dump(found, sort_keys=False, allow_unicode=True), nl=False)
        case Output.TEXT:
            console = Console(highlight=False)
            if not console.is_terminal:
                console = Console(highlight=False, width=WIDE)
            console.print(picture())


WIDE = 500
"""Columns where nobody looks at a terminal: nothing is broken into lines."""
