"""The choice of a storage by the path of the settings."""

from pathlib import Path

from pstraining.runtime.checkpoint.checksums import FindDamaged, find_damaged
from pstraining.runtime.checkpoint.fencing import Writer
from pstraining.runtime.checkpoint.ports.checkpoint_storage import CheckpointStorage
from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.config.settings import SettingsError, is_object_store


def storage_at(
    path: str,
    *,
    keep: int,
    full_every: int = 1,
    writer: Writer | None = None,
    damaged: FindDamaged = find_damaged,
) -> CheckpointStorage:
    """Return the storage of checkpoints in a folder, or below a URI of an object store.

    Args:
        path: the folder or the URI.
        keep: how many of the newest checkpoints are kept.
        full_every: number of saves of which one is full.
        writer: the identity of the chief that writes.
        damaged: reads the files that the servers wrote, and returns the damaged ones; on a volume only.

    Raises:
        SettingsError: incremental saves are requested in an object store. Or the library for object stores is not
            installed, or does not accept the URI or the environment.
    """
    if not is_object_store(path):
        return Checkpoints(Path(path), keep=keep, writer=writer, damaged=damaged, links=full_every > 1)
    if full_every > 1:
        raise SettingsError(
            f"checkpoint.fullEvery: every save to {path} is full, because an object store cannot link files; remove "
            "the field, or use a volume"
        )
    try:
        from pstraining.runtime.checkpoint.objects.bucket import Bucket  # only here: most jobs have a volume
        from pstraining.runtime.checkpoint.objects.storage import BucketCheckpoints
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"checkpoint.path: {path} needs the package {error.name}: install obstore in the image, or use a volume"
        ) from None
    try:
        bucket = Bucket.at(path)
    except OSError as error:
        raise SettingsError(f"checkpoint.path: {path} cannot be used ({error.strerror})") from None
    return BucketCheckpoints(bucket, keep=keep, writer=writer)
