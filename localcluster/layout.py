"""Folders, names and addresses of a cluster.

Pure: all of them follow from the environment and two numbers. Several instances may run side by
side (``PSTRAINING_INSTANCE``). Only the names of namespaces, links and cgroups, and the host's /30,
differ between instances; all other addresses exist inside an instance's namespaces only. A cluster
uses one address family, and the host reaches its API server by IPv4 in both.
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
    """The networks of an address family: nodes, pods, Services, and the prefix length of one node's pods."""

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
# Unique local addresses (RFC 4193). The API server accepts at most 2^20 addresses of Services.
IPV6 = Family(
    ipaddress.IPv6Network("fd00:10:30::/64"),
    ipaddress.IPv6Network("fd00:10:244::/48"),
    ipaddress.IPv6Network("fd00:10:96::/112"),
    64,
)


@dataclass(frozen=True)
class Layout:
    """The folders of one instance.

    ``run`` has the files of the running cluster. Its path must be short, because unix sockets are
    in it. ``disk`` has files that are too large for a tmpfs; ``down`` keeps its container stores.
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
        """The administrator's kubeconfig for the host."""
        return self.run / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        """The API server's log of writes."""
        return self.logs / "audit.log"

    @property
    def state_file(self) -> Path:
        """The options of the last `up`."""
        return self.run / "cluster.json"

    @property
    def lock(self) -> Path:
        """The lock file that an `up` or `down` holds while it runs."""
        return self.cache / f"lock-{self.instance}"

    @property
    def tools(self) -> Path:
        """The folders with the go.mod files."""
        return self.repo / "localcluster" / "tools"

    @property
    def disk(self) -> Path:
        """Files that are too large for the run folder, or are kept by `down`."""
        return self.cache / "nodes" / str(self.instance)

    @property
    def context(self) -> str:
        """The name of the kubeconfig context."""
        return "pstraining-local" + ("" if self.instance == 0 else f"-{self.instance}")

    def node(self, name: str) -> Path:
        """Return a node's run folder: sockets, configuration, containerd's state."""
        return self.run / name

    def containerd_root(self, name: str) -> Path:
        """Return the folder of a node's images and snapshots. ``down`` keeps it, so a later start loads no image."""
        return self.disk / name / "containerd"

    def kubelet_disk(self, name: str) -> Path:
        """Return the folder of a node's pods (emptyDir), on disk because /run is in memory."""
        return self.disk / name / "kubelet"

    def containerd_socket(self, name: str) -> Path:
        """Return the socket on which a node's containerd listens."""
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
    """Whether nodes, pods and Services have IPv6 addresses only."""

    @property
    def server(self) -> str:
        """The API server's URL for the host."""
        return f"https://{self.api_address}:{API_PORT}"

    @property
    def internal_server(self) -> str:
        """The API server's URL for nodes and pods."""
        return f"https://{self.gateway_host}:{API_PORT}"

    @property
    def gateway_host(self) -> str:
        """The gateway as the host of a URL; an IPv6 address is in brackets."""
        return f"[{self.gateway}]" if self.ipv6 else self.gateway


def read_layout(env: Mapping[str, str], repo: Path | None = None) -> Layout:
    """Return the folders for this environment.

    Raises:
        ClusterError: ``PSTRAINING_INSTANCE`` is not a number from 0 to 63, or ``PSTRAINING_RUN`` is too long.
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
    """Return names and addresses of node ``index``, which depend on the arguments only."""
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
    """Return the address plan of one family.

    Raises:
        ClusterError: the number of nodes is not 1 to 64.
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
