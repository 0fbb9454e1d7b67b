"""Small disks, for tests of a full disk."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a small file system at `folder`; skips the test where no mount is allowed."""
    folder.mkdir(exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def filled(folder: Path, *, leave: int = 0) -> Iterator[Path]:
    """Fill the disk up to `leave` bytes inside the block; the file that fills it may be deleted earlier.

    It is filled in parts, because other processes may write meanwhile.
    """
    ballast, size = folder / "ballast", 0
    with ballast.open("wb") as file:
        while (blocks := _free_blocks(folder, leave)) > 0:
            part = -(-blocks // 2) * os.statvfs(folder).f_frsize
            try:
                os.posix_fallocate(file.fileno(), size, part)
                size += part
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    try:
        yield ballast
    finally:
        with suppress(FileNotFoundError):
            ballast.unlink()


def _free_blocks(folder: Path, leave: int) -> int:
    space = os.statvfs(folder)
    return space.f_bavail - leave // space.f_frsize
