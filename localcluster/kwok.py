"""Fake nodes beside the real ones, for tests of scale: KWOK on demand.

A taint keeps other pods off the fake nodes: a pod for a fake node tolerates
``kwok.x-k8s.io/node=fake:NoSchedule`` and selects ``type: kwok``.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from localcluster.api import ApiClient
from localcluster.errors import ClusterError
from localcluster.lifecycle import Cluster
from localcluster.node import is_ready
from localcluster.procs import Daemon
from localcluster.shell import log_hint, wait_for

STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
)
MARK = "kwok.x-k8s.io/node"
DEADLINE_S = 90


def fake_node(index: int) -> dict[str, Any]:
    """Return a fake node with resources for 1000 pods."""
    name = f"kwok-{index}"
    room = {"cpu": "64", "memory": "512Gi", "pods": "1000", "nvidia.com/gpu": "8"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {MARK: "fake", "node.alpha.kubernetes.io/ttl": "0"},
            "labels": {
                "type": "kwok",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "topology.kubernetes.io/zone": f"fake-{index % 3}",
            },
        },
        "spec": {"taints": [{"key": MARK, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": room, "capacity": room},
    }


def stages_text(folder: Path) -> str:
    """Return the stages, which define the behavior of fake nodes and pods, as one document."""
    return "\n---\n".join((folder / name).read_text(encoding="utf-8") for name in STAGES)


def up(cluster: Cluster, count: int) -> None:
    """Start KWOK, and add or remove fake nodes until there are ``count`` of them.

    Raises:
        ClusterError: the cluster uses IPv6, or the nodes are not ready in time.
    """
    if cluster.plan.ipv6:
        raise ClusterError("fake nodes have IPv4 addresses: bring the cluster up without --ipv6")
    cluster.toolbox.ensure(["kwok"])
    program = cluster.toolbox.binary("kwok")
    config = cluster.layout.etc / "kwok-stages.yaml"
    config.write_text(stages_text(program.parent / "stage"), encoding="utf-8")
    own = cluster.control.kubeconfig("kwok")
    argv = (
        str(program),
        f"--config={config}",
        f"--kubeconfig={own}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={MARK}=fake",
        # Renewed every 4 s: on a busy machine fake nodes must not appear as lost (the controller manager waits 12 s).
        "--node-lease-duration-seconds=16",
        "--cidr=10.128.0.0/14",
        "--node-ip=10.30.255.1",
    )
    cluster.supervisor.ensure(Daemon("kwok", argv, cluster.plan.control_netns, (config, own)))
    api = cluster.control.api
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(lambda index: api.create("/api/v1/nodes", fake_node(index)), range(count)))
    wanted = {f"kwok-{index}" for index in range(count)}
    for name in sorted(set(fake_names(api)) - wanted):
        api.delete(f"/api/v1/nodes/{name}")
    wait_for(
        lambda: wanted <= {node["metadata"]["name"] for node in _fakes(api) if is_ready(node)},
        what="the fake nodes are not Ready",
        deadline_s=DEADLINE_S,
        hint=lambda: log_hint(cluster.supervisor.log("kwok")),
        abort=lambda: None if cluster.supervisor.alive("kwok") else "kwok died",
    )


def down(cluster: Cluster) -> None:
    """Delete the fake nodes with their pods, then stop KWOK."""
    api = cluster.control.api
    for name in fake_names(api):
        api.delete(f"/api/v1/nodes/{name}")
    pods = api.get("/api/v1/pods?fieldSelector=spec.nodeName%21%3D") or {}
    for pod in pods.get("items", []):
        meta = pod["metadata"]
        if str(pod["spec"].get("nodeName", "")).startswith("kwok-"):
            api.delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}?gracePeriodSeconds=0")
    cluster.supervisor.stop(["kwok"])


def fake_names(api: ApiClient) -> list[str]:
    """Return the names of the fake nodes."""
    return [str(node["metadata"]["name"]) for node in _fakes(api)]


def _fakes(api: ApiClient) -> list[dict[str, Any]]:
    body = api.get("/api/v1/nodes?labelSelector=type%3Dkwok") or {}
    return list(body.get("items", []))
