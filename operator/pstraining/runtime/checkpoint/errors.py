"""Errors of checkpoints, and of what a save does once its checkpoint is complete."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pstraining.runtime.checkpoint.files import PASSING, has_become_read_only
from pstraining.runtime.config.settings import SettingsError
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


def not_writable(folder: Path, error: OSError) -> Exception:
    """Return the error to raise if a chief cannot write to its folder at the start.

    Args:
        folder: the folder of the checkpoints.
        error: what the file system has reported.
    """
    if error.errno == errno.EROFS and has_become_read_only(folder):
        return OSError(
            errno.EROFS,
            "the file system was mounted for writing and has become read-only, as after errors of its disk. Another "
            "pod may mount it again; check the volume and its node",
            str(folder),
        )
    volume = "a volume that is not read-only" if error.errno == errno.EROFS else "a volume"
    return SettingsError(
        f"checkpoint.path: {folder} cannot be written to ({error.strerror or error}): mount {volume} there, or give "
        "another path"
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
