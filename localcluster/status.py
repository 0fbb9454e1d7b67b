"""The output of ``status``: every daemon, every node, and the versions."""

from typing import Any

from localcluster import lifecycle, network, procs
from localcluster.api import ApiClient
from localcluster.errors import ClusterError
from localcluster.layout import ClusterPlan, Layout
from localcluster.node import is_ready
from localcluster.progress import format_grid


def report(layout: Layout) -> tuple[str, bool]:
    """Return the text, and whether all daemons run and all nodes are ready."""
    plan = lifecycle.saved_plan(layout)
    if plan is None:
        return "no cluster is up", False
    daemons, alive = component_table(layout, plan)
    nodes, ready = node_table(layout, plan)
    head = f"context {layout.context}, kubeconfig {layout.kubeconfig}, API server {plan.server}"
    return f"{head}\n\n{daemons}\n\n{nodes}", alive and ready


def component_table(layout: Layout, plan: ClusterPlan) -> tuple[str, bool]:
    """Return a table with a row for each expected or recorded daemon, and whether all of them run."""
    records = {record.name: record for record in procs.read_records(layout.records)}
    names = lifecycle.component_names(plan)
    names += sorted(set(records) - set(names))
    rows, well = [], True
    for name in names:
        record = records.get(name)
        alive = record is not None and procs.is_alive(record)
        well = well and alive
        pid = str(record.pid) if record else "-"
        rows.append((name, pid, "yes" if alive else "NO", str(layout.logs / f"{name}.log")))
    return format_grid(("COMPONENT", "PID", "ALIVE", "LOG"), rows), well


def node_table(layout: Layout, plan: ClusterPlan) -> tuple[str, bool]:
    """Return a table with a row for each real node, and whether all are ready; one row counts fake nodes."""
    api = ApiClient(plan.api_address, layout.pki)
    try:
        body = api.get("/api/v1/nodes") or {}
        version = (api.get("/version") or {}).get("gitVersion", "?")
    except (ClusterError, OSError) as error:
        return f"nodes: {error}", False
    rows, well = [], True
    fakes = 0
    for item in body.get("items", []):
        if item["metadata"].get("labels", {}).get("type") == "kwok":
            fakes += 1
            continue
        row = node_row(plan, item)
        well = well and row[1] == "Ready"
        rows.append(row)
    if fakes:
        rows.append((f"({fakes} fake nodes)", "", "", "", ""))
    table = format_grid(("NODE", "STATE", "CABLE", "KUBELET", "RUNTIME"), rows)
    return f"API server {version}\n{table}", well and len(rows) >= len(plan.nodes)


def node_row(plan: ClusterPlan, item: dict[str, Any]) -> tuple[str, str, str, str, str]:
    """Return a node's row."""
    name = str(item["metadata"]["name"])
    info = item.get("status", {}).get("nodeInfo", {})
    ports = {node.name: node.port for node in plan.nodes}
    link = network.links(plan.control_netns).get(ports.get(name, ""))
    cable = "?" if link is None else ("in" if network.is_up(link) else "CUT")
    state = "Ready" if is_ready(item) else "NotReady"
    return name, state, cable, str(info.get("kubeletVersion")), str(info.get("containerRuntimeVersion"))
