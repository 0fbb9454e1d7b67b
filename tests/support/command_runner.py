"""Commands of the CLI in this process."""

from collections.abc import Sequence
from typing import Any
from unittest import mock

import typer
from typer import testing

from pstraining.cli.main import program


class CliRunner:
    """Typer's runner with the command line that the process has built: building it takes longer than most commands."""

    def invoke(self, app: typer.Typer, args: str | Sequence[str] | None = None, *given: Any, **more: Any) -> Any:
        """Run a command as Typer's runner does."""
        with mock.patch.object(testing, "_get_command", return_value=program()):
            return testing.CliRunner().invoke(app, args, *given, **more)
