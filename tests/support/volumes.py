"""Small disks, for tests of a full disk."""

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
    """Fill the disk up to `leave` bytes inside the block; the file that fills it may be deleted earlier."""
    ballast = folder / "ballast"
    space = os.statvfs(folder)
    size = max(0, space.f_bavail * space.f_frsize - leave)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    try:
        yield ballast
    finally:
        with suppress(FileNotFoundError):
            ballast.unlink()
