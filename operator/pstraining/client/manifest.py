"""Builds the objects of a job: the PSTrainingJob, and the ConfigMap with its program. Pure."""

import copy
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from pstraining.api import names
from pstraining.api.values import merged, path_of
from pstraining.client.errors import ClientError
from pstraining.client.program import JobProgram, is_word
from pstraining.resources.resource_requests import parse

Object = dict[str, Any]
PROGRAM_DIR: Final = "/opt/program"
"""Folder in which the program's files are mounted."""
PACKAGES_DIR: Final = "/opt/packages"
"""Folder in which packages are installed."""
_DOLLARS: Final = re.compile(r"\$\$(?!\()")
_FILE: Final = re.compile(r"(?!\.\.)[\w.-]{1,253}", re.ASCII)
"""The names that keys of a ConfigMap may have."""
_PROGRAM, _PACKAGES = "program", "packages"
_COMPUTE: Final = ("cpu", "memory", "ephemeral-storage")
"""The resources of each container that a ResourceQuota or a LimitRange may require."""


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The options of `Client.train`, besides the program.

    Raises:
        ClientError: an option has another type than these.
    """

    ps: int = 1
    workers: int = 1
    image: str = ""
    packages: Sequence[str] = ()
    training: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: str | Mapping[str, Any] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("ps", "workers"):
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool):
                raise ClientError(f"{name}: it must be a whole number, is {number!r}.")
        for name in ("training", "resources", "env", "spec"):
            if not isinstance(given := getattr(self, name), Mapping):
                raise ClientError(f"{name}: it must be a dict, is {given!r}.")
        if not isinstance(self.image, str):
            raise ClientError(f"image: it must be a text, is {self.image!r}.")
        _check_packages(self.packages)
        _check_variables(self.env)
        _check_names(self.resources, "resources")
        if not isinstance(self.checkpoint, str | Mapping | None):
            raise ClientError(f"checkpoint: it must be the size of a claim, a URI or a dict, is {self.checkpoint!r}.")
        if self.checkpoint == "":
            raise ClientError("checkpoint: it is empty: write the size of a claim or a URI, or leave it out.")
        # The texts of a flat dict's values are quantities, such as those of a Decimal or of NumPy's numbers.
        as_is = ("resources",) if _is_whole(self.resources) else ()
        for name in ("training", "checkpoint", "spec", *as_is):
            for path, value in _without_json(getattr(self, name), name):
                raise ClientError(f"{path}: it must be a number, text, boolean, None, list or dict, is {value!r}.")


def _check_packages(given: object) -> None:
    """Check that requirements are a list of texts.

    Raises:
        ClientError: they are not.
    """
    # A later check would use an iterator up.
    listed = [*given] if isinstance(given, Iterator) else [given] if isinstance(given, str) else None
    if listed is not None:
        raise ClientError(f"packages: it must be a list of requirements, such as {listed}.")
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise ClientError(f"packages: it must be a list of requirements, such as ['keras>=3'], is {given!r}.")
    if wrong := [requirement for requirement in given if not isinstance(requirement, str)]:
        raise ClientError(f"packages: requirements are texts, but one is {wrong[0]!r}.")


def _check_variables(given: Mapping[Any, Any]) -> None:
    """Check the names and the values of environment variables.

    Raises:
        ClientError: a name is not a text, or a value is neither a text nor a number.
    """
    _check_names(given, "env")
    if unset := [name for name, value in given.items() if value is None]:
        raise ClientError(f"env: {', '.join(unset)} is None: give it a text, or leave it out.")
    if wrong := [
        f"{name} must be a text or a number, is {value!r}" for name, value in given.items() if not is_word(value)
    ]:
        raise ClientError(f"env: {wrong[0]}.")


def _check_names(given: Mapping[Any, Any], path: str) -> None:
    """Check that the names of a dict are texts, as those of JSON.

    Raises:
        ClientError: a name is not a text.
    """
    if wrong := [name for name in given if not isinstance(name, str)]:
        raise ClientError(f"{path}: names must be texts, but one is {wrong[0]!r}.")


def _without_json(value: Any, *steps: str | int) -> Iterator[tuple[str, Any]]:
    """Yield the values that JSON does not have, each with its path."""
    if isinstance(value, Mapping):
        _check_names(value, path_of(steps))
        for name, item in value.items():
            yield from _without_json(item, *steps, name)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _without_json(item, *steps, index)
    elif not isinstance(value, str | int | float | None) or (isinstance(value, float) and not math.isfinite(value)):
        yield path_of(steps), value


def config_map_name(job: str) -> str:
    """Return the name of the ConfigMap with the program of a job."""
    return f"{job}-program"


def build_job(name: str, namespace: str, program: JobProgram, options: JobOptions) -> Object:
    """Return the PSTrainingJob.

    Raises:
        ClientError: the image is missing, or a ConfigMap cannot have the name of a file.
    """
    if not options.image:
        raise ClientError(
            "image: name the image of the job. Your cluster must be able to pull it, and it must contain pstraining."
        )
    if wrong := [file for file in program.files if not _FILE.fullmatch(file)]:
        raise ClientError(
            f"{', '.join(wrong)}: on a cluster, names of functions and files may only have ASCII letters, digits, "
            "'_', '-' and '.': choose another name."
        )
    container: Object = {
        "name": names.MAIN_CONTAINER,
        "image": options.image,
        "command": ["python", f"{PROGRAM_DIR}/{program.main}", *map(_literal, program.arguments)],
        "env": [{"name": key, "value": _literal(str(value))} for key, value in options.env.items()],
        "volumeMounts": [{"name": _PROGRAM, "mountPath": PROGRAM_DIR, "readOnly": True}],
    }
    if options.resources:
        container["resources"] = _resources(options.resources)
    pod: Object = {
        "containers": [container],
        "volumes": [{"name": _PROGRAM, "configMap": {"name": config_map_name(name)}}],
    }
    if options.packages:
        _add_packages(pod, container, options)
    spec: Object = {
        "ps": {"replicas": options.ps},
        "worker": {"replicas": options.workers, "template": {"spec": pod}},
    }
    if options.training:
        spec["training"] = dict(options.training)
    if options.checkpoint is not None:
        spec["checkpoint"] = checkpoint_of(options.checkpoint)
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": merged(spec, options.spec),
    }


def build_config_map(job: Object, program: JobProgram) -> Object:
    """Return the ConfigMap of a stored job's program; Kubernetes deletes it with the job."""
    metadata = job["metadata"]
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "immutable": True,
        "metadata": {
            "name": config_map_name(metadata["name"]),
            "namespace": metadata["namespace"],
            "ownerReferences": [owner],
        },
        "data": dict(program.files),
    }


