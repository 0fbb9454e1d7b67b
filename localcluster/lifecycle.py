"""Start and removal of the cluster.

Both are idempotent, and repair. ``up`` keeps daemons that run as configured and replaces the
others. ``down`` removes the cgroups, mounts and namespaces that it finds, recorded or not.
"""

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster import cgroups, leftovers, network, procs
from localcluster.controlplane import NAMES, ControlPlane, mount_points, write
from localcluster.errors import ClusterError
from localcluster.layout import ClusterPlan, Layout, plan_cluster, plan_node
from localcluster.node import DAEMONS, Node, pod_log_links
from localcluster.packages import ensure_packages
from localcluster.progress import Progress
from localcluster.shell import run
from localcluster.tools import CLUSTER_TOOLS, Toolbox

LOCK_DEADLINE_S = 1800


@dataclass
class Cluster:
    """A running or starting cluster, for the other commands."""

    layout: Layout
    plan: ClusterPlan
    toolbox: Toolbox
    supervisor: procs.Supervisor
    control: ControlPlane
    nodes: list[Node]

    def kubectl(self, *args: str, check: bool = True) -> str:
        """Run a command of kubectl and return its output.

        Raises:
            ClusterError: the command failed, and `check` is true.
        """
        command = [str(self.toolbox.binary("kubectl")), f"--kubeconfig={self.layout.kubeconfig}"]
        return run([*command, *args], check=check)


def build_cluster(layout: Layout, plan: ClusterPlan, toolbox: Toolbox) -> Cluster:
    """Create the cluster's objects without starting a daemon."""
    supervisor = procs.Supervisor(layout, cgroups.create_system(plan.system_cgroup))
    control = ControlPlane(layout, plan, supervisor, toolbox.binary)
    nodes = [Node(layout, plan, node, supervisor, toolbox.binary) for node in plan.nodes]
    return Cluster(layout, plan, toolbox, supervisor, control, nodes)


def saved_plan(layout: Layout) -> ClusterPlan | None:
    """Return the plan of the cluster that was started since the machine's boot; None without one."""
    state = _read_state(layout)
    if state.get("boot") != procs.boot_id():
        return None
    return plan_cluster(layout.instance, int(state["nodes"]), ipv6=bool(state.get("ipv6")))


def _read_state(layout: Layout) -> dict[str, Any]:
    try:
        state = json.loads(layout.state_file.read_text(encoding="utf-8"))
        return dict(state) if isinstance(state.get("nodes"), int) else {}
    except (OSError, ValueError, AttributeError):
        return {}


def require_plan(layout: Layout) -> ClusterPlan:
    """Return the plan of the running cluster.

    Raises:
        ClusterError: no cluster was started.
    """
    plan = saved_plan(layout)
    if plan is None:
        raise ClusterError("no cluster here: run 'python3 -m localcluster up' first")
    return plan


@contextmanager
def locked(layout: Layout, progress: Progress) -> Iterator[None]:
    """Allow one ``up`` or ``down`` of an instance at a time; another one waits.

    Raises:
        ClusterError: the lock was not free within LOCK_DEADLINE_S.
    """
    layout.cache.mkdir(parents=True, exist_ok=True)
    with layout.lock.open("w") as stream:
        end = time.monotonic() + LOCK_DEADLINE_S
        logged = False
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise ClusterError(f"another up or down holds {layout.lock}") from None
                if not logged:
                    progress.say("waiting for another up or down to end")
                    logged = True
                time.sleep(0.2)
        yield


def require_root() -> None:
    """Check that this process runs as root.

    Raises:
        ClusterError: it does not.
    """
    if os.geteuid() != 0:
        raise ClusterError("root is needed for network namespaces, mounts and cgroups (try sudo -E)")


def up(layout: Layout, nodes: int | None, progress: Progress, *, ipv6: bool = False) -> Cluster:
    """Bring the cluster up or repair it; ``None`` keeps the present number of nodes, or starts 2.

    Raises:
        ClusterError: a daemon does not start, or the running cluster uses IPv4 and `ipv6` is set.
    """
    require_root()
    before = saved_plan(layout)
    if before and ipv6 and not before.ipv6:
        raise ClusterError("the running cluster uses IPv4: run 'python3 -m localcluster down' first")
    count = nodes or (len(before.nodes) if before else 2)
    plan = plan_cluster(layout.instance, count, ipv6=ipv6 or bool(before and before.ipv6))
    toolbox = Toolbox(layout, progress)
    with ThreadPoolExecutor(max_workers=1) as pool:
        packages: Future[None] = pool.submit(ensure_packages, layout, progress)
        toolbox.ensure(CLUSTER_TOOLS)
        packages.result()
    if before and len(before.nodes) > count:
        _shrink(layout, before, count, progress)
    if before is None and layout.run.exists():
        progress.say("removing the files of an unfinished start or an earlier boot")
        down(layout, progress)
    layout.run.mkdir(parents=True, exist_ok=True)
    write(layout.state_file, json.dumps({"nodes": count, "ipv6": plan.ipv6, "boot": procs.boot_id()}))
    with progress.step("network, certificates and configuration", announce=False):
        network.ensure_control(plan)
        for node in plan.nodes:
            network.ensure_node(plan, node)
        network.ensure_routes(plan)
        cluster = build_cluster(layout, plan, toolbox)
        cluster.control.write_files()
        for node_ in cluster.nodes:
            node_.write_files()
    _start(cluster, progress)
    return cluster


