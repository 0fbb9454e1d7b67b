"""File-system operations that survive a crash, also on volumes without atomic exchange. Knows no checkpoints."""

import ctypes
import errno
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a full disk or quota."""
PASSING: Final = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EREMOTEIO, errno.ENOTCONN),
        *(errno.ECONNRESET, errno.ECONNREFUSED, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH),
    }
)
"""Errors of a volume whose server does not answer. A disk that is damaged for good has the first of them, too."""
NO_DAMAGE: Final = PASSING | {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors at which a file may be whole: of a volume, or of this process, such as a user without the right to read it."""
LINK: Final = "link a file"
"""The operation that only incremental saves need."""
_NO_EXCHANGE: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_renameat2: Final = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
"""Linux's system call; None if the C library lacks it."""


def has_become_read_only(path: Path) -> bool:
    """Return whether the file system at a path was mounted for writing, and has become read-only.

    The kernel does that to a file system after errors of its disk. The mount keeps its own option.
    """
    found, best = False, -1
    inside = [str(path.resolve()), *map(str, path.resolve().parents)]
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            _, _, _, _, place, options, *others = line.split()
            place = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), place)
            if place in inside and len(place) >= best:  # a later mount covers an earlier one
                best = len(place)
                found = "rw" in options.split(",") and "ro" in others[-1].split(",")
    return found


def sync_folder(path: Path) -> None:
    """Force a folder's entries to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder and its parents, and force their entries to disk.

    Raises:
        OSError: a folder could not be created, or `path` is not a folder.
    """
    for folder in reversed([path, *path.parents]):
        if not folder.exists():
            folder.mkdir(exist_ok=True)
            with suppress(PermissionError):  # a parent may be writable and not readable, which fsync needs
                sync_folder(folder.parent)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def write_durably(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Create a file, let `write` fill it, and force it to disk."""
    with path.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def exchange(one: Path, other: Path) -> bool:
    """Swap two names atomically; return False if the volume or the C library does not support it.

    Raises:
        OSError: the swap failed for another reason.
    """
    if _renameat2 is None:
        return False
    if _renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    error = ctypes.get_errno()
    if error in _NO_EXCHANGE:
        return False
    raise OSError(error, os.strerror(error), str(one), None, str(other))


def replace_folder(new: Path, final: Path, *, aside: Path) -> None:
    """Rename a folder to a name that may be taken. The former folder of that name is left at `new` or `aside`.

    After a crash or an error, the former folder is at `final` or, if that name is free, at `aside`.

    Raises:
        OSError: a folder could not be renamed.
    """
    if not os.path.lexists(final):
        os.rename(new, final)
    elif not exchange(new, final):
        os.rename(final, aside)
        os.rename(new, final)


def remove(path: Path) -> None:
    """Remove the file or folder with this name, and ignore errors: NFS keeps open files for a while."""
    if os.path.isdir(path) and not os.path.islink(path):  # Path's methods raise errors of a volume
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def rehearse(trial: Path, *, links: bool = False) -> str | None:
    """Try each operation of a save once, below `trial`; with `links` that of an incremental save, too.

    Returns:
        The operation that the volume does not support, with the error; None if it supports all.

    Raises:
        OSError: the folder cannot be written to, is full, or its volume does not answer at present.
    """
    new, final, aside = trial / "new", trial / "final", trial / "aside"
    for folder in (trial, new, final):
        folder.mkdir()
        write_durably(folder / "file", lambda file: file.write(b"trial"))
        sync_folder(folder)
    what = LINK
    try:
        if links:
            os.link(final / "file", final / "link")
        what = "rename a folder"
        os.rename(final, trial / "renamed")
        os.rename(trial / "renamed", final)
        what = "replace a folder"
        replace_folder(new, final, aside=aside)
        what = "replace a file"
        (trial / "file").replace(final / "file")
        sync_folder(trial.parent)
        what = "delete a folder"
        shutil.rmtree(trial)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in FULL | PASSING:
            raise
        return f"{what} ({error.strerror or error})"
    return None