def _literal(text: str) -> str:
    """Return the text for a field in which the kubelet replaces $$ by $. References such as $(NAME) stay."""
    return _DOLLARS.sub("$$$$", text)


def _is_whole(resources: Mapping[str, Any]) -> bool:
    """Return whether resources have the fields of a container's resources, and are not a flat dict of amounts."""
    return set(resources) <= {"requests", "limits", "claims"}


def _resources(wanted: Mapping[str, Any]) -> Object:
    """Return a container's resources. The entries of a flat dict are requests and, except for the CPU, limits."""
    if _is_whole(wanted):
        return copy.deepcopy(dict(wanted))
    flat = {name: value if isinstance(value, int) else str(value) for name, value in wanted.items()}
    return {"requests": flat, "limits": {name: value for name, value in flat.items() if name != "cpu"}}


def _of_roles(spec: Mapping[str, Any]) -> list[object]:
    """Return the resources of the roles in a spec, whose pods all have the init containers of a worker."""
    roles = [spec.get(role) for role in names.ROLES]
    return [role.get("resources") for role in roles if isinstance(role, Mapping)]


def _smallest(given: Sequence[object]) -> Object:
    """Return the resources of a container that runs before others, in pods of several roles; empty without any.

    A namespace with a ResourceQuota refuses containers without them. With the smallest amounts of all roles, no pod
    requests more than without this container. It needs no devices.
    """
    fields: Object = {}
    for found in (found for found in given if isinstance(found, Mapping)):
        limits, requests = (_amounts(found, kind) for kind in ("limits", "requests"))
        for kind, amounts in (("limits", limits), ("requests", {**limits, **requests})):
            for name in (name for name in _COMPUTE if name in amounts):
                chosen = fields.setdefault(kind, {})
                chosen[name] = min(amounts[name], chosen.get(name, amounts[name]), key=_amount)
    return {"resources": fields} if fields else {}


def _amounts(resources: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    amounts = resources.get(kind)
    return amounts if isinstance(amounts, Mapping) else {}


def _amount(quantity: Any) -> Decimal:
    try:
        return parse(quantity)
    except ValueError:
        return Decimal(0)  # the API server refuses it, wherever it is


def checkpoint_of(wanted: str | Mapping[str, Any]) -> Object:
    """Return spec.checkpoint. A text is the URI of an object store, or the size of a claim."""
    if not isinstance(wanted, str):
        return copy.deepcopy(dict(wanted))
    if "://" in wanted:
        return {"uri": wanted}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": wanted}}}
    return {"volumeClaimTemplate": claim}


def _add_packages(pod: Object, container: Object, options: JobOptions) -> None:
    """Add an init container that installs packages. If it fails, the pod fails with pip's message."""
    mount = {"name": _PACKAGES, "mountPath": PACKAGES_DIR}
    install = [
        "python",
        "-m",
        "pip",
        "install",
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--target",
        PACKAGES_DIR,
    ]
    pod["initContainers"] = [
        {
            "name": "install-packages",
            "image": options.image,
            "command": [*install, *map(_literal, options.packages)],
            "env": [*container["env"], {"name": "HOME", "value": PACKAGES_DIR}],
            "volumeMounts": [mount],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            **_smallest([container.get("resources"), *_of_roles(options.spec)]),
        }
    ]
    pod["volumes"].append({"name": _PACKAGES, "emptyDir": {}})
    container["volumeMounts"].append(mount)
    path = next((e for e in container["env"] if e["name"] == "PYTHONPATH"), None)
    if path is None:
        container["env"].append({"name": "PYTHONPATH", "value": PACKAGES_DIR})
    else:
        path["value"] = f"{path['value']}:{PACKAGES_DIR}"
