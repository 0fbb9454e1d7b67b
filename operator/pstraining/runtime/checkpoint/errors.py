"""Errors of checkpoints, and of what a save does once its checkpoint is complete."""

from collections.abc import Iterator
from contextlib import contextmanager

from pstraining.runtime.checkpoint.files import PASSING
from pstraining.runtime.errors import FinalError
from pstraining.runtime.telemetry.events import event


class CorruptCheckpointError(Exception):
    """A checkpoint that cannot be read as a whole."""


class NotSavedError(OSError):
    """The last state could not be saved."""


class UnusableCheckpointsError(FinalError, RuntimeError):
    """Training can continue from no checkpoint, and must not start from the beginning, because it would delete them."""


class UnreadableCheckpointsError(UnusableCheckpointsError):
    """There are checkpoints, and each of them is damaged."""


def none_readable(location: str, step: int, error: CorruptCheckpointError) -> Exception:
    """Return the error to raise if no checkpoint can be read.

    Args:
        location: the folder or the prefix.
        step: the step of the newest checkpoint.
        error: why it cannot be read.
    """
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in PASSING:
        return cause  # the volume may answer again
    return UnreadableCheckpointsError(
        f"no checkpoint in {location} can be read, and the first save from the beginning would delete them. The "
        f"newest, of step {step}: {error}. Repair the storage, or move the checkpoints to another place to restart"
    )


@contextmanager
def reporting_leftovers(step: int) -> Iterator[None]:
    """Report an OSError of a block that deletes what a complete checkpoint replaces: the checkpoint is saved.

    Args:
        step: the step of the complete checkpoint.
    """
    try:
        yield
    except OSError as error:
        event("not_deleted", step=step, reason=str(error), help="the next save tries again")
