"""Network namespaces and links.

The control plane's namespace has a bridge. A veth pair connects each node's namespace to it, and
nodes have routes to the other nodes' pods. The host reaches the API server through a veth pair with
a /30. No namespace has a default route: no packet leaves the machine. All functions create missing
links and keep existing ones, and thereby repair a cluster.
"""

import json

from localcluster.errors import ClusterError
from localcluster.layout import ClusterPlan, NodePlan
from localcluster.procs import NETNS_FOLDER
from localcluster.shell import run

FORWARDING = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")


def namespaces() -> set[str]:
    """Return the named network namespaces of this machine."""
    return {path.name for path in NETNS_FOLDER.glob("*")} if NETNS_FOLDER.is_dir() else set()


def ensure_namespace(name: str) -> None:
    """Create a namespace, with its loopback device up and forwarding enabled."""
    if name in namespaces():
        try:
            run(["ip", "-n", name, "link", "show", "lo"])
            return
        except ClusterError:
            # A crash or a reboot may leave a file without a namespace.
            run(["ip", "netns", "delete", name], check=False)
            (NETNS_FOLDER / name).unlink(missing_ok=True)
    run(["ip", "netns", "add", name])
    run(["ip", "-n", name, "link", "set", "lo", "up"])
    # A kernel without IPv6 lacks the second file; clusters with IPv4 work there.
    script = "; ".join(f"test ! -e /proc/sys/{path} || echo 1 > /proc/sys/{path}" for path in FORWARDING)
    run(["nsenter", f"--net={NETNS_FOLDER / name}", "sh", "-c", script])


def links(netns: str) -> dict[str, dict[str, object]]:
    """Return the links of a namespace by name; an empty name means the host's namespace."""
    where = ["-n", netns] if netns else []
    text = run(["ip", "-j", *where, "addr", "show"])
    return {str(link["ifname"]): link for link in json.loads(text or "[]")}


def is_up(link: dict[str, object]) -> bool:
    """Return whether a link is administratively up."""
    flags = link.get("flags")
    return isinstance(flags, list) and "UP" in flags


def ensure_control(plan: ClusterPlan) -> None:
    """Create the control plane's namespace, its bridge and its link to the host, or repair them."""
    name = plan.control_netns
    ensure_namespace(name)
    if plan.bridge not in links(name):
        batch(
            name,
            f"link add {plan.bridge} type bridge",
            f"addr add {plan.gateway}/{plan.fabric_prefix} dev {plan.bridge}{_at_once(plan)}",
            f"link set {plan.bridge} up",
        )
    if "host" not in links(name) or plan.host_link not in links(""):
        run(["ip", "link", "delete", plan.host_link], check=False)
        pair = ["type", "veth", "peer", "name", "host", "netns", name]
        run(["ip", "link", "add", plan.host_link, *pair])
        run(["ip", "addr", "add", f"{plan.host_address}/30", "dev", plan.host_link])
        run(["ip", "link", "set", plan.host_link, "up"])
        batch(name, f"addr add {plan.api_address}/30 dev host", "link set host up")


def ensure_node(plan: ClusterPlan, node: NodePlan) -> None:
    """Create a node's namespace and its link to the bridge, or repair them."""
    ensure_namespace(node.netns)
    port = links(plan.control_netns).get(node.port)
    if port is not None and "eth0" in links(node.netns):
        if not is_up(port):
            batch(plan.control_netns, f"link set {node.port} up")
        return
    run(["ip", "-n", node.netns, "link", "delete", "eth0"], check=False)
    run(["ip", "-n", plan.control_netns, "link", "delete", node.port], check=False)
    peer = ["type", "veth", "peer", "name", node.port, "netns", plan.control_netns]
    run(["ip", "link", "add", "eth0", "netns", node.netns, *peer])
    batch(
        node.netns,
        f"addr add {node.address}/{plan.fabric_prefix} dev eth0{_at_once(plan)}",
        "link set eth0 up",
    )
    batch(plan.control_netns, f"link set {node.port} master {plan.bridge}", f"link set {node.port} up")


def ensure_routes(plan: ClusterPlan) -> None:
    """Set routes to every node's pods, on the control plane and on each other node."""
    for node in plan.nodes:
        others = [other for other in plan.nodes if other.index != node.index]
        routes = [f"route replace {other.pod_cidr} via {other.address}" for other in others]
        # The node translates addresses of Services; the lookup of a route must succeed before that.
        batch(node.netns, *routes, f"route replace {plan.service_cidr} dev eth0")
    batch(
        plan.control_netns,
        *[f"route replace {node.pod_cidr} via {node.address}" for node in plan.nodes],
    )


def _at_once(plan: ClusterPlan) -> str:
    # An IPv6 address is usable at once without duplicate detection; the plan has no duplicates.
    return " nodad" if plan.ipv6 else ""


def set_port(plan: ClusterPlan, node: NodePlan, *, up: bool) -> bool:
    """Plug or pull a node's cable at the bridge; return whether its state changed.

    The bridge's end is used because the node would lose its routes at its own end.

    Raises:
        ClusterError: the node has no port at the bridge.
    """
    port = links(plan.control_netns).get(node.port)
    if port is None:
        raise ClusterError(f"{node.name} has no port at the bridge; run 'up'")
    if is_up(port) == up:
        return False
    batch(plan.control_netns, f"link set {node.port} {'up' if up else 'down'}")
    return True


def batch(netns: str, *commands: str) -> None:
    """Run several ip commands in one process."""
    run(["ip", "-n", netns, "-batch", "-"], stdin="\n".join(commands) + "\n")


def remove_all(prefix: str) -> None:
    """Delete the namespaces and the host's link of an instance."""
    run(["ip", "link", "delete", f"{prefix}-host"], check=False)
    for name in sorted(namespaces()):
        if name.startswith(f"{prefix}-"):
            run(["ip", "netns", "delete", name], check=False)
