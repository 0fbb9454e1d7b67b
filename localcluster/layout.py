"""Where things lie and how they are named: folders, and the cluster's address plan.

Pure: computed from the environment and two numbers, so that every module agrees and tests need
no machine. Several instances may run side by side (``PSTRAINING_INSTANCE``): only the names of
namespaces, links and cgroups and the host's /30 must differ, for all other addresses exist inside
an instance's namespaces only. A cluster is of one address family; the host reaches its API server
by IPv4 in both.
"""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from localcluster.errors import ClusterError

MAX_INSTANCE = 63
MAX_NODES = 64
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# RFC 2544 benchmark range: never routed, rarely used on a developer's machine.
HOST_LINKS = ipaddress.IPv4Network("198.18.0.0/24")
API_PORT = 6443
DOMAIN = "cluster.local"


@dataclass(frozen=True)
class Family:
    """The networks of an address family: of nodes, of pods, of Services, and the prefix of one node's pods."""

    fabric: Network
    pods: Network
    services: Network
    node_prefix: int


IPV4 = Family(
    ipaddress.IPv4Network("10.30.0.0/16"),
    ipaddress.IPv4Network("10.244.0.0/16"),
    ipaddress.IPv4Network("10.96.0.0/16"),
    24,
)
# Unique local addresses (RFC 4193). The API server takes at most 2^20 addresses of Services.
IPV6 = Family(
    ipaddress.IPv6Network("fd00:10:30::/64"),
    ipaddress.IPv6Network("fd00:10:244::/48"),
    ipaddress.IPv6Network("fd00:10:96::/112"),
    64,
)


@dataclass(frozen=True)
class Layout:
    """The folders of one instance.

    ``run`` holds everything of the running cluster and must be short, for unix sockets lie in
    it. ``disk`` holds what is too big for a tmpfs; of it ``down`` keeps the container stores.
    """

    repo: Path
    cache: Path
    run: Path
    instance: int

    @property
    def pki(self) -> Path:
        """Certificates and keys."""
        return self.run / "pki"

    @property
    def logs(self) -> Path:
        """One log for each daemon, and the audit log."""
        return self.run / "logs"

    @property
    def records(self) -> Path:
        """Process records."""
        return self.run / "pids"

    @property
    def etc(self) -> Path:
        """The control plane's configuration."""
        return self.run / "etc"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, as the host uses it."""
        return self.run / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        """The API server's log of writes."""
        return self.logs / "audit.log"

    @property
    def state_file(self) -> Path:
        """What was asked of the last `up`."""
        return self.run / "cluster.json"

    @property
    def lock(self) -> Path:
        """Held while an `up` or `down` runs."""
        return self.cache / f"lock-{self.instance}"

    @property
    def tools(self) -> Path:
        """The folders with the go.mod files."""
        return self.repo / "localcluster" / "tools"

    @property
    def disk(self) -> Path:
        """What is too big or too dear to lose for the run folder."""
        return self.cache / "nodes" / str(self.instance)

    @property
    def context(self) -> str:
        """The name of the kubeconfig context."""
        return "pstraining-local" + ("" if self.instance == 0 else f"-{self.instance}")

    def node(self, name: str) -> Path:
        """A node's run folder: sockets, configuration, containerd's state."""
        return self.run / name

    def containerd_root(self, name: str) -> Path:
        """A node's images and snapshots; kept by ``down`` so that a warm start loads nothing."""
        return self.disk / name / "containerd"

    def kubelet_disk(self, name: str) -> Path:
        """A node's pod folders (emptyDir), on disk because /run is memory."""
        return self.disk / name / "kubelet"

    def containerd_socket(self, name: str) -> Path:
        """Where a node's containerd listens."""
        return self.node(name) / "containerd.sock"


@dataclass(frozen=True)
class NodePlan:
    """One node: its names and addresses."""

    index: int
    name: str
    netns: str
    cgroup: str
    port: str
    address: str
    pod_cidr: str
    zone: str


