"""Errors of checkpoints, and of what a save does once its checkpoint is complete."""

from collections.abc import Iterator
from contextlib import contextmanager

from pstraining.runtime.telemetry.events import event


class CorruptCheckpointError(Exception):
    """A checkpoint that cannot be read as a whole."""


class NotSavedError(OSError):
    """The last state could not be saved."""


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
