"""Faults for end-to-end tests: kill a container, kill or suspend a process, pull a node's cable.

Cutting and restoring a cable are idempotent. Each fault fails with a message that lists the
containers, processes or nodes found. Faults are commands, and functions for tests.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster import network, procs
from localcluster.api import ApiClient
from localcluster.cgroups import hierarchies
from localcluster.errors import ClusterError
from localcluster.layout import ClusterPlan, Layout, NodePlan, read_layout
from localcluster.lifecycle import require_plan

SHIM_TASKS = "io.containerd.runtime.v2.task/k8s.io"


@dataclass(frozen=True)
class Target:
    """A running container, seen from the host."""

    pod: str
    container: str
    node: str
    pid: int


def kill_container(pod: str, container: str | None = None, layout: Layout | None = None) -> Target:
    """SIGKILL a container's first process, and return the container.

    Args:
        pod: ``namespace/name``, or a name in the default namespace.
        container: the container's name; required if the pod has several.

    Raises:
        ClusterError: the pod or the container does not exist, or does not run.
    """
    target = find_container(pod, container, layout or read_layout(os.environ))
    _kill(target.pid)
    return target


def kill_process(pod: str, pattern: str, container: str | None = None, layout: Layout | None = None) -> list[int]:
    """SIGKILL matching processes in a pod's container, except its first one, and return their ids.

    Args:
        pattern: a regular expression, searched in the command line joined by blanks.

    Raises:
        ClusterError: see `find_processes`.
    """
    hits = find_processes(pod, pattern, container, layout)
    for pid in hits:
        _kill(pid)
    return hits


@contextlib.contextmanager
def stopped(pod: str, pattern: str) -> Iterator[None]:
    """Suspend matching processes in the block (SIGSTOP); the kernel still accepts connections for them.

    Raises:
        ClusterError: see `find_processes`.
    """
    hits = find_processes(pod, pattern)
    try:
        for pid in hits:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in hits:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def without_api() -> Iterator[None]:
    """Suspend the API server in the block (SIGSTOP): connections are accepted, and requests not answered.

    Raises:
        ClusterError: the API server does not run.
    """
    name = "kube-apiserver"
    found = {record.name: record for record in procs.read_records(read_layout(os.environ).records)}
    if name not in found or not procs.is_alive(found[name]):
        raise ClusterError(f"no {name} of this cluster runs; there are: {', '.join(sorted(found)) or 'no daemons'}")
    os.kill(found[name].pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(found[name].pid, signal.SIGCONT)


def find_processes(pod: str, pattern: str, container: str | None = None, layout: Layout | None = None) -> list[int]:
    """Return the ids of processes in a pod's container with a matching command line, except its first one.

    Raises:
        ClusterError: the pod or the container does not exist, or no process matches. The message lists the container's
            processes.
    """
    target = find_container(pod, container, layout or read_layout(os.environ))
    running = {pid: command_line(pid) for pid in container_processes(target.pid)}
    hits = [pid for pid, line in running.items() if pid != target.pid and re.search(pattern, line)]
    if not hits:
        lines = "\n".join(f"  {pid} {line}" for pid, line in sorted(running.items()))
        raise ClusterError(f"no process of {target.pod}/{target.container} matches {pattern!r}:\n{lines}")
    return hits


def cut(node: str, layout: Layout | None = None) -> bool:
    """Pull a node's network cable; return False if it was pulled already."""
    plan, found = _node(node, layout)
    return network.set_port(plan, found, up=False)


def restore(node: str, layout: Layout | None = None) -> bool:
    """Plug a node's network cable in; return False if it was plugged in already."""
    plan, found = _node(node, layout)
    return network.set_port(plan, found, up=True)


def find_container(pod: str, container: str | None, layout: Layout) -> Target:
    """Return a pod's running container with its process on the host.

    Raises:
        ClusterError: the pod or the container does not exist, or does not run.
    """
    plan = require_plan(layout)
    namespace, _, name = pod.rpartition("/")
    namespace = namespace or "default"
    api = ApiClient(plan.api_address, layout.pki)
    body = api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    if body is None:
        raise ClusterError(f"no pod {namespace}/{name}")
    status = choose_container(body, container)
    node = str(body["spec"]["nodeName"])
    container_id = str(status["containerID"]).partition("://")[2]
    bundle = layout.node(node) / "containerd" / SHIM_TASKS / container_id
    try:
        pid = int((bundle / "init.pid").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ClusterError(f"{namespace}/{name}: container {status['name']} has no process on {node}") from error
    return Target(f"{namespace}/{name}", str(status["name"]), node, pid)


def choose_container(pod: dict[str, Any], container: str | None) -> dict[str, Any]:
    """Return the status of a pod's container of this name, or of its only container.

    Raises:
        ClusterError: the name is missing or unknown, or the container does not run.
    """
    status = pod.get("status", {})
    found = [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]
    names = ", ".join(entry["name"] for entry in found) or "none yet"
    name = pod["metadata"]["name"]
    if container is None:
        found = status.get("containerStatuses", [])
        if len(found) > 1:
            raise ClusterError(f"{name} has several containers, name one: {names}")
    else:
        found = [entry for entry in found if entry["name"] == container]
    if not found:
        raise ClusterError(f"{name} has no such container; there are: {names}")
    if "running" not in found[0].get("state", {}):
        raise ClusterError(f"container {found[0]['name']} of {name} does not run: {found[0].get('state')}")
    return dict(found[0])


def container_processes(pid: int) -> list[int]:
    """Return the ids of all processes in the cgroup of a process, and below it.

    Raises:
        ClusterError: the cgroup is in no mounted hierarchy.
    """
    for line in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        for mount in _mounts(controllers):
            folder = mount / path.lstrip("/")
            if path != "/" and folder.is_dir():
                found: set[int] = set()
                for file in folder.rglob("cgroup.procs"):
                    with contextlib.suppress(OSError):
                        found.update(int(member) for member in file.read_text().split())
                return sorted(found)
    raise ClusterError(f"process {pid} is in no cgroup that can be found")


def command_line(pid: int) -> str:
    """Return a process's command line, joined by blanks; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _mounts(controllers: str) -> list[Path]:

    wanted = set(controllers.split(",")) - {""}
    return [
        tree.path for tree in hierarchies() if set(tree.controllers) >= wanted and bool(wanted) == (tree.version == 1)
    ]


def _kill(pid: int) -> None:
    """SIGKILL a process, and wait until the kernel has released its memory."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 5
    while Path(f"/proc/{pid}/exe").is_symlink() and time.monotonic() < end:
        try:
            os.readlink(f"/proc/{pid}/exe")
        except OSError:
            return
        time.sleep(0.002)


def _node(name: str, layout: Layout | None) -> tuple[ClusterPlan, NodePlan]:
    plan = require_plan(layout or read_layout(os.environ))
    for node in plan.nodes:
        if node.name == name:
            return plan, node
    raise ClusterError(f"no node {name!r}; there are: {', '.join(node.name for node in plan.nodes)}")