def _start(cluster: Cluster, progress: Progress) -> None:
    """Start all daemons in the order of their dependencies; runtimes start beside the API server."""
    control, nodes = cluster.control, cluster.nodes
    with ThreadPoolExecutor(max_workers=8) as pool:
        with progress.step("starting etcd, API server and container runtimes", announce=False):
            runtimes = [pool.submit(node.start_runtime) for node in nodes]
            control.start_store()
            control.start_api()
            control.wait_api()
            for runtime in runtimes:
                runtime.result()
        with progress.step("starting controllers, DNS and nodes", announce=False):
            control.start_controllers()
            control.start_dns()
            for job in [pool.submit(node.start_agents) for node in nodes]:
                job.result()
            waits = [pool.submit(node.wait_ready, control.api) for node in nodes]
            control.wait_settled()
            for wait in waits:
                wait.result()


def _shrink(layout: Layout, before: ClusterPlan, count: int, progress: Progress) -> None:
    """Remove the nodes beyond ``count``: their processes, folders and objects."""
    gone = before.nodes[count:]
    progress.say(f"removing {', '.join(node.name for node in gone)}")
    supervisor = procs.Supervisor(layout, Path(os.devnull))
    for node in gone:
        supervisor.stop([f"{node.name}-{program}" for program in reversed(DAEMONS)])
        _kill_shims(layout.node(node.name))
        cgroups.kill(node.cgroup)
        cgroups.remove(node.cgroup)
        unmount_below(layout.node(node.name))
        run(["ip", "netns", "delete", node.netns], check=False)
        _remove_node_folders(layout, node.name)
        control = ControlPlane(layout, before, supervisor, Path)
        with contextlib.suppress(ClusterError):
            control.api.delete(f"/api/v1/nodes/{node.name}")


def down(layout: Layout, progress: Progress, *, purge: bool = False) -> None:
    """Remove the cluster except for the cache; ``purge`` also removes the nodes' image stores.

    Raises:
        ClusterError: a process or a mount cannot be removed.
    """
    require_root()
    prefix = f"pst{layout.instance}"
    names = known_nodes(layout)
    records = procs.read_records(layout.records)
    with progress.step("stopping", announce=False):
        agents = [record for record in records if not record.name.endswith("containerd")]
        procs.stop(agents, grace_s=0.3)
        for name in names:
            cgroups.kill(f"{prefix}-{name}")
        # etcd and containerd exit after SIGTERM, which leaves the kept stores consistent.
        procs.stop([record for record in records if record.name.endswith("containerd")])
        cgroups.kill(f"{prefix}-system")
    with progress.step("removing mounts, namespaces and folders", announce=False):
        for name in names:
            _unlink_shim_sockets(layout.node(name))
        unmount_below(layout.run)
        network.remove_all(prefix)
        for name in names:
            cgroups.remove(f"{prefix}-{name}")
            _remove_node_folders(layout, name)
        cgroups.remove(f"{prefix}-system")
        remove_tree(layout.run)
        leftovers.remove(prefix)
        if purge:
            remove_tree(layout.disk)
    if layout.run.exists():
        raise ClusterError(f"could not remove all of {layout.run}")


def known_nodes(layout: Layout) -> list[str]:
    """Return the names of all nodes with a folder, a namespace or a cgroup."""
    names = {path.name for path in layout.run.glob("node-*")} | {path.name for path in layout.disk.glob("node-*")}
    prefix = f"pst{layout.instance}-"
    names |= {name.removeprefix(prefix) for name in network.namespaces() if name.startswith(f"{prefix}node-")}
    for tree in cgroups.hierarchies():
        names |= {path.name.removeprefix(prefix) for path in tree.path.glob(f"{prefix}node-*")}
    return sorted(names)


def unmount_below(folder: Path) -> None:
    """Unmount all mounts at or below a folder, the newest first."""
    inside = [point for point in mount_points() if point == str(folder) or point.startswith(f"{folder}/")]
    for start in range(0, len(inside), 100):
        chunk = list(reversed(inside))[start : start + 100]
        run(["umount", "-l", *chunk], check=False)


def remove_tree(folder: Path) -> None:
    """Delete a folder, but never the contents of a mount in it, which may be a user's data.

    Raises:
        ClusterError: a mount in the folder cannot be unmounted.
    """
    unmount_below(folder)
    left = [point for point in mount_points() if point.startswith(f"{folder}/") or point == str(folder)]
    if left:
        raise ClusterError(f"cannot unmount, so nothing in {folder} is deleted: {', '.join(left)}")
    shutil.rmtree(folder, ignore_errors=True)


def _remove_node_folders(layout: Layout, name: str) -> None:
    for link in pod_log_links(layout.node(name)):
        link.unlink(missing_ok=True)
    remove_tree(layout.kubelet_disk(name))
    remove_tree(layout.node(name))


def _shims(node: Path) -> list[Path]:
    return list((node / "containerd").glob("io.containerd.runtime.v2.task/*/*"))


def _unlink_shim_sockets(node: Path) -> None:
    """Remove the shims' sockets, which are in a fixed folder outside the cluster's; address files name them."""
    for bundle in _shims(node):
        with contextlib.suppress(OSError):
            address = (bundle / "address").read_text(encoding="utf-8").strip()
            Path(address.removeprefix("unix://")).unlink(missing_ok=True)


def _kill_shims(node: Path) -> None:
    """End the shims of one node while others continue (``down`` ends all through their cgroup)."""
    for bundle in _shims(node):
        with contextlib.suppress(OSError, ValueError):
            pid = int((bundle / "shim.pid").read_text(encoding="utf-8"))
            cgroups.kill_one(pid)
    _unlink_shim_sockets(node)


def component_names(plan: ClusterPlan) -> list[str]:
    """Return the names of all daemons' records."""
    nodes = [plan_node(plan.instance, node.index).name for node in plan.nodes]
    return [*NAMES, *(f"{name}-{program}" for name in nodes for program in DAEMONS)]
