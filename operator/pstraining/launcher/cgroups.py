"""Reads the kernel's counters of a pod's container: memory, CPU time and OOM kills, in cgroups of version 1 or 2.

This is one of the launcher's files. In a pod it is beside launch.py, and it imports only Python 3.8's standard library.
"""

from __future__ import annotations

import os
from typing import NamedTuple

NO_LIMIT = 1 << 60
"""Bytes from which a limit of cgroup version 1 means no limit: the kernel's largest number, rounded to pages."""


class Reading(NamedTuple):
    """A container's resource usage."""

    memory: int
    """The working set in bytes, as the kubelet and `kubectl top` define it: without file cache that is not in use."""
    limit: int | None
    """The memory limit in bytes; None without one."""
    cpu_seconds: float | None
    """CPU time so far; None if it is not known."""
    oom_kills: int
    """Number of the container's processes that the kernel has killed for lack of memory."""


class Cgroup:
    """The cgroup of this process.

    Args:
        root: the folder where cgroups are mounted.
        own: the file with the paths of this process's cgroups.
    """

    def __init__(self, root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> None:
        self._root, self._own = root, own

    def read(self) -> Reading | None:
        """Return the container's resource usage; None if the kernel does not report it."""
        paths = self._paths()
        try:
            if (folder := self._folder("", paths.get("", "/"), "memory.current")) is not None:
                return _version_2(folder)
            if (folder := self._folder("memory", paths.get("memory", "/"), "memory.usage_in_bytes")) is not None:
                return _version_1(folder, self._folder("cpuacct", paths.get("cpuacct", "/"), "cpuacct.usage"))
        except (OSError, ValueError, KeyError):
            pass
        return None

    def _paths(self) -> dict[str, str]:
        """Return the path of each controller's cgroup by the controller's name, which is empty for version 2."""
        found = {}
        try:
            with open(self._own, encoding="utf-8") as file:
                for line in file:
                    _, controllers, path = line.rstrip("\n").split(":", 2)
                    found.update(dict.fromkeys(controllers.split(","), path))
        except (OSError, ValueError):
            pass
        return found

    def _folder(self, controller: str, path: str, file: str) -> str | None:
        """Return the folder of a controller. A container usually sees its own cgroup as the root."""
        mounted = os.path.join(self._root, controller)
        for folder in (mounted + path, mounted):
            if os.path.exists(os.path.join(folder, file)):
                return folder
        return None


def _version_2(folder: str) -> Reading:
    used, limit = int(_text(folder, "memory.current")), _text(folder, "memory.max").strip()
    inactive = _fields(folder, "memory.stat")["inactive_file"]
    cpu = _fields(folder, "cpu.stat")["usage_usec"] / 1e6 if os.path.exists(os.path.join(folder, "cpu.stat")) else None
    kills = _fields(folder, "memory.events").get("oom_kill", 0)
    return Reading(max(0, used - inactive), None if limit == "max" else int(limit), cpu, kills)


def _version_1(folder: str, cpuacct: str | None) -> Reading:
    used, limit = int(_text(folder, "memory.usage_in_bytes")), int(_text(folder, "memory.limit_in_bytes"))
    inactive = _fields(folder, "memory.stat")["total_inactive_file"]
    cpu = None if cpuacct is None else int(_text(cpuacct, "cpuacct.usage")) / 1e9
    kills = _fields(folder, "memory.oom_control").get("oom_kill", 0)
    return Reading(max(0, used - inactive), None if limit >= NO_LIMIT else limit, cpu, kills)


def _text(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return file.read()


def _fields(folder: str, name: str) -> dict[str, int]:
    """Return the numbers by name from a file whose lines consist of a name and a number."""
    words = (line.split() for line in _text(folder, name).splitlines())
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2}
