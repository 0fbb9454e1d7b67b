"""The configuration files of all components, as pure functions of the plan.

JSON is used wherever YAML is accepted: the standard library writes it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localcluster.layout import DOMAIN, ClusterPlan, NodePlan

PAUSE_IMAGE = "pstraining.local/pause:1"
# Their Lease renewals would fill the audit log; the operator's Lease is kept.
CHATTY_USERS = (
    "system:apiserver",
    "system:kube-controller-manager",
    "system:kube-scheduler",
    "kwok",
)
OPERATOR_HERE = "pstraining-operator"
"""The user of an operator that runs on this machine, for tests that kill it; a second context of the kubeconfig."""
WATCHED_USERS = ("system:serviceaccount:pstraining-system:pstraining-operator", OPERATOR_HERE)
"""Users of operators, the chart's first. The audit log has their reads as well, for tests that compare rights."""


@dataclass(frozen=True)
class NodePaths:
    """The paths in a node's configuration."""

    run: Path
    containerd_root: Path
    containerd_socket: Path
    kubelet_root: Path
    pki: Path
    cni_bin: Path


def containerd_toml(paths: NodePaths, *, snapshotter: str, restrict_oom: bool) -> str:
    """Return containerd's configuration for one node.

    Namespaces of pods are under the node's state folder, where ``down`` finds exactly its own.
    """
    state = paths.run / "containerd"
    return f"""version = 2
root = "{paths.containerd_root}"
state = "{state}"
oom_score = 0
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing",
]

[grpc]
  address = "{paths.containerd_socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{state}/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  disable_apparmor = true
  restrict_oom_score_adj = {str(restrict_oom).lower()}
  netns_mounts_under_state_dir = true
  max_container_log_line_size = -1
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{paths.cni_bin}"
    conf_dir = "{paths.run}/cni"
    max_conf_num = 1
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    default_runtime_name = "runc"
    discard_unpacked_layers = false
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
        Root = "{paths.run}/runc"
"""


def cni_conflist(plan: ClusterPlan, node: NodePlan, state: Path) -> str:
    """Return the configuration of one node's pod network.

    ``ptp`` rather than ``bridge``: traffic between pods of one node passes its IP layer, and
    Services work without the br_netfilter module.
    """
    ptp = {
        "type": "ptp",
        "ipMasq": False,
        "mtu": 1500,
        "ipam": {
            "type": "host-local",
            "dataDir": str(state),
            "ranges": [[{"subnet": node.pod_cidr}]],
            "routes": [{"dst": "::/0" if plan.ipv6 else "0.0.0.0/0"}],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return _json({"cniVersion": "0.4.0", "name": plan.prefix, "plugins": [ptp, portmap]})


def kubelet_config(plan: ClusterPlan, node: NodePlan, paths: NodePaths) -> str:
    """Return the kubelet's configuration."""
    return _json(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(paths.pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(paths.pki / f"{node.name}-serving.crt"),
            "tlsPrivateKeyFile": str(paths.pki / f"{node.name}-serving.key"),
            "containerRuntimeEndpoint": f"unix://{paths.containerd_socket}",
            "clusterDomain": DOMAIN,
            "clusterDNS": [plan.gateway],
            "resolvConf": str(paths.run / "resolv.conf"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{node.cgroup}",
            "cgroupsPerQOS": True,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            # Raising one's own priority needs a capability that containers lack.
            "oomScoreAdj": 0,
            "nodeStatusUpdateFrequency": "3s",
            "nodeStatusReportFrequency": "1m",
            "nodeLeaseDurationSeconds": 10,
            # Several nodes share one disk: never evict pods or images because it fills.
            "evictionHard": {"memory.available": "100Mi"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "serializeImagePulls": False,
            "registryPullQPS": 0,
            "eventRecordQPS": 0,
            "kubeAPIQPS": 100,
            "kubeAPIBurst": 200,
            "volumePluginDir": str(paths.run / "volume-plugins"),
            "podLogsDir": str(paths.run / "pod-logs"),
            "healthzBindAddress": "127.0.0.1",
            "protectKernelDefaults": False,
            "makeIPTablesUtilChains": True,
            "maxPods": 200,
        }
    )


def kube_proxy_config(plan: ClusterPlan, node: NodePlan, kubeconfig: Path) -> str:
    """Return kube-proxy's configuration: iptables mode, with Kubernetes' default minSyncPeriod (1 s)."""
    return _json(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "hostnameOverride": node.name,
            "mode": "iptables",
            "clusterCIDR": plan.pod_cidr,
            "detectLocalMode": "ClusterCIDR",
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            "oomScoreAdj": 0,
            # 0: leave the machine-wide conntrack settings alone.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }
    )


def corefile(plan: ClusterPlan, kubeconfig: Path, context: str) -> str:
    """Return CoreDNS's configuration, without a cache (Kubernetes' default) and without forwarding."""
    return f""".:53 {{
    bind {plan.gateway}
    errors
    ready {plan.gateway_host}:8181
    kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig} {context}
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 5
    }}
    loadbalance
}}
"""


def coredns_rbac() -> list[tuple[str, Mapping[str, object]]]:
    """Return (collection path, object) pairs of the rights that CoreDNS needs."""
    rules = [
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    group = "rbac.authorization.k8s.io"
    role = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "system:coredns"},
        "rules": rules,
    }
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "system:coredns"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "system:coredns"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "system:coredns"}],
    }
    base = f"/apis/{group}/v1"
    return [(f"{base}/clusterroles", role), (f"{base}/clusterrolebindings", binding)]


def audit_policy() -> str:
    """Return the audit policy: all finished writes except components' Leases, and the reads of operators."""
    leases = [{"group": "coordination.k8s.io", "resources": ["leases"]}]
    return _json(
        {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived", "ResponseStarted"],
            "omitManagedFields": True,
            "rules": [
                {"level": "Metadata", "verbs": ["get", "list", "watch"], "users": list(WATCHED_USERS)},
                {"level": "None", "verbs": ["get", "list", "watch"]},
                {"level": "None", "userGroups": ["system:nodes"], "resources": leases},
                {"level": "None", "users": list(CHATTY_USERS), "resources": leases},
                {"level": "None", "nonResourceURLs": ["*"]},
                {
                    "level": "None",
                    "resources": [
                        {"group": "authorization.k8s.io", "resources": []},
                        {"group": "authentication.k8s.io", "resources": []},
                    ],
                },
                {"level": "Metadata"},
            ],
        }
    )


def resolv_conf(plan: ClusterPlan) -> str:
    """Return the resolv.conf of the nodes, and of pods with ``dnsPolicy: Default``."""
    return f"nameserver {plan.gateway}\n"


def _json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"
