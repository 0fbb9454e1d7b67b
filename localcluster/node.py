"""A node: a network namespace with its own containerd, kubelet and kube-proxy."""

import contextlib
import shutil
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from localcluster import cgroups, config, pauseimage
from localcluster.api import ApiClient
from localcluster.controlplane import Binary, is_mounted, write
from localcluster.errors import ClusterError
from localcluster.layout import ClusterPlan, Layout, NodePlan
from localcluster.packages import cni_folder
from localcluster.procs import Daemon, Supervisor
from localcluster.shell import have, log_hint, run, system_path, wait_for

CONTAINERD_DEADLINE_S = 90
READY_DEADLINE_S = 180
DAEMONS = ("containerd", "kubelet", "kube-proxy")


class Node:
    """Renders a node's files, and starts its daemons or restarts changed ones."""

    def __init__(
        self, layout: Layout, plan: ClusterPlan, node: NodePlan, supervisor: Supervisor, binary: Binary
    ) -> None:
        self.layout = layout
        self.plan = plan
        self.node = node
        self.supervisor = supervisor
        self.binary = binary
        self.run_folder = layout.node(node.name)
        # When this process started the kubelet; reports of an earlier kubelet are ignored.
        self.started = 0.0
        cni = cni_folder()
        if cni is None:
            raise ClusterError("no CNI plugins found")
        self.paths = config.NodePaths(
            run=self.run_folder,
            containerd_root=layout.containerd_root(node.name),
            containerd_socket=layout.containerd_socket(node.name),
            kubelet_root=self.run_folder / "kubelet",
            pki=layout.pki,
            cni_bin=cni,
        )

    def daemon_name(self, program: str) -> str:
        """Return the name of the record of this node's daemon."""
        return f"{self.node.name}-{program}"

    def ctr(self, *args: str, timeout: float = 300) -> str:
        """Run containerd's client against this node."""
        return run(["ctr", "-a", str(self.paths.containerd_socket), "-n", "k8s.io", *args], timeout=timeout)

    def write_files(self) -> None:
        """Write the configuration of containerd, CNI, kubelet and kube-proxy."""
        folder = self.run_folder
        self.paths.containerd_root.mkdir(parents=True, exist_ok=True)
        toml = config.containerd_toml(
            self.paths,
            snapshotter=choose_snapshotter(self.paths.containerd_root),
            restrict_oom=not cgroups.has_capability(cgroups.CAP_SYS_RESOURCE),
        )
        write(folder / "containerd.toml", toml)
        conflist = config.cni_conflist(self.plan, self.node, folder / "cni-state")
        write(folder / "cni" / "10-pods.conflist", conflist)
        write(folder / "kubelet.json", config.kubelet_config(self.plan, self.node, self.paths))
        proxy = config.kube_proxy_config(self.plan, self.node, self.layout.etc / "kube-proxy.kubeconfig")
        write(folder / "kube-proxy.json", proxy)
        write(folder / "resolv.conf", config.resolv_conf(self.plan))
        # Readable for all, because the kubelet copies the file into pods.
        (folder / "resolv.conf").chmod(0o644)

    def start_runtime(self) -> None:
        """Start containerd with the pause image, and without containers of an earlier run."""
        fresh = not (self.run_folder / "containerd").exists()
        self._ensure_containerd()
        if fresh and self._purge():
            # The CRI plugin read the containers at its start; a restart removes them from its memory.
            self.supervisor.stop([self.daemon_name("containerd")])
            self._ensure_containerd()
        if config.PAUSE_IMAGE not in self.ctr("images", "ls", "-q").split():
            archive = pauseimage.ensure_archive(self.layout, self.binary("pause"))
            self.ctr("images", "import", str(archive))

    def start_agents(self) -> None:
        """Start kubelet and kube-proxy."""
        cgroups.create(self.node.cgroup)
        self._mount_kubelet_root()
        own = self.layout.etc / f"{self.node.name}.kubeconfig"
        settings = self.run_folder / "kubelet.json"
        argv: tuple[str, ...] = (
            str(self.binary("kubelet")),
            f"--config={settings}",
            f"--kubeconfig={own}",
            f"--root-dir={self.paths.kubelet_root}",
            f"--cert-dir={self.run_folder}/kubelet-certs",
            f"--hostname-override={self.node.name}",
            f"--node-ip={self.node.address}",
            f"--node-labels=topology.kubernetes.io/zone={self.node.zone}",
        )
        before = time.time()
        if self._ensure("kubelet", argv, (settings, own)):
            self.started = before
        settings = self.run_folder / "kube-proxy.json"
        argv = (str(self.binary("kube-proxy")), f"--config={settings}")
        self._ensure("kube-proxy", argv, (settings, self.layout.etc / "kube-proxy.kubeconfig"))

    def wait_ready(self, api: ApiClient) -> None:
        """Wait until the node is Ready, then set its role's label.

        A killed kubelet may have reported Ready: the new kubelet must have renewed the Lease as well.
        """
        path = f"/api/v1/nodes/{self.node.name}"
        lease_path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{self.node.name}"

        def ready() -> dict[str, Any] | None:
            body = api.get(path)
            if body is None or not is_ready(body):
                return None
            lease = api.get(lease_path) if self.started else {}
            return body if lease is not None and renewed(lease) >= self.started else None

        body = wait_for(
            ready,
            what=f"{self.node.name} is not Ready",
            deadline_s=READY_DEADLINE_S,
            hint=self._hints,
            abort=self._died,
        )
        role = "node-role.kubernetes.io/worker"
        if role not in body["metadata"].get("labels", {}):
            api.patch(path, {"metadata": {"labels": {role: ""}}})

    def _ensure_containerd(self) -> None:
        self.run_folder.mkdir(parents=True, exist_ok=True)
        settings = self.run_folder / "containerd.toml"
        self._ensure("containerd", (find_program("containerd"), "--config", str(settings)), (settings,))
        name = self.daemon_name("containerd")

        def answers() -> bool:
            try:
                return bool(self.ctr("version", timeout=20))
            except ClusterError:  # it does not listen yet, or this machine is busy
                return False

        wait_for(
            answers,
            what=f"{name} does not answer",
            deadline_s=CONTAINERD_DEADLINE_S,
            hint=lambda: log_hint(self.supervisor.log(name)),
            abort=lambda: None if self.supervisor.alive(name) else "it died",
        )

    def _ensure(self, program: str, argv: tuple[str, ...], inputs: tuple[Path, ...]) -> bool:
        return self.supervisor.ensure(Daemon(self.daemon_name(program), argv, self.node.netns, inputs))

    def _purge(self) -> int:
        """Remove the containers of an earlier run from the kept store, without their images."""
        old = self.ctr("containers", "ls", "-q").split()
        if old:
            self.ctr("containers", "rm", *old)
        return len(old)

    def _mount_kubelet_root(self) -> None:
        """Bind the pods' folders from disk to a short path, because unix sockets are below it."""
        disk = self.layout.kubelet_disk(self.node.name)
        disk.mkdir(parents=True, exist_ok=True)
        self.paths.kubelet_root.mkdir(parents=True, exist_ok=True)
        if not is_mounted(self.paths.kubelet_root):
            run(["mount", "--bind", str(disk), str(self.paths.kubelet_root)])
            # The kubelet's mounts must propagate to the containers, but not to the same folder on the disk.
            run(["mount", "--make-private", str(self.paths.kubelet_root)])
            run(["mount", "--make-shared", str(self.paths.kubelet_root)])

    def _died(self) -> str | None:
        for program in DAEMONS:
            if not self.supervisor.alive(self.daemon_name(program)):
                return f"{program} died"
        return None

    def _hints(self) -> str:
        return "\n".join(log_hint(self.supervisor.log(self.daemon_name(program))) for program in DAEMONS)


