"""Control groups: one tree for each node's pods, one for our own daemons.

Version 1 (any set of controllers, with or without the empty version 2 tree beside them) and
version 2 work. Every process of a cluster lives in one of its groups, so that ``down`` can end all
of them exactly, even when the records of their ids are lost.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import ClusterError

CAP_SYS_RESOURCE = 24
KILL_DEADLINE_S = 15.0


@dataclass(frozen=True)
class Hierarchy:
    """A mounted cgroup tree; ``controllers`` is empty for version 2."""

    path: Path
    version: int
    controllers: frozenset[str]


def parse_mounts(mountinfo: str) -> list[Hierarchy]:
    """All cgroup hierarchies of a ``/proc/self/mountinfo`` text."""
    found = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 5 or len(tail) < 3 or tail[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if tail[0] == "cgroup2" else 1
        options = frozenset(tail[2].split(",")) - {"rw", "ro"} if version == 1 else frozenset()
        found.append(Hierarchy(path=Path(fields[4]), version=version, controllers=options))
    return found


def hierarchies() -> list[Hierarchy]:
    """The mounted cgroup hierarchies.

    Raises:
        ClusterError: there are none.
    """
    found = parse_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    if not found:
        raise ClusterError("no cgroup file system is mounted under /sys/fs/cgroup")
    return found


def tracking(trees: Iterable[Hierarchy]) -> Hierarchy:
    """The hierarchy in which our daemons are tracked: v2 where it is the only one, else v1 pids."""
    ordered = list(trees)
    for wanted in ("pids", "freezer", "name=systemd"):
        for tree in ordered:
            if wanted in tree.controllers:
                return tree
    return ordered[0]


def create(group: str) -> None:
    """Create a pod cgroup root in every hierarchy, with controllers and cpusets usable."""
    trees = hierarchies()
    unified = all(tree.version == 2 for tree in trees)
    for tree in trees:
        if tree.version == 2 and unified:
            _delegate(tree.path)
        folder = tree.path / group
        folder.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            ours, parent = folder / name, tree.path / name
            if tree.version == 1 and ours.exists() and not ours.read_text().strip():
                ours.write_text(parent.read_text())


def create_system(group: str) -> Path:
    """Create the group of our daemons and return its ``cgroup.procs`` file."""
    tree = tracking(hierarchies())
    folder = tree.path / group
    folder.mkdir(exist_ok=True)
    return folder / "cgroup.procs"


def _delegate(root: Path) -> None:
    """Version 2: let child groups use every controller.

    In a container the root we see may hold processes, which forbids that; they are moved into a
    leaf first, as kind and docker-in-docker do.
    """
    wanted = (root / "cgroup.controllers").read_text().split()
    control = root / "cgroup.subtree_control"
    missing = [name for name in wanted if name not in control.read_text().split()]
    if not missing:
        return
    text = " ".join(f"+{name}" for name in missing)
    try:
        control.write_text(text)
        return
    except OSError:
        leaf = root / "init"
        leaf.mkdir(exist_ok=True)
        for pid in (root / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (leaf / "cgroup.procs").write_text(pid)
    try:
        control.write_text(text)
    except OSError as error:
        raise ClusterError(f"cannot delegate cgroup controllers in {root}: {error}") from error


def members(group: str) -> set[int]:
    """All processes in a group and below it, in any hierarchy."""
    pids: set[int] = set()
    for tree in hierarchies():
        # Groups vanish while they are walked through, which os.walk takes as it comes.
        for folder, _, files in os.walk(tree.path / group):
            with contextlib.suppress(OSError):
                if "cgroup.procs" in files:
                    pids.update(int(pid) for pid in Path(folder, "cgroup.procs").read_text().split())
    return pids - {0, os.getpid()}


def kill(group: str) -> int:
    """SIGKILL everything in a group until it is empty; returns how many processes were hit.

    Raises:
        ClusterError: processes are left after the deadline.
    """
    hit: set[int] = set()
    end = time.monotonic() + KILL_DEADLINE_S
    while left := members(group):
        if time.monotonic() > end:
            raise ClusterError(f"cgroup {group}: processes {sorted(left)} do not die")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        hit |= left
        time.sleep(0.02)
    return len(hit)


def remove(group: str) -> None:
    """Remove a group and all groups below it from every hierarchy."""
    for tree in hierarchies():
        top = tree.path / group
        if not top.is_dir():
            continue
        folders = sorted((Path(p) for p, _, _ in os.walk(top)), key=lambda p: len(p.parts))
        for folder in reversed(folders):
            _rmdir(folder)


def _rmdir(folder: Path) -> None:
    """The kernel frees a group some moments after its last process."""
    for _ in range(100):
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)


def has_capability(number: int, status: str | None = None) -> bool:
    """Whether this process holds a capability effectively."""
    text = status if status is not None else Path("/proc/self/status").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def kill_one(pid: int) -> None:
    """SIGKILL one process that is known to be ours, and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + KILL_DEADLINE_S
    while Path(f"/proc/{pid}/stat").exists() and time.monotonic() < end:
        time.sleep(0.01)
