"""A pod template of a TFJob as one of ours: what the operator sets itself goes, all else stays as it is."""

import copy
import re
from collections.abc import Iterator
from typing import Any

from pstraining.api import contract, names
from pstraining.cli.errors import CommandError
from pstraining.cli.tfjob.notes import Notes
from pstraining.cli.tfjob.source import join, of_kind
from pstraining.resources import pods

Template = dict[str, Any]

_TFJOB_PORT = "tfjob-port"
_TF_CONFIG = "TF_CONFIG"
_RESERVED_ENV = "PSTRAINING_"
_DEVICES = {"name": "CUDA_VISIBLE_DEVICES", "value": ""}
_OPERATORS_PORTS = range(contract.STATUS_PORT, contract.METRICS_PORT + 1)
_PORT_NAMES = (contract.TF_PORT_NAME, contract.STATUS_PORT_NAME, contract.WITNESS_PORT_NAME, contract.METRICS_PORT_NAME)
_LABELS = re.compile(r"training\.kubeflow\.org/|\btf-(job-name|replica-type|replica-index)\b")
"""Labels that TFJob puts on its pods, now and formerly."""


def converted_template(template: Template, path: str, job: str, notes: Notes) -> Template:
    """The template as we take it.

    Args:
        template: the TFJob's.
        path: where in the TFJob it is.
        job: the TFJob's name.
        notes: receives the notes on the template's fields.

    Raises:
        CommandError: TFJob would not take the template.
    """
    found = copy.deepcopy(template)
    if "spec" not in found:
        raise CommandError(f"{path}.spec is missing: it names the containers.")
    spec, at = of_kind(found["spec"], dict, f"{path}.spec"), f"{path}.spec"
    containers = _containers(spec, at)
    _pod(spec, at, notes)
    for index, container in enumerate(containers):
        where, main = f"{at}.containers[{index}]", container["name"] == names.MAIN_CONTAINER
        _env(container, where, main, notes)
        if main:
            _ports(container, where, notes)
            _command(container, where, notes)
    for where, text in _texts(spec, at):
        _text(where, text, job, notes)
    return found


def silences(template: Template, path: str, notes: Notes) -> None:
    """Say what the operator fills in where a template that is written out says nothing."""
    spec = template["spec"]
    if not any("runAsUser" in part.get("securityContext", {}) for part in (spec, pods.main_container(spec))):
        notes.different(
            f"{path}.spec.securityContext",
            "it names no runAsUser, and TFJob's pods run as the image's user, often root. Here they run as user 1000.",
            "Set runAsUser if the program must write as another user.",
        )


def shared(worker: Template, own: Template) -> dict[str, Any] | None:
    """The role's fields that give it its own template by way of the worker's.

    Args:
        worker: the worker's template, converted.
        own: the role's, converted.

    Returns:
        Nothing at all, or `resources`; None if the two differ in more, or the role has devices of its own.
    """
    if not _without_devices(own):
        return None
    borrowed = copy.deepcopy(worker)
    pods.drop_devices(borrowed["spec"])
    mine = copy.deepcopy(own)
    pods.drop_devices(mine["spec"])
    if _comparable(borrowed) == _comparable(mine):
        return {}
    resources = pods.main_container(mine["spec"]).get("resources") or {}
    pods.main_container(borrowed["spec"])["resources"] = copy.deepcopy(resources)
    if _comparable(borrowed) == _comparable(mine) and set(resources) <= {"limits", "requests"}:
        return {"resources": resources}
    return None


def _containers(spec: dict[str, Any], at: str) -> list[dict[str, Any]]:
    """The containers, all of whose parts that are looked into are of the right type."""
    for name in ("containers", "initContainers"):
        for index, container in enumerate(of_kind(spec.get(name, []), list, f"{at}.{name}")):
            where = f"{at}.{name}[{index}]"
            of_kind(of_kind(container, dict, where).get("name"), str, f"{where}.name")
            resources = of_kind(container.get("resources", {}), dict, f"{where}.resources")
            for amounts in ("limits", "requests"):
                of_kind(resources.get(amounts, {}), dict, f"{where}.resources.{amounts}")
            of_kind(container.get("securityContext", {}), dict, f"{where}.securityContext")
    of_kind(spec.get("securityContext", {}), dict, f"{at}.securityContext")
    found: list[dict[str, Any]] = spec.get("containers", [])
    if not any(c["name"] == names.MAIN_CONTAINER for c in found):
        raise CommandError(
            f"{at}.containers: TFJob wants one named {names.MAIN_CONTAINER}; name the container that trains so."
        )
    return found


def _pod(spec: dict[str, Any], at: str, notes: Notes) -> None:
    fields = {name: spec.pop(name, None) for name in ("restartPolicy", "hostname", "subdomain")}
    if fields["restartPolicy"] is not None:
        notes.changed(f"{at}.restartPolicy", "TFJob overwrites it by the role's, so it is left out.")
    for name in ("hostname", "subdomain"):
        if fields[name] is not None:
            notes.none(join(at, name), "the operator names its pods itself.", "Take addresses from TF_CONFIG.")
    if spec.get("hostNetwork"):
        del spec["hostNetwork"]
        notes.none(
            f"{at}.hostNetwork",
            "pods have a network of their own: two tasks on one node would compete for port 2222.",
            "Check that the program works without the node's network.",
        )
    account = next((n for n in ("serviceAccountName", "serviceAccount") if spec.get(n)), "")
    if account and "automountServiceAccountToken" not in spec:
        spec["automountServiceAccountToken"] = True
        notes.changed(
            join(at, account),
            "an account's token is mounted only where the template says so: automountServiceAccountToken is added.",
        )


