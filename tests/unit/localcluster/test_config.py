"""Rendered configuration is valid and complete, and has the settings on which the tests rely."""

import json
import tomllib
from pathlib import Path

from localcluster import config, kwok
from localcluster.layout import plan_cluster
from localcluster.pki import certificates

PLAN = plan_cluster(1, 2)
NODE = PLAN.nodes[1]
PATHS = config.NodePaths(
    run=Path("/run/p/node-1"),
    containerd_root=Path("/c/node-1"),
    containerd_socket=Path("/run/p/node-1/containerd.sock"),
    kubelet_root=Path("/run/p/node-1/kubelet"),
    pki=Path("/run/p/pki"),
    cni_bin=Path("/usr/lib/cni"),
)


def test_containerd_keeps_everything_in_the_nodes_folders() -> None:
    text = config.containerd_toml(PATHS, snapshotter="overlayfs", restrict_oom=True)
    settings = tomllib.loads(text)
    cri = settings["plugins"]["io.containerd.grpc.v1.cri"]
    assert settings["root"] == "/c/node-1"
    assert settings["state"].startswith("/run/p/node-1/")
    assert cri["netns_mounts_under_state_dir"] is True
    assert cri["restrict_oom_score_adj"] is True
    assert cri["sandbox_image"] == config.PAUSE_IMAGE
    options = cri["containerd"]["runtimes"]["runc"]["options"]
    assert options == {"SystemdCgroup": False, "Root": "/run/p/node-1/runc"}


def test_the_oom_restriction_is_lifted_where_the_capability_is_there() -> None:
    text = config.containerd_toml(PATHS, snapshotter="native", restrict_oom=False)
    cri = tomllib.loads(text)["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["restrict_oom_score_adj"] is False
    assert cri["containerd"]["snapshotter"] == "native"


def test_each_node_hands_out_its_own_pod_addresses() -> None:
    texts = [json.loads(config.cni_conflist(PLAN, node, Path("/s"))) for node in PLAN.nodes]
    subnets = [text["plugins"][0]["ipam"]["ranges"][0][0]["subnet"] for text in texts]
    assert subnets == [node.pod_cidr for node in PLAN.nodes]
    assert texts[0]["name"] == PLAN.prefix


def test_pods_of_an_ipv6_cluster_have_one_route_and_its_dns_listens_there() -> None:
    plan = plan_cluster(1, 1, ipv6=True)
    (ptp, _) = json.loads(config.cni_conflist(plan, plan.nodes[0], Path("/s")))["plugins"]
    assert ptp["ipam"]["routes"] == [{"dst": "::/0"}]
    assert f"ready [{plan.gateway}]:8181" in config.corefile(plan, Path("/k"), "c")


def test_the_kubelet_lives_in_its_cgroup_and_accepts_version_1() -> None:
    settings = json.loads(config.kubelet_config(PLAN, NODE, PATHS))
    assert settings["cgroupRoot"] == f"/{NODE.cgroup}"
    assert settings["failCgroupV1"] is False
    assert settings["clusterDNS"] == [PLAN.gateway]
    assert settings["authentication"]["anonymous"]["enabled"] is False


def test_audit_counts_writes_of_the_operator_but_no_heartbeats() -> None:
    policy = json.loads(config.audit_policy())
    assert "RequestReceived" in policy["omitStages"]
    reads = ["get", "list", "watch"]
    assert policy["rules"][:2] == [
        {"level": "Metadata", "verbs": reads, "users": list(config.WATCHED_USERS)},
        {"level": "None", "verbs": reads},
    ]
    assert policy["rules"][-1] == {"level": "Metadata"}
    silent = [rule for rule in policy["rules"][2:] if "users" in rule or "userGroups" in rule]
    assert silent
    for rule in silent:
        assert rule["resources"][0]["resources"] == ["leases"]
        assert not any("serviceaccount" in user for user in rule.get("users", []))


def test_dns_listens_on_the_bridge_only() -> None:
    text = config.corefile(PLAN, Path("/k"), "context")
    assert f"bind {PLAN.gateway}" in text
    assert "forward" not in text


def test_certificates_name_all_addresses_of_the_api_server() -> None:
    found = {entry.name: entry for entry in certificates(PLAN)}
    for address in (PLAN.gateway, PLAN.api_address, PLAN.service_ip):
        assert f"IP:{address}" in found["apiserver"].sans
    assert found["node-1"].subject == "/O=system:nodes/CN=system:node:node-1"
    assert not found["node-1"].sans
    assert f"IP:{NODE.address}" in found["node-1-serving"].sans


def test_fake_nodes_are_marked_and_tainted() -> None:
    node = kwok.fake_node(7)
    assert node["metadata"]["labels"]["type"] == "kwok"
    assert node["spec"]["taints"] == [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]
