"""The choice of a storage by the path of the settings."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pstraining.runtime.checkpoint.checksums import FindDamaged, find_damaged
from pstraining.runtime.checkpoint.fencing import Writer
from pstraining.runtime.checkpoint.ports.checkpoint_storage import CheckpointStorage
from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.config.settings import SettingsError, is_object_store

if TYPE_CHECKING:
    from pstraining.runtime.checkpoint.objects.bucket import Bucket


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
        damaged: reads the files that the servers wrote, and returns the damaged ones.

    Raises:
        SettingsError: the library for object stores is not installed, or does not accept the URI or the environment.
    """
    if not is_object_store(path):
        return Checkpoints(Path(path), keep=keep, writer=writer, damaged=damaged, links=full_every > 1)
    bucket = bucket_at(path)
    from pstraining.runtime.checkpoint.objects.storage import BucketCheckpoints

    return BucketCheckpoints(bucket, keep=keep, writer=writer, damaged=damaged, links=full_every > 1)


def bucket_at(path: str) -> "Bucket":
    """Return the prefix of an object store by its URI.

    Raises:
        SettingsError: the library for object stores is not installed, does not accept the URI or the environment, or
            would ignore a part of the URI.
    """
    bucket = path.partition("://")[2].partition("/")[0]
    if "?" in path or "#" in path or "@" in bucket:  # the path is not in the message, as it may have a secret
        raise SettingsError(
            "checkpoint.path: a URI has a bucket and a prefix, and what follows ? or #, or precedes @, is not used; "
            "leave it out"
        )
    try:
        from pstraining.runtime.checkpoint.objects.bucket import Bucket  # only here: most jobs have a volume
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"checkpoint.path: {path} needs the package {error.name}: install obstore in the image, or use a volume"
        ) from None
    try:
        return Bucket.at(path)
    except OSError as error:
        raise SettingsError(f"checkpoint.path: {path} cannot be used ({error.strerror})") from None


def local_files(path: str | None, names: Iterable[str], folder: Path) -> list[Path]:
    """Return the files of these names beside the checkpoints that exist, as local paths.

    Args:
        path: the folder or the URI of the checkpoints; None: there are no files.
        names: the names of the files.
        folder: a folder for the files of an object store, which are copied to it.

    Raises:
        OSError: the object store does not answer at present, or the folder is full.
    """
    if not path:
        return []
    if not is_object_store(path):
        return [file for name in names if (file := Path(path) / name).exists()]
    bucket, found = bucket_at(path), list[Path]()
    for name in names:
        with suppress(FileNotFoundError):
            bucket.fetch(name, folder / name)
            found.append(folder / name)
    return found
