"""Errors that would occur in every further run, and the exit code of a process that ends with one."""

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from pstraining.api import contract

MESSAGE_BYTES: Final = 4096
"""Maximum bytes of a container's message that Kubernetes keeps."""
_STYLES: Final = re.compile(r"\x1b\[[0-9;]*m")
"""Escapes of a terminal for bold text and colors, which Keras writes into messages."""


class FinalError(Exception):
    """The program or its settings are wrong: another run would fail as well. The message names what to change."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        install_exit_code()  # the program may have no Trainer yet, which its arguments precede


def install_exit_code() -> None:
    """Let a process that ends with a `FinalError` exit with `contract.EXIT_BAD_SETTINGS` and write the reason.

    A hook rather than SystemExit: a notebook or a test can catch the error as any other.
    """
    former = sys.excepthook
    if getattr(former, "__module__", "") == __name__:
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        former(kind, error, trace)
        if (final := final_error(error)) is not None:
            _explain(" ".join(_STYLES.sub("", str(final)).split()))
            raise SystemExit(contract.EXIT_BAD_SETTINGS)

    sys.excepthook = hook


def final_error(error: BaseException | None) -> FinalError | None:
    """Return the `FinalError` in an error's chain of causes: tracing a function wraps the errors that it raises."""
    while error is not None and not isinstance(error, FinalError):
        error = error.__cause__ or error.__context__
    return error


def _explain(sentence: str) -> None:
    """Print the reason as the log's last line, and write it to a pod's termination message, which `status` shows."""
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()
    if os.environ.get(contract.ENV_POD_NAME):  # outside a pod, the file may belong to another program
        with suppress(OSError):
            content = sentence.encode(errors="replace")[:MESSAGE_BYTES].decode(errors="ignore")  # whole characters
            Path(contract.TERMINATION_MESSAGE_FILE).write_text(content, encoding="utf-8")
