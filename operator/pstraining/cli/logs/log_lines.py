"""Which lines of logs are wanted, and how they are written: each with its task in front."""

import sys
from dataclasses import dataclass
from typing import Final

import typer

from pstraining.cli.tasks import TaskRole

COLOURS: Final = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")


@dataclass(frozen=True)
class LogSelection:
    """Which logs are wanted, and how much of them."""

    role: TaskRole | None = None
    index: int | None = None
    previous: bool = False
    tail: int | None = None
    """Lines of each log at most, its last ones."""
    since: float | None = None
    """Seconds that a line is old at most."""

    def query(self, container: str) -> dict[str, str]:
        """The parameters of the API's `log`."""
        found = {"container": container}
        if self.previous:
            found["previous"] = "true"
        if self.tail is not None:
            found["tailLines"] = str(self.tail)
        if self.since:  # as kubectl, 0 takes all lines
            found["sinceSeconds"] = str(max(1, round(self.since)))
        return found


class LogWriter:
    """Where lines and remarks are written.

    Args:
        coloured: whether each task gets a colour.
    """

    def __init__(self, *, coloured: bool) -> None:
        self._coloured = coloured
        self._prefixes: dict[str, str] = {}

    def line(self, task: str, text: str) -> None:
        """A line of a task's log."""
        prefix = self._prefixes.get(task)
        if prefix is None:
            prefix = f"{task}: "
            if self._coloured:
                prefix = typer.style(prefix, fg=COLOURS[len(self._prefixes) % len(COLOURS)])
            self._prefixes[task] = prefix
        sys.stdout.write(f"{prefix}{text}\n")

    def flush(self) -> None:
        """Show what was written."""
        sys.stdout.flush()

    def remark(self, text: str) -> None:
        """Something that is in no log."""
        self.flush()
        typer.echo(text, err=True)
