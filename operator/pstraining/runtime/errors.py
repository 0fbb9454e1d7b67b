"""Errors that another run cannot mend, and the exit code of a process that ends by one."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from pstraining.api import contract

MESSAGE_BYTES: Final = 4096
"""Kubernetes keeps so much of a container's message."""


class FinalError(Exception):
    """The program or its settings are wrong: another run would fail as well. The message names what to change."""


def install_exit_code() -> None:
    """Let a process that ends by a `FinalError` exit with `contract.EXIT_BAD_SETTINGS`, and say why.

    A hook rather than SystemExit: in a notebook or a test the error can be caught, as any other.
    """
    former = sys.excepthook
    if getattr(former, "__module__", "") == __name__:
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        former(kind, error, trace)
        if (final := final_error(error)) is not None:
            _explain(" ".join(str(final).split()))
            raise SystemExit(contract.EXIT_BAD_SETTINGS)

    sys.excepthook = hook


def final_error(error: BaseException | None) -> FinalError | None:
    """Return the `FinalError` that an error is, or that led to it: tracing a function wraps what it raises."""
    while error is not None and not isinstance(error, FinalError):
        error = error.__cause__ or error.__context__
    return error


def _explain(sentence: str) -> None:
    """Print the reason as the last line of the log, from which Kubernetes and `status` take it; see also the file."""
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()
    if os.environ.get(contract.ENV_POD_NAME):  # else the file, if there is one, is another program's
        with suppress(OSError):
            Path(contract.TERMINATION_MESSAGE_FILE).write_bytes(sentence.encode()[:MESSAGE_BYTES])
