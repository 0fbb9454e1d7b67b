"""The base image: Debian's Python under the name that Dockerfiles expect.

``FROM python:3.11-slim`` must build without access to a registry. Debian bookworm has Python 3.11;
the parts of the public image that Debian lacks (``python``, an unmanaged pip) are added.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localcluster.controlplane import is_mounted
from localcluster.progress import Step
from localcluster.shell import run, run_logged

BASE_IMAGE = "docker.io/library/python:3.11-slim"
SUITE = "bookworm"
PACKAGES = ("python3", "python3-venv", "python3-pip", "ca-certificates")
# Folders that no program in a container needs.
UNUSED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
)
REVISION = "2"


def base_key() -> str:
    """Return a hash of the base's inputs; another hash means another build."""
    mirror = os.environ.get("PSTRAINING_DEBIAN_MIRROR", "")
    text = repr((REVISION, SUITE, PACKAGES, UNUSED, mirror))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def command(root: Path) -> list[str]:
    """Return the debootstrap command, with its default mirror unless the environment names another one."""
    mirror = os.environ.get("PSTRAINING_DEBIAN_MIRROR", "")
    args = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root)]
    return [*args, mirror] if mirror else args


@contextmanager
def make_root(root: Path, log: Path, step: Step) -> Iterator[None]:
    """Provide a root file system at ``root`` while the block runs.

    It is on a tmpfs, because dpkg syncs every file to its disk.
    """
    if is_mounted(root):
        run(["umount", "-l", str(root)])
    root.mkdir(parents=True, exist_ok=True)
    run(["mount", "-t", "tmpfs", "-o", "size=2g,mode=755,dev,suid", "tmpfs", str(root)])
    try:

        def on_line(line: str) -> None:
            step.detail = line.strip().removeprefix("I: ")[:50]

        run_logged(command(root), log, what="debootstrap", on_line=on_line)
        finish(root)
        yield
    finally:
        run(["umount", "-l", str(root)], check=False)
        root.rmdir()


def finish(root: Path) -> None:
    """Adapt the root file system to the public image, and make it smaller."""
    (root / "usr/bin/python").symlink_to("python3")
    for marker in (root / "usr/lib").glob("python3*/EXTERNALLY-MANAGED"):
        marker.unlink()
    for folder in UNUSED:
        shutil.rmtree(root / folder, ignore_errors=True)
        (root / folder).mkdir(parents=True)
    for name in ("hostname", "resolv.conf"):
        (root / "etc" / name).write_text("", encoding="utf-8")
    # The mount point of the build's pip configuration: created here, or each build would add it to an image.
    (root / "etc/pip.conf").write_text("", encoding="utf-8")
