"""The control plane: etcd, API server, controller manager, scheduler and DNS as daemons."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from localcluster import config, pki
from localcluster.api import ApiClient
from localcluster.errors import ClusterError
from localcluster.layout import API_PORT, ClusterPlan, Layout
from localcluster.procs import NETNS_FOLDER, Daemon, Supervisor
from localcluster.shell import log_hint, run, wait_for

API_DEADLINE_S = 180
FAST = ("--kube-api-qps=500", "--kube-api-burst=1000")
DNS_DEADLINE_S = 90
NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "coredns")
Binary = Callable[[str], Path]


class ControlPlane:
    """Renders the control plane's files, and starts its daemons or restarts changed ones."""

    def __init__(self, layout: Layout, plan: ClusterPlan, supervisor: Supervisor, binary: Binary) -> None:
        self.layout = layout
        self.plan = plan
        self.supervisor = supervisor
        self.binary = binary
        self.api = ApiClient(plan.api_address, layout.pki)

    def write_files(self) -> None:
        """Write certificates, kubeconfigs, audit policy and Corefile; unchanged files are not written again."""
        pki.ensure_pki(self.layout.pki, pki.certificates(self.plan))
        self.layout.etc.mkdir(parents=True, exist_ok=True)
        inside = [node.name for node in self.plan.nodes]
        inside += ["kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns", "kwok"]
        for name in inside:
            self.write_kubeconfig(name, self.kubeconfig(name), self.plan.internal_server)
        operator = {f"{self.layout.context}-operator": "operator"}
        self.write_kubeconfig("admin", self.layout.kubeconfig, self.plan.server, operator)
        write(self.layout.etc / "audit-policy.json", config.audit_policy())
        core = config.corefile(self.plan, self.kubeconfig("coredns"), self.layout.context)
        write(self.layout.etc / "Corefile", core)

    def kubeconfig(self, name: str) -> Path:
        """Return the path of the kubeconfig of a component inside the namespaces."""
        return self.layout.etc / f"{name}.kubeconfig"

    def write_kubeconfig(self, name: str, path: Path, server: str, others: Mapping[str, str] | None = None) -> None:
        """Write a kubeconfig with the certificate of this name, readable for its owner only."""
        text = pki.kubeconfig(self.layout.pki, name, server=server, context=self.layout.context, others=others)
        write(path, text)
        path.chmod(0o600)

    def start_store(self) -> None:
        """Mount a tmpfs and start etcd on it; a test cluster's data need not survive a reboot."""
        data = self.layout.run / "etcd"
        data.mkdir(parents=True, exist_ok=True)
        if not is_mounted(data):
            run(["mount", "-t", "tmpfs", "-o", "size=2g,mode=700", "tmpfs", str(data)])
        self._ensure(
            "etcd",
            f"--data-dir={data}/data",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            "--initial-cluster=default=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
            "--auto-compaction-mode=periodic",
            "--auto-compaction-retention=10m",
            "--quota-backend-bytes=1610612736",
            "--log-level=warn",
        )

    def start_api(self) -> None:
        """Start the API server, which waits for etcd itself."""
        certs = self.layout.pki
        self._ensure(
            "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--secure-port={API_PORT}",
            f"--bind-address={'::' if self.plan.ipv6 else '0.0.0.0'}",  # of both families: the host uses IPv4
            f"--advertise-address={self.plan.gateway}",
            f"--service-cluster-ip-range={self.plan.service_cidr}",
            "--authorization-mode=Node,RBAC",
            # The second plugin checks the operator's right to set blockOwnerDeletion.
            "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
            "--allow-privileged=true",
            f"--client-ca-file={certs}/ca.crt",
            f"--tls-cert-file={certs}/apiserver.crt",
            f"--tls-private-key-file={certs}/apiserver.key",
            f"--kubelet-certificate-authority={certs}/ca.crt",
            f"--kubelet-client-certificate={certs}/apiserver-kubelet-client.crt",
            f"--kubelet-client-key={certs}/apiserver-kubelet-client.key",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={certs}/sa.pub",
            f"--service-account-signing-key-file={certs}/sa.key",
            f"--audit-log-path={self.layout.audit_log}",
            f"--audit-policy-file={self.layout.etc}/audit-policy.json",
            "--audit-log-maxsize=100",
            "--audit-log-maxbackup=2",
            # Endpoints instead of cluster addresses: no kube-proxy runs beside the API server.
            "--enable-aggregator-routing=true",
            "--profiling=false",
            inputs=(self.layout.etc / "audit-policy.json", certs / "apiserver.crt"),
        )

    def wait_api(self) -> None:
        """Wait until the API server is ready and its bootstrap roles exist."""
        wait_for(
            self.api.ready,
            what="the API server is not ready",
            deadline_s=API_DEADLINE_S,
            hint=lambda: self._hints("kube-apiserver", "etcd"),
            abort=lambda: self._died("kube-apiserver", "etcd"),
        )

    def start_controllers(self) -> None:
        """Start scheduler and controller manager, without leader election because each has one process."""
        certs = self.layout.pki
        own = self.kubeconfig("kube-controller-manager")
        self._ensure(
            "kube-controller-manager",
            f"--kubeconfig={own}",
            f"--authentication-kubeconfig={own}",
            f"--authorization-kubeconfig={own}",
            "--authentication-skip-lookup=true",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={certs}/sa.key",
            f"--root-ca-file={certs}/ca.crt",
            f"--cluster-signing-cert-file={certs}/ca.crt",
            f"--cluster-signing-key-file={certs}/ca.key",
            # Node loss within seconds: the end-to-end tests wait for it.
            "--node-monitor-period=2s",
            "--node-monitor-grace-period=12s",
            # With Kubernetes' default limit of 20 requests per second, tests of scale would measure the limit.
            *FAST,
            # Claims and volumes are bound within one second instead of 15.
            "--pvclaimbinder-sync-period=1s",
            "--profiling=false",
            inputs=(own,),
        )
        own = self.kubeconfig("kube-scheduler")
        self._ensure(
            "kube-scheduler",
            f"--kubeconfig={own}",
            f"--authentication-kubeconfig={own}",
            f"--authorization-kubeconfig={own}",
            "--authentication-skip-lookup=true",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            *FAST,
            "--profiling=false",
            inputs=(own,),
        )

    def start_dns(self) -> None:
        """Start CoreDNS on the bridge's address, with the rights it needs."""
        for path, body in config.coredns_rbac():
            self.api.create(path, body)
        core = self.layout.etc / "Corefile"
        self._ensure("coredns", "-conf", str(core), inputs=(core, self.kubeconfig("coredns")))

    def wait_settled(self) -> None:
        """Wait until DNS answers and new pods can be created."""
        wait_for(
            lambda: self.answers(self.plan.gateway, 8181, "/ready"),
            what="CoreDNS is not ready",
            deadline_s=DNS_DEADLINE_S,
            hint=lambda: self._hints("coredns"),
            abort=lambda: self._died("coredns"),
        )
        wait_for(
            lambda: self.api.get("/api/v1/namespaces/default/serviceaccounts/default"),
            what="the controller manager did not create the default service account",
            deadline_s=DNS_DEADLINE_S,
            hint=lambda: self._hints("kube-controller-manager"),
            abort=lambda: self._died("kube-controller-manager"),
        )

    def answers(self, address: str, port: int, path: str) -> bool:
        """Return whether an HTTP probe from the control plane's namespace is answered with 200."""
        # http.client ignores proxy settings.
        probe = (
            f"import http.client, sys; c = http.client.HTTPConnection('{address}', {port}, timeout=2);"
            f"c.request('GET', '{path}'); sys.exit(c.getresponse().status != 200)"
        )
        command = ["nsenter", f"--net={NETNS_FOLDER / self.plan.control_netns}", sys.executable, "-S", "-c", probe]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _ensure(self, name: str, *args: str, inputs: tuple[Path, ...] = ()) -> None:
        argv = (str(self.binary(name)), *args)
        self.supervisor.ensure(Daemon(name, argv, self.plan.control_netns, inputs))

    def _died(self, *names: str) -> str | None:
        dead = [name for name in names if not self.supervisor.alive(name)]
        return f"{dead[0]} died" if dead else None

    def _hints(self, *names: str) -> str:
        return "\n".join(log_hint(self.supervisor.log(name)) for name in names)


def write(path: Path, text: str) -> None:
    """Write a file atomically, unless it has this content already."""
    try:
        if path.read_text(encoding="utf-8") == text:
            return
    except OSError:
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(0o600)
    fresh.rename(path)


def is_mounted(path: Path) -> bool:
    """Return whether a path is a mount point."""
    return str(path) in mount_points()


def mount_points() -> list[str]:
    """Return all mount points, in the order of mounting.

    Raises:
        ClusterError: the mount table cannot be read.
    """
    try:
        text = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    except OSError as error:
        raise ClusterError(f"cannot read the mount table: {error}") from error
    return [line.split()[4].encode().decode("unicode_escape") for line in text.splitlines()]