def _env(container: dict[str, Any], where: str, main: bool, notes: Notes) -> None:
    kept = []
    for index, variable in enumerate(of_kind(container.get("env", []), list, f"{where}.env")):
        path = f"{where}.env[{index}]"
        name = of_kind(of_kind(variable, dict, path).get("name"), str, f"{path}.name")
        if name == _TF_CONFIG and main:
            notes.changed(path, "TFJob overwrites TF_CONFIG, and the operator sets it, too; it is left out.")
        elif name == _TF_CONFIG:
            notes.none(path, "TF_CONFIG is the operator's in every container; it is left out.", "Choose another name.")
        elif name.startswith(_RESERVED_ENV):
            notes.none(
                path,
                f"names that start with {_RESERVED_ENV} are the operator's; it is left out.",
                "Choose another name.",
            )
        else:
            kept.append(variable)
    _replace(container, "env", kept)


def _ports(container: dict[str, Any], where: str, notes: Notes) -> None:
    kept = []
    for index, port in enumerate(of_kind(container.get("ports", []), list, f"{where}.ports")):
        path = f"{where}.ports[{index}]"
        number, name = of_kind(port, dict, path).get("containerPort"), port.get("name")
        if "hostPort" in port and (number == contract.TF_PORT or name == _TFJOB_PORT):
            notes.none(path, "TensorFlow's port is not opened on nodes; it is left out.", "Use a Service of your own.")
        elif number == contract.TF_PORT:
            notes.changed(path, "the operator puts TensorFlow's port, 2222, on every pod; it is left out.")
        elif name == _TFJOB_PORT:
            notes.different(
                path,
                f"TensorFlow's port is {number} in this TFJob and always {contract.TF_PORT} here; it is left out.",
                "A program that takes its address from TF_CONFIG needs no change.",
            )
        elif number in _OPERATORS_PORTS or name in _PORT_NAMES:
            notes.none(
                path,
                f"ports {contract.TF_PORT} to {contract.METRICS_PORT}, and names {', '.join(_PORT_NAMES)}, are the "
                "operator's; it is left out.",
                "Choose another port and name.",
            )
        else:
            kept.append(port)
            if name is not None:
                notes.different(
                    path,
                    "TFJob puts named ports on a Service for each replica. Here it is only on the pod.",
                    f"If others connect to it, make a Service that selects {names.LABEL_JOB} and {names.LABEL_ROLE}.",
                )
    _replace(container, "ports", kept)


def _replace(container: dict[str, Any], name: str, kept: list[Any]) -> None:
    if kept:
        container[name] = kept
    elif container.get(name):
        del container[name]


def _command(container: dict[str, Any], where: str, notes: Notes) -> None:
    if not container.get("command"):
        notes.none(
            f"{where}.command",
            "it is not set: TFJob runs the image's entrypoint, which the launcher cannot read. The API server "
            "refuses the job so.",
            "Write the image's entrypoint there.",
        )


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """All texts below a value, names of fields among them, with their paths."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield join(path, name), name
            yield from _texts(item, join(path, name))


def _text(path: str, text: str, job: str, notes: Notes) -> None:
    """What a text means only under TFJob: labels of its pods, addresses of its Services."""
    if _LABELS.search(text):
        notes.different(
            path,
            "it refers to labels that TFJob puts on its pods.",
            f"Ours are {names.LABEL_JOB}, {names.LABEL_ROLE} and, on workers, {names.LABEL_INDEX}.",
        )
    elif job and (found := re.search(rf"(?<![\w-]){re.escape(job)}-(chief|master|worker|evaluator)-\d+", text)):
        notes.different(
            path,
            f"{found[0]} is a Service that TFJob makes.",
            "Take addresses from TF_CONFIG; with spec.worker.addressing: ClusterIP workers have such Services, too.",
        )


def _without_devices(template: Template) -> bool:
    """Whether the template asks for no devices, so that taking them away changes nothing."""
    left = copy.deepcopy(template)
    pods.drop_devices(left["spec"])
    as_is = copy.deepcopy(template)
    container = pods.main_container(as_is["spec"])
    env = container.get("env", [])
    container["env"] = [v for v in env if v["name"] != _DEVICES["name"]] + [_DEVICES]
    named = [v for v in env if v["name"] == _DEVICES["name"]]
    return left == as_is and all(v.get("value", "") == "" and "valueFrom" not in v for v in named)


def _comparable(template: Template) -> Template:
    """The template, with what a container does not ask for left out."""
    found = copy.deepcopy(template)
    for container in (*found["spec"]["containers"], *found["spec"].get("initContainers", ())):
        resources = {k: v for k, v in container.get("resources", {}).items() if v}
        for name, value in (("resources", resources), ("env", container.get("env"))):
            container.pop(name, None)
            container.update({name: value} if value else {})
    return found
