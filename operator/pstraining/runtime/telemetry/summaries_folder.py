"""Where TensorBoard's event files are. Imports no TensorFlow."""

from pathlib import Path

from pstraining.runtime.telemetry.events import event


def folder_of(given: str | Path | bool | None, checkpoints: str | None) -> Path | None:
    """Return the folder for event files; None for none, which is reported if an object store is the reason.

    Args:
        given: the program's folder; False: none; None: beside the checkpoints.
        checkpoints: the folder or URI of the checkpoints.
    """
    if isinstance(given, str | Path):
        return Path(given)
    if not checkpoints or given is False:
        return None
    if "://" in checkpoints:
        event("no_summaries", reason="not in an object store: give Trainer(tensorboard=...) a folder, or False")
        return None
    return Path(checkpoints) / "tensorboard"