@dataclass(frozen=True)
class ClusterPlan:
    """Names and addresses of one instance.

    ``gateway`` is the bridge of the control plane: the API server's advertised address and DNS.
    """

    instance: int
    prefix: str
    control_netns: str
    system_cgroup: str
    bridge: str
    gateway: str
    fabric_prefix: int
    service_cidr: str
    service_ip: str
    pod_cidr: str
    host_link: str
    host_address: str
    api_address: str
    nodes: tuple[NodePlan, ...]
    ipv6: bool = False
    """Nodes, pods and Services have only IPv6 addresses."""

    @property
    def server(self) -> str:
        """The API server as the host reaches it."""
        return f"https://{self.api_address}:{API_PORT}"

    @property
    def internal_server(self) -> str:
        """The API server as nodes and pods reach it."""
        return f"https://{self.gateway_host}:{API_PORT}"

    @property
    def gateway_host(self) -> str:
        """The gateway as the host of a URL, an IPv6 address in brackets."""
        return f"[{self.gateway}]" if self.ipv6 else self.gateway


def read_layout(env: Mapping[str, str], repo: Path | None = None) -> Layout:
    """The folders for this environment.

    Raises:
        ClusterError: ``PSTRAINING_INSTANCE`` is not a number from 0 to 63.
    """
    text = env.get("PSTRAINING_INSTANCE", "0") or "0"
    if not text.isdigit() or int(text) > MAX_INSTANCE:
        raise ClusterError(f"PSTRAINING_INSTANCE must be 0 to {MAX_INSTANCE}, not {text!r}")
    instance = int(text)
    home = env.get("HOME") or os.path.expanduser("~")
    base = env.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    cache = Path(env.get("PSTRAINING_CACHE") or os.path.join(base, "pstraining"))
    suffix = "" if instance == 0 else f"-{instance}"
    run = Path(env.get("PSTRAINING_RUN") or f"/run/pstraining{suffix}")
    if len(str(run)) > 50:
        raise ClusterError(f"PSTRAINING_RUN is too long for unix sockets (50 at most): {run}")
    root = repo or Path(__file__).resolve().parents[1]
    return Layout(repo=root, cache=cache.absolute(), run=run.absolute(), instance=instance)


def plan_node(instance: int, index: int, family: Family = IPV4) -> NodePlan:
    """Names and addresses of node ``index``; they depend on nothing else."""
    pods = next(islice(family.pods.subnets(new_prefix=family.node_prefix), index, None))
    return NodePlan(
        index=index,
        name=f"node-{index}",
        netns=f"pst{instance}-node-{index}",
        cgroup=f"pst{instance}-node-{index}",
        port=f"port-{index}",
        address=str(family.fabric[10 + index]),
        pod_cidr=str(pods),
        zone=f"zone-{index}",
    )


def plan_cluster(instance: int, nodes: int, *, ipv6: bool = False) -> ClusterPlan:
    """The whole address plan, of one family.

    Raises:
        ClusterError: too few or too many nodes.
    """
    if not 1 <= nodes <= MAX_NODES:
        raise ClusterError(f"the number of nodes must be 1 to {MAX_NODES}, not {nodes}")
    link = list(HOST_LINKS.subnets(new_prefix=30))[instance]
    family = IPV6 if ipv6 else IPV4
    return ClusterPlan(
        instance=instance,
        prefix=f"pst{instance}",
        control_netns=f"pst{instance}-control",
        system_cgroup=f"pst{instance}-system",
        bridge="fabric",
        gateway=str(family.fabric[1]),
        fabric_prefix=family.fabric.prefixlen,
        service_cidr=str(family.services),
        service_ip=str(family.services[1]),
        pod_cidr=str(family.pods),
        host_link=f"pst{instance}-host",
        host_address=str(link[1]),
        api_address=str(link[2]),
        nodes=tuple(plan_node(instance, index, family) for index in range(nodes)),
        ipv6=ipv6,
    )
