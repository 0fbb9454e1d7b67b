"""Selection of log lines, and their output, each prefixed with its task."""

import sys
from dataclasses import dataclass
from typing import Final

import typer

from pstraining.cli.tasks import TaskRole

COLOURS: Final = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")


@dataclass(frozen=True)
class LogSelection:
    """The selected tasks, and the lines of their logs."""

    role: TaskRole | None = None
    index: int | None = None
    previous: bool = False
    tail: int | None = None
    """Maximum number of lines from the end of each log; None for all."""
    since: float | None = None
    """Maximum age of lines in seconds; None or 0 for all."""

    def query(self, container: str) -> dict[str, str]:
        """Return the parameters of the API's `log` subresource."""
        found = {"container": container}
        if self.previous:
            found["previous"] = "true"
        if self.tail is not None:
            found["tailLines"] = str(self.tail)
        if self.since:  # as in kubectl, 0 selects all lines
            found["sinceSeconds"] = str(max(1, round(self.since)))
        return found


class LogWriter:
    """Writes lines to standard output and remarks to standard error.

    Args:
        coloured: whether to colour each task's prefix.
    """

    def __init__(self, *, coloured: bool) -> None:
        self._coloured = coloured
        self._prefixes: dict[str, str] = {}

    def line(self, task: str, text: str) -> None:
        """Write a line of a task's log."""
        prefix = self._prefixes.get(task)
        if prefix is None:
            prefix = f"{task}: "
            if self._coloured:
                prefix = typer.style(prefix, fg=COLOURS[len(self._prefixes) % len(COLOURS)])
            self._prefixes[task] = prefix
        if sys.stdout is not None:  # it was not closed, as by >&-
            sys.stdout.write(f"{prefix}{text}\n")

    def flush(self) -> None:
        """Flush the written lines."""
        if sys.stdout is not None:
            sys.stdout.flush()

    def remark(self, text: str) -> None:
        """Write a remark after the lines that precede it."""
        self.flush()
        typer.echo(text, err=True)
