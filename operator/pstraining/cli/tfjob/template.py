"""Converts a TFJob's pod template: fields that the operator sets are removed, all others stay unchanged."""

import re
from dataclasses import dataclass
from typing import Any

from pstraining.api import contract, names
from pstraining.api.values import copied
from pstraining.cli.tfjob import marks
from pstraining.cli.tfjob.notes import Notes
from pstraining.cli.tfjob.ports import convert_ports, name_ports_beside
from pstraining.cli.tfjob.source import checked, join, keep_items, sound, texts
from pstraining.resources import pods

Template = dict[str, Any]

_TF_CONFIG = "TF_CONFIG"
_RESERVED_ENV = "PSTRAINING_"
_DEVICES = {"name": "CUDA_VISIBLE_DEVICES", "value": ""}
_VISIBLE = ("NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that give a container GPUs which it does not request."""
_OLD_GPU = "alpha.kubernetes.io/nvidia-gpu"
_NO_DEVICES = ("", "none", "void")
_RUNTIME = re.compile(r"nvidia|amd|rocm|habana")
"""Beginnings of the names of runtime classes that do the same."""
_DEVICE_FILES = re.compile(r"/dev/?$|/dev/(nvidia|dri|kfd|accel)")
_HOOKS = re.compile(r"\.(lifecycle|\w+Probe)\.")
_SERVICE_LINK = re.compile(r"(?<![A-Z0-9_])(?!KUBERNETES_)[A-Z][A-Z0-9_]*_SERVICE_(HOST|PORT)(?![A-Z0-9])")
_ACCOUNT = "/secrets/kubernetes.io/serviceaccount"
_OF_SERVERS = re.compile(r"spec\.tfReplicaSpecs\.ps\b", re.IGNORECASE)
_WITHOUT_INDEX = re.compile(r"spec\.tfReplicaSpecs\.(chief|master|evaluator)\b", re.IGNORECASE)
"""Paths of roles whose hostname has no index."""
_HOSTNAME = re.compile(r"\$\{?HOSTNAME\b|\$\(hostname\)|`hostname`|\bgethostname\(\)|\benviron\W+HOSTNAME\b")
_VARIABLE = r"\$(?:\w+|\{\w+\}|\(\w+\))"
_OF_NODES = re.compile(r"\.(nodeSelector|nodeAffinity)\b")
_WITH_SERVICES = ("chief", "master", "worker", "evaluator")
"""Task types whose Services a TFJob has and a PSTrainingJob lacks."""


@dataclass(frozen=True)
class TemplatesOf:
    """The TFJob of the templates, and settings for all of them."""

    job: str
    """The TFJob's name."""
    version: str = ""
    """The TFJob's API version."""
    command: tuple[str, ...] = ()
    """The command of training containers that have none: the images' entrypoint."""
    gang: bool = False
    """Whether the TFJob's schedulingPolicy requests a gang."""
    renamed: str = ""
    """The PSTrainingJob's name, if it differs."""
    labels: frozenset[str] = frozenset()
    """The labels of all templates."""


def converted_template(template: Template, path: str, job: TemplatesOf, notes: Notes) -> Template | None:
    """Return the converted template; None if it is refused.

    Args:
        template: the TFJob's template.
        path: the template's path in the TFJob.
        job: the template's job.
        notes: receives the notes on the template's fields.
    """
    before = sum(note.refused for note in notes.found)
    found = copied(template)
    metadata = sound(found, "metadata", dict, path, notes)
    if "spec" not in found:
        notes.refused(f"{path}.spec", "it is missing: it names the containers.")
    spec, at = sound(found, "spec", dict, path, notes), f"{path}.spec"
    containers = _containers(spec, at, notes)
    _pod(spec, at, notes)
    for index, container in enumerate(containers):
        where, main = f"{at}.containers[{index}]", container["name"] == names.MAIN_CONTAINER
        _env(container, where, main, notes)
        if main:
            convert_ports(container, where, notes)
            _command(container, where, job.command, notes)
        else:
            name_ports_beside(container, where, notes)
    for index, container in enumerate(spec.get("initContainers", ())):
        if container.get("restartPolicy") == "Always":  # a sidecar
            name_ports_beside(container, f"{at}.initContainers[{index}]", notes)
    labels = sound(metadata, "labels", dict, f"{path}.metadata", notes)
    annotations = sound(metadata, "annotations", dict, f"{path}.metadata", notes)
    marks.name_gangs({**labels, **annotations}, f"{path}.metadata", metadata, notes)
    marks.name_kueue(labels, annotations, f"{path}.metadata", notes)
    marks.name_scheduler(spec, at, job.gang, notes)
    known = marks.name_selectors(spec, at, labels, {*labels, *job.labels}, notes)
    for where, text in texts(spec, at):
        if not where.startswith(known) and not _OF_NODES.search(where):
            _text(where, text, job, notes)
    for where in marks.commands_on_resource(spec, at):
        marks.name_resource(where, notes)
    _service_links(spec, at, notes)
    _token(spec, at, notes)
    return found if sum(note.refused for note in notes.found) == before else None


def service_in(text: str, job: str, *, by_variable: bool = False) -> re.Match[str] | None:
    """Find the name of a Service that only the TFJob has. Its groups are the task's type and index.

    Args:
        text: a value, or a part of it.
        job: the TFJob's name; empty if it is not known.
        by_variable: whether a variable may stand for the TFJob's name, as for a job with generateName.
    """
    # The Services of a PS have the same names here, unless the job's name is shortened.
    tasks = "|".join((*_WITH_SERVICES, *(("ps",) if len(job) > names.MAX_JOB_NAME else ())))
    begins = [rf"(?<![\w-]){re.escape(job)}"] * bool(job) + [_VARIABLE] * by_variable
    return re.search(rf"(?:{'|'.join(begins)})-({tasks})-(\d+)", text) if begins else None


def shared(worker: Template, own: Template) -> dict[str, Any] | None:
    """Return the role's fields if it can share the worker's template.

    Args:
        worker: the worker's converted template.
        own: the role's converted template.

    Returns:
        No fields, or `resources`; None if the two differ in more, or if the role requests devices.
    """
    if not _without_devices(own):
        return None
    borrowed = copied(worker)
    pods.drop_devices(borrowed["spec"])
    pods.drop_probes(borrowed["spec"])
    mine = copied(own)
    pods.drop_devices(mine["spec"])
    if _comparable(borrowed) == _comparable(mine):
        return {}
    resources = pods.main_container(mine["spec"]).get("resources") or {}
    pods.main_container(borrowed["spec"])["resources"] = copied(resources)
    if _comparable(borrowed) == _comparable(mine) and set(resources) <= {"limits", "requests"}:
        return {"resources": {kind: _without_fractions(amounts) for kind, amounts in resources.items()}}
    return None


def _without_fractions(amounts: dict[str, Any]) -> dict[str, Any]:
    """Return quantities with fractions as texts: roles accept only those."""
    return {name: str(amount) if isinstance(amount, float) else amount for name, amount in amounts.items()}


def _containers(spec: dict[str, Any], at: str, notes: Notes) -> list[dict[str, Any]]:
    """Return the containers. Parts that are read later have the right type afterwards; wrong types are refused."""
    sound(spec, "securityContext", dict, at, notes)
    for name in ("containers", "initContainers"):
        found = sound(spec, name, list, at, notes)
        for index, container in enumerate(found):
            where = f"{at}.{name}[{index}]"
            whole = checked(container, dict, where, notes)
            found[index] = {"name": "?"} if whole is None else whole
            _container(found[index], where, notes)
    containers: list[dict[str, Any]] = spec.setdefault("containers", [])
    if not any(c["name"] == names.MAIN_CONTAINER for c in containers):
        main = names.MAIN_CONTAINER
        notes.refused(
            f"{at}.containers", f"TFJob requires a container {main}; give the container that trains this name."
        )
        # Check the other containers nevertheless.
        containers[:1] = [{"command": ["?"], **(containers[0] if containers else {}), "name": main}]
    return containers


def _container(container: dict[str, Any], where: str, notes: Notes) -> None:
    if checked(container.get("name"), str, f"{where}.name", notes) is None:
        container["name"] = "?"
    resources = sound(container, "resources", dict, where, notes)
    for amounts in ("limits", "requests"):
        if _OLD_GPU in sound(resources, amounts, dict, f"{where}.resources", notes):
            notes.none(
                join(f"{where}.resources.{amounts}", _OLD_GPU),
                "no node has it since Kubernetes 1.11, so the pod stays Pending. It is kept.",
                "Request nvidia.com/gpu instead.",
            )
    sound(container, "securityContext", dict, where, notes)
    for name in ("env", "ports"):
        items = sound(container, name, list, where, notes)
        for index, item in enumerate(items):
            whole = checked(item, dict, f"{where}.{name}[{index}]", notes)
            items[index] = {"name": "?"} if whole is None else whole
            if name == "env" and checked(items[index].get("name"), str, f"{where}.env[{index}].name", notes) is None:
                items[index]["name"] = "?"


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
    if spec.get("setHostnameAsFQDN"):
        notes.different(
            f"{at}.setHostnameAsFQDN",
            "TFJob's pods have no domain, so it has no effect there. Here the hostname is like "
            "JOB-worker-0.JOB-hs.NAMESPACE.svc.cluster.local, and a pod with more than 64 characters does not start.",
            "Remove it.",
        )
    if "activeDeadlineSeconds" in spec and _WITHOUT_INDEX.match(at):
        notes.different(
            f"{at}.activeDeadlineSeconds",
            "in TFJob the job fails when this pod has exceeded its time, unless its restartPolicy is ExitCode. Here "
            "the replica has failed, and a new pod has the whole time again.",
            "Set spec.runPolicy.activeDeadlineSeconds to limit the job.",
        )
    account = next((n for n in ("serviceAccountName", "serviceAccount") if spec.get(n)), "")
    if account and "automountServiceAccountToken" not in spec:
        spec["automountServiceAccountToken"] = True
        notes.changed(
            join(at, account),
            "here the token is mounted only if the template requests it: automountServiceAccountToken is added.",
        )


def _env(container: dict[str, Any], where: str, main: bool, notes: Notes) -> None:
    kept = []
    for index, variable in enumerate(container.get("env", [])):
        path, name = f"{where}.env[{index}]", variable["name"]
        if name == _TF_CONFIG and main:
            notes.changed(path, "TFJob overwrites TF_CONFIG, and the operator sets it, too; it is left out.")
        elif name == _TF_CONFIG:
            notes.none(path, "the operator sets TF_CONFIG everywhere; it is left out.", "Choose another name.")
        elif name.startswith(_RESERVED_ENV):
            notes.none(
                path,
                f"names that start with {_RESERVED_ENV} are reserved for the operator; it is left out.",
                "Choose another name.",
            )
        else:
            kept.append(index)
    keep_items(container, "env", kept, where, notes)


def _command(container: dict[str, Any], where: str, given: tuple[str, ...], notes: Notes) -> None:
    if container.get("command"):
        return
    path = f"{where}.command"
    if given:
        container["command"] = list(given)
        rest = "" if container.get("args") else " Add the image's own arguments (CMD), too."
        notes.changed(path, f"it is not set: --command is written there instead of the image's entrypoint.{rest}")
        return
    todo = "Convert with --command and the entrypoint of the image; `docker inspect` shows it as Entrypoint and Cmd."
    alone = " Without an Entrypoint, args are the command: write them as command." if container.get("args") else ""
    notes.none(
        path,
        "it is not set: TFJob runs the image's entrypoint, which the launcher cannot read. The API server refuses "
        "the job without a command.",
        f"{todo}{alone}",
    )


def _text(path: str, text: str, job: TemplatesOf, notes: Notes) -> None:
    """Note references that only work in a TFJob: its resource, its pods, its Services, TF_CONFIG in probes."""
    if marks.names_resource(text):
        marks.name_resource(path, notes)
    elif marks.refers_to_labels(text):
        notes.different(path, "it refers to labels that TFJob puts on its pods.", marks.OURS)
    elif text == "metadata.labels" and path.endswith(".fieldRef.fieldPath"):
        notes.different(path, "the file does not have the labels that TFJob puts on its pods.", marks.OURS)
    elif text == "metadata.name" and path.endswith(".fieldRef.fieldPath") and not _OF_SERVERS.match(path):
        notes.different(
            path,
            "a pod's name is like JOB-worker-0 in TFJob, the same after a restart. Here it ends with further, random "
            "characters, except for a PS.",
            f"Use $({contract.ENV_TASK_TYPE})-$({contract.ENV_TASK_INDEX}), or the hostname, which stays the same.",
        )
    elif found := service_in(text, job.job, by_variable=True):
        if found[1] == "ps":
            notes.different(path, f"{found[0]} is {job.renamed}-ps-{found[2]} now.", "Take addresses from TF_CONFIG.")
            return
        notes.different(
            path,
            f"{found[0]} is a Service that TFJob creates.",
            "Take addresses from TF_CONFIG; with spec.worker.addressing: ClusterIP workers have such Services, too.",
        )
    elif (role := _WITHOUT_INDEX.match(path)) and _HOSTNAME.search(text):
        theirs = role[1].lower()
        ours = names.CHIEF if theirs == "master" else theirs
        notes.different(
            path,
            f"the hostname is JOB-{ours} here, without an index, and JOB-{theirs}-0 in TFJob.",
            f"Take the index from {contract.ENV_TASK_INDEX}.",
        )
    elif _TF_CONFIG in text and _HOOKS.search(path):
        notes.none(
            path,
            "here only the program has TF_CONFIG, and probes and hooks do not.",
            f"Take the task from {contract.ENV_TASK_TYPE} and {contract.ENV_TASK_INDEX}.",
        )


def _service_links(spec: dict[str, Any], at: str, notes: Notes) -> None:
    """Note the uses of a variable with the address of a Service, which pods here do not get from Kubernetes."""
    if "enableServiceLinks" in spec:
        return
    for kind in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(kind, ())):
            own = [variable["name"] for variable in container.get("env", ())]
            for path, text in texts(container, f"{at}.{kind}[{index}]"):
                used = (found[0] for found in _SERVICE_LINK.finditer(text))
                if link := next((name for name in used if name not in own), None):
                    notes.different(
                        path,
                        f"pods here do not have variables with the addresses of Services, such as {link}.",
                        "Set enableServiceLinks: true in the template, or use the Service's name.",
                    )