def is_ready(node: dict[str, Any]) -> bool:
    """Return whether a Node object's Ready condition is True."""
    conditions = node.get("status", {}).get("conditions", [])
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


def renewed(lease: dict[str, Any]) -> float:
    """Return when a Lease was renewed last, in seconds since 1970; 0 if it never was."""
    text = str(lease.get("spec", {}).get("renewTime") or "")
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def find_program(name: str) -> str:
    """Return the absolute path of an installed program.

    Raises:
        ClusterError: the program is not installed.
    """
    found = shutil.which(name, path=system_path())
    if found is None or not have(name):
        raise ClusterError(f"{name} is not installed")
    return found


def choose_snapshotter(folder: Path) -> str:
    """Return overlayfs, or native if the folder is on an overlay itself (a cluster within a container)."""
    kind = run(["stat", "-f", "-c", "%T", str(folder)], check=False).strip()
    return "native" if kind in ("overlayfs", "overlay") else "overlayfs"


def pod_log_links(run_folder: Path) -> list[Path]:
    """Return the links that a kubelet has created in /var/log/containers for its pods' logs."""
    found = []
    with contextlib.suppress(OSError):
        for link in Path("/var/log/containers").iterdir():
            if link.is_symlink() and str(link.readlink()).startswith(f"{run_folder}/"):
                found.append(link)
    return found
