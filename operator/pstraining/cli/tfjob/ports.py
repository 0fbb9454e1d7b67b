"""Converts the ports of a TFJob's containers: TensorFlow's port is always 2222 here, and named tf."""

from typing import Any

from pstraining.api import contract, names
from pstraining.cli.tfjob.notes import Notes
from pstraining.cli.tfjob.source import keep_items, sound
from pstraining.resources.pods import is_tcp

TFJOB_PORT = "tfjob-port"
"""The name of TensorFlow's port in TFJobs."""


def convert_ports(container: dict[str, Any], where: str, notes: Notes) -> None:
    """Remove the ports of the training container that the operator sets, and note the others that differ.

    Args:
        container: the container, which is changed.
        where: its path.
        notes: receives the notes.
    """
    kept = []
    for index, port in enumerate(container.get("ports", [])):
        path = f"{where}.ports[{index}]"
        number, name = _tcp_port(port), port.get("name")
        if "hostPort" in port and (number == contract.TF_PORT or name == TFJOB_PORT):
            notes.none(path, "TensorFlow's port is not opened on nodes; it is left out.", "Create a Service.")
        elif number == contract.TF_PORT:
            notes.changed(path, "the operator puts TensorFlow's port, 2222, on every pod; it is left out.")
            _point_to_tf(container, where, [] if name == contract.TF_PORT_NAME else [name], notes)
        elif name == TFJOB_PORT:
            notes.different(
                path,
                f"TensorFlow's port is {number} in this TFJob and always {contract.TF_PORT} here; it is left out.",
                "A program that takes its address from TF_CONFIG needs no change.",
            )
            _point_to_tf(container, where, [name, number], notes)
        elif number in contract.RESERVED_PORTS or name in list(contract.PORTS):  # a name of any type, such as a list
            notes.none(
                path,
                f"ports {contract.TF_PORT} to {contract.METRICS_PORT}, and names {', '.join(contract.PORTS)}, are "
                "reserved for the operator; it is left out.",
                "Choose another port and name.",
            )
        else:
            kept.append(index)
            if name is not None:
                notes.different(
                    path,
                    "TFJob puts named ports on a Service for each replica. Here it is only on the pod.",
                    f"If clients need it, create a Service that selects {names.LABEL_JOB} and {names.LABEL_ROLE}.",
                )
    keep_items(container, "ports", kept, where, notes)


def name_ports_beside(container: dict[str, Any], where: str, notes: Notes) -> None:
    """Note the ports of another container that the launcher or TensorFlow uses: a pod's containers share them.

    Args:
        container: the container, or an init container that runs beside the others.
        where: its path.
        notes: receives the notes.
    """
    for index, port in enumerate(container.get("ports", [])):
        if _tcp_port(port) in contract.RESERVED_PORTS:
            notes.none(
                f"{where}.ports[{index}]",
                f"ports {contract.TF_PORT} to {contract.METRICS_PORT} of a pod are the operator's; it is kept.",
                "Let the container listen on another port.",
            )


def _tcp_port(port: dict[str, Any]) -> Any:
    """Return the number of a TCP port, a value of any type; None for other ports, which disturb none of these."""
    return port.get("containerPort") if is_tcp(port) else None


def _point_to_tf(container: dict[str, Any], where: str, former: list[Any], notes: Notes) -> None:
    """Point probes and hooks to TensorFlow's port here.

    Args:
        container: the container, which is changed.
        where: its path.
        former: the port's name and number in the TFJob, where they differ; values of any type, or None.
        notes: receives the notes.
    """
    handlers = {name: value for name, value in container.items() if name.endswith("Probe")}
    hooks = sound(container, "lifecycle", dict, where, notes)
    for path, handler in {**handlers, **{f"lifecycle.{name}": value for name, value in hooks.items()}}.items():
        for kind in ("httpGet", "tcpSocket", "grpc"):
            target = handler.get(kind) if isinstance(handler, dict) else None
            if isinstance(target, dict) and "port" in target and target["port"] in former:
                target["port"] = contract.TF_PORT if kind == "grpc" else contract.TF_PORT_NAME
                notes.changed(f"{where}.{path}.{kind}.port", f"it is {target['port']}, TensorFlow's port here.")
