"""Folders and addresses: all modules agree on them, and instances never collide."""

import ipaddress
from pathlib import Path

import pytest

from localcluster.errors import ClusterError
from localcluster.layout import MAX_INSTANCE, MAX_NODES, plan_cluster, read_layout


def test_defaults_come_from_the_home_folder() -> None:
    layout = read_layout({"HOME": "/home/ada"}, repo=Path("/src"))
    assert layout.cache == Path("/home/ada/.cache/pstraining")
    assert layout.run == Path("/run/pstraining")
    assert layout.context == "pstraining-local"
    assert layout.tools == Path("/src/localcluster/tools")


def test_the_environment_moves_cache_and_run_folder() -> None:
    env = {"HOME": "/home/ada", "XDG_CACHE_HOME": "/var/c", "PSTRAINING_RUN": "/run/x"}
    assert read_layout(env).cache == Path("/var/c/pstraining")
    assert read_layout({**env, "PSTRAINING_CACHE": "/big"}).cache == Path("/big")
    assert read_layout(env).run == Path("/run/x")


def test_another_instance_has_other_folders_and_another_context() -> None:
    first, second = read_layout({"HOME": "/h"}), read_layout({"HOME": "/h", "PSTRAINING_INSTANCE": "3"})
    assert second.run == Path("/run/pstraining-3")
    assert second.context == "pstraining-local-3"
    assert first.disk != second.disk
    assert first.lock != second.lock


@pytest.mark.parametrize("value", ["-1", "64", "one", "1.5"])
def test_an_invalid_instance_is_rejected(value: str) -> None:
    with pytest.raises(ClusterError, match="PSTRAINING_INSTANCE"):
        read_layout({"HOME": "/h", "PSTRAINING_INSTANCE": value})


def test_a_run_folder_too_long_for_sockets_is_rejected() -> None:
    with pytest.raises(ClusterError, match="too long"):
        read_layout({"HOME": "/h", "PSTRAINING_RUN": "/run/" + "x" * 60})


@pytest.mark.parametrize("count", [0, MAX_NODES + 1])
def test_an_invalid_number_of_nodes_is_rejected(count: int) -> None:
    with pytest.raises(ClusterError, match="number of nodes"):
        plan_cluster(0, count)


@pytest.mark.parametrize("ipv6", [False, True])
def test_addresses_are_unique_and_lie_in_their_networks(ipv6: bool) -> None:
    plan = plan_cluster(0, MAX_NODES, ipv6=ipv6)
    addresses = [plan.gateway, *(node.address for node in plan.nodes)]
    assert len(set(addresses)) == len(addresses)
    fabric = ipaddress.ip_network(f"{plan.gateway}/{plan.fabric_prefix}", strict=False)
    assert all(ipaddress.ip_address(address) in fabric for address in addresses)
    pods = [ipaddress.ip_network(node.pod_cidr) for node in plan.nodes]
    assert len(set(pods)) == len(pods)
    whole = ipaddress.ip_network(plan.pod_cidr)
    assert all(pod.network_address in whole and pod.broadcast_address in whole for pod in pods)
    assert ipaddress.ip_address(plan.service_ip) in ipaddress.ip_network(plan.service_cidr)
    assert {fabric.version, whole.version, *(pod.version for pod in pods)} == {6 if ipv6 else 4}
    assert plan.internal_server == f"https://{f'[{plan.gateway}]' if ipv6 else plan.gateway}:6443"


@pytest.mark.parametrize("ipv6", [False, True])
def test_the_networks_do_not_overlap(ipv6: bool) -> None:
    plan = plan_cluster(MAX_INSTANCE, 2, ipv6=ipv6)
    networks = [
        ipaddress.ip_network(f"{plan.gateway}/{plan.fabric_prefix}", strict=False),
        ipaddress.ip_network(plan.pod_cidr),
        ipaddress.ip_network(plan.service_cidr),
        ipaddress.ip_network(f"{plan.host_address}/30", strict=False),
    ]
    for index, network in enumerate(networks):
        others = [other for other in networks[index + 1 :] if other.version == network.version]
        assert not any(network.network_address in other or other.network_address in network for other in others)


def test_instances_share_nothing_on_the_host() -> None:
    plans = [plan_cluster(instance, 2) for instance in range(MAX_INSTANCE + 1)]
    for field in ("host_link", "host_address", "api_address", "control_netns", "system_cgroup"):
        assert len({getattr(plan, field) for plan in plans}) == len(plans)
    assert len({node.netns for plan in plans for node in plan.nodes}) == 2 * len(plans)


def test_link_names_fit_into_the_kernel() -> None:
    plan = plan_cluster(MAX_INSTANCE, MAX_NODES)
    for name in [plan.host_link, plan.bridge, *(node.port for node in plan.nodes)]:
        assert len(name) <= 15


def test_a_node_does_not_move_when_others_join() -> None:
    assert plan_cluster(0, 2).nodes == plan_cluster(0, 5).nodes[:2]