def _token(spec: dict[str, Any], at: str, notes: Notes) -> None:
    """Note the uses of the folder with the service account's token, which pods here have only if they request it."""
    if "automountServiceAccountToken" in spec:
        return
    found = [path for path, text in texts(spec, at) if _ACCOUNT in text]
    if any(path.endswith(".mountPath") for path in found):
        return  # the template mounts a volume of its own there
    for path in found:
        notes.different(
            path,
            "here the service account's token is mounted only if the template requests it.",
            "Set automountServiceAccountToken: true in the template.",
        )


def _without_devices(template: Template) -> bool:
    """Return whether the template requests no devices, and has none, so that their removal changes nothing."""
    if _has_devices(template["spec"]):
        return False
    left = copied(template)
    pods.drop_devices(left["spec"])
    as_is = copied(template)
    container = pods.main_container(as_is["spec"])
    env = container.get("env", [])
    container["env"] = [v for v in env if v["name"] != _DEVICES["name"]] + [_DEVICES]
    named = [v for v in env if v["name"] == _DEVICES["name"]]
    return left == as_is and all(v.get("value", "") == "" and "valueFrom" not in v for v in named)


def _has_devices(spec: dict[str, Any]) -> bool:
    """Return whether the training container may have GPUs that it does not request: by its runtime, or by the node."""
    container = pods.main_container(spec)
    given = [v for v in container.get("env", ()) if v["name"] in _VISIBLE]
    if any("valueFrom" in v or v.get("value", "") not in _NO_DEVICES for v in given):
        return True
    volumes = spec.get("volumes")
    paths = [
        v["hostPath"] for v in (volumes if isinstance(volumes, list) else ()) if isinstance(v, dict) and "hostPath" in v
    ]
    files = [path.get("path") for path in paths if isinstance(path, dict)]
    return (
        container.get("securityContext", {}).get("privileged") is True
        or _RUNTIME.match(str(spec.get("runtimeClassName", ""))) is not None
        or any(_DEVICE_FILES.match(str(file)) for file in files)
    )


def _comparable(template: Template) -> Template:
    """Return the template without empty resources and env, for comparison."""
    found = copied(template)
    for container in (*found["spec"]["containers"], *found["spec"].get("initContainers", ())):
        resources = {k: v for k, v in container.get("resources", {}).items() if v}
        for name, value in (("resources", resources), ("env", container.get("env"))):
            container.pop(name, None)
            container.update({name: value} if value else {})
    return found
