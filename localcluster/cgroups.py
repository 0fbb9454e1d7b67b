"""Control groups: one tree for each node's pods, and one for the cluster's daemons.

Both version 1 (with any set of controllers, and with or without an empty version 2 tree) and
version 2 are supported. Every process of a cluster is in one of its groups. ``down`` ends exactly
these processes, also without the records of their ids.
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
KILL_DEADLINE_S = 60.0
DELEGATIONS = 50
"""Maximum number of attempts to enable the controllers."""


@dataclass(frozen=True)
class Hierarchy:
    """A mounted cgroup tree; ``controllers`` is empty for version 2."""

    path: Path
    version: int
    controllers: frozenset[str]


def parse_mounts(mountinfo: str) -> list[Hierarchy]:
    """Return all cgroup hierarchies of a ``/proc/self/mountinfo`` text."""
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
    """Return the mounted cgroup hierarchies.

    Raises:
        ClusterError: no hierarchy is mounted.
    """
    found = parse_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    if not found:
        raise ClusterError("no cgroup file system is mounted under /sys/fs/cgroup")
    return found


def tracking(trees: Iterable[Hierarchy]) -> Hierarchy:
    """Return the hierarchy that tracks the daemons: version 1's pids, freezer or systemd, or else version 2."""
    ordered = list(trees)
    for wanted in ("pids", "freezer", "name=systemd"):
        for tree in ordered:
            if wanted in tree.controllers:
                return tree
    return ordered[0]


def create(group: str) -> None:
    """Create a root cgroup for pods in every hierarchy, with usable controllers and cpusets."""
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
    """Create the group of the cluster's daemons, and return its ``cgroup.procs`` file."""
    tree = tracking(hierarchies())
    folder = tree.path / group
    folder.mkdir(exist_ok=True)
    return folder / "cgroup.procs"


def _delegate(root: Path) -> None:
    """Enable every controller for child groups, in version 2.

    In a container the visible root may have processes, which forbids this. They are moved to a
    leaf first, as in kind and docker-in-docker, again if one of them has forked meanwhile.
    """
    wanted = (root / "cgroup.controllers").read_text().split()
    control = root / "cgroup.subtree_control"
    missing = [name for name in wanted if name not in control.read_text().split()]
    if not missing:
        return
    text = " ".join(f"+{name}" for name in missing)
    leaf = root / "init"
    for attempt in range(DELEGATIONS):
        try:
            control.write_text(text)
            return
        except OSError as error:
            if attempt == DELEGATIONS - 1:
                raise ClusterError(f"cannot delegate cgroup controllers in {root}: {error}") from error
        leaf.mkdir(exist_ok=True)
        for pid in (root / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (leaf / "cgroup.procs").write_text(pid)


def members(group: str) -> set[int]:
    """Return the ids of all processes in a group and below it, in any hierarchy, except this process's."""
    pids: set[int] = set()
    for tree in hierarchies():
        # Groups may be removed during the walk, which os.walk ignores.
        for folder, _, files in os.walk(tree.path / group):
            with contextlib.suppress(OSError):
                if "cgroup.procs" in files:
                    pids.update(int(pid) for pid in Path(folder, "cgroup.procs").read_text().split())
    return pids - {0, os.getpid()}


def kill(group: str) -> int:
    """SIGKILL all processes in a group until it is empty, and return their number.

    Raises:
        ClusterError: the group has processes after KILL_DEADLINE_S.
    """
    hit: set[int] = set()
    end = time.monotonic() + KILL_DEADLINE_S
    while left := members(group):
        if time.monotonic() > end:
            raise ClusterError(f"cgroup {group}: processes {sorted(left)} do not end after SIGKILL")
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
    """Remove a group; retry for 2 s, because the kernel releases a group after its last process only."""
    for _ in range(100):
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)


def has_capability(number: int, status: str | None = None) -> bool:
    """Return whether this process has an effective capability."""
    text = status if status is not None else Path("/proc/self/status").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def kill_one(pid: int) -> None:
    """SIGKILL a process of the cluster, and wait until it has ended, for at most KILL_DEADLINE_S."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + KILL_DEADLINE_S
    while Path(f"/proc/{pid}/stat").exists() and time.monotonic() < end:
        time.sleep(0.01)
