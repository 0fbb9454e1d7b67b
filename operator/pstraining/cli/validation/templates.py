"""Validates the Kubernetes objects in a job, which are opaque to its CRD: pod templates, volumes and claims.

The API server accepts such a job and would reject the operator's pods, which the condition InvalidTemplate reports.
Names and types of fields are those of the Kubernetes client, and `values` has the rules for their values. Further
checks apply to the pods that the operator would render. Decisions of admission (quotas, policies) are not checked.
"""

import posixpath
import re
import typing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from pstraining.api import contract, names
from pstraining.api.models import PSTrainingJob
from pstraining.api.nulls import without_nulls
from pstraining.api.numbers import number
from pstraining.api.read_fields import must
from pstraining.api.values import path_of
from pstraining.cli.validation import overridden
from pstraining.cli.validation.blanks import blank
from pstraining.cli.validation.on_nodes import not_started
from pstraining.cli.validation.quantities import Steps
from pstraining.cli.validation.schema import Finding, Severity, did_you_mean
from pstraining.cli.validation.values import wrong_values
from pstraining.resources import pods
from pstraining.resources.containers import all_containers
from pstraining.resources.launcher import LauncherMap
from pstraining.resources.pods import PodTask

_ROLES = (names.PS, names.WORKER, names.CHIEF, names.EVALUATOR)
_QUANTITIES = {"limits", "requests", "sizeLimit", "divisor"}
"""Fields that accept a number instead of a text."""
_RESERVED = "PSTRAINING_"
"""Beginning of the names of the operator's variables."""
_FOR_ANY_USER = "NET_BIND_SERVICE"
"""A capability that the standard "restricted" permits, because container runtimes let any user bind low ports."""
_LEAVES = re.compile(r"(\.env\[\d+\]\.value|\bmetadata\.(labels|annotations)\..+|\.nodeSelector\..+|Probe\..+)$")
"""Fields that are copied into pods unread: if one is wrong, the other fields can still be checked."""


def refused(job: Mapping[str, Any]) -> list[Finding]:
    """Return the findings about a job's Kubernetes objects, if the job is valid by its CRD.

    Args:
        job: the job as in a manifest.
    """
    job = {**job, "metadata": without_nulls(job["metadata"]), "spec": without_nulls(job["spec"])}
    found, are_sound = _unrendered(job)
    if not are_sound:
        return found
    # Roles can share a template.
    roles: dict[Finding, list[str]] = {}
    for role, finding in _rendered(job):
        roles.setdefault(finding, []).append(role)
    return [*found, *(replace(f, message=f"{f.message} (pods of {', '.join(r)})") for f, r in roles.items())]


def misfits(job: Mapping[str, Any]) -> list[Finding]:
    """Return the unknown fields, wrong types and wrong values in a job's Kubernetes objects.

    Args:
        job: the job without nulls.
    """
    return _unrendered(job)[0]


def is_sound(job: Mapping[str, Any]) -> bool:
    """Return whether the types in a job's Kubernetes objects are right, as `of_other_effect` needs them.

    Args:
        job: the job without nulls, valid by its CRD.
    """
    return _unrendered(job)[1]


def of_other_effect(job: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the fields that have another effect in a job than in a pod of one's own, as warnings.

    Args:
        job: a job as in a manifest. Its templates may have wrong values, but no wrong types.
    """
    yield from blank(job["spec"], ("spec",))
    yield from _of_other_effect(without_nulls(job["spec"]))


def _unrendered(job: Mapping[str, Any]) -> tuple[list[Finding], bool]:
    """Return the findings about a job's objects, and whether their types are right, so that pods can be rendered."""
    found = [finding for steps, value, model in _parts(job) for finding in _misfits(steps, value, model)]
    are_sound = all(f.severity is Severity.WARNING or _LEAVES.search(f.field) for f in found)
    if are_sound:
        found += [finding for steps, value, _ in _parts(job) for finding in wrong_values(steps, value, f".{steps[-1]}")]
        found += wrong_values(("spec",), _copied_into_pods(job["spec"]))
        found += _not_in_templates(job)
    return [*found, *overridden.names_and_marks(job), *overridden.probe(job["spec"].get(names.PS) or {})], are_sound


def _copied_into_pods(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a job's own fields that are copied into pods, where Kubernetes checks their values."""
    policy = (spec.get("runPolicy") or {}).get("schedulingPolicy") or {}
    return {"network": spec.get("network") or {}, "runPolicy": {"schedulingPolicy": policy}}


def _not_in_templates(job: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the fields of pods that Kubernetes refuses in the templates of Deployments and StatefulSets."""
    for role in _ROLES:
        spec = ((job["spec"].get(role) or {}).get("template") or {}).get("spec") or {}
        if (spec.get("os") or {}).get("name") not in (None, "", "linux"):
            path = path_of(("spec", role, "template", "spec", "os", "name"))
            yield Finding(path, "must be linux: the launcher, and the users and rights of pods, are Linux'; remove it")
        if spec.get("ephemeralContainers"):
            path = path_of(("spec", role, "template", "spec", "ephemeralContainers"))
            yield Finding(path, "cannot be in a template: they are added to pods that run")
        if role in (names.PS, names.WORKER) and spec.get("activeDeadlineSeconds") is not None:
            path = path_of(("spec", role, "template", "spec", "activeDeadlineSeconds"))
            yield Finding(path, "cannot be in the template of a Deployment; use spec.runPolicy.activeDeadlineSeconds")


def _of_other_effect(of_job: Mapping[str, Any]) -> Iterator[Finding]:
    yield from overridden.marks_of_claims(of_job)
    for role in _ROLES:
        template, steps = (of_job.get(role) or {}).get("template") or {}, ("spec", role, "template")
        yield from overridden.in_template(of_job, role)
        if (template.get("metadata") or {}).get("finalizers"):
            path = path_of((*steps, "metadata", "finalizers"))
            message = "keep the pods, and with them the job, until another program removes them; remove them here"
            yield Finding(path, message, Severity.WARNING)
        spec = template.get("spec") or {}
        if spec.get("setHostnameAsFQDN"):
            path = path_of((*steps, "spec", "setHostnameAsFQDN"))
            message = "makes the hostname one like JOB-worker-0.JOB-hs.NAMESPACE.svc.cluster.local: with more than 64 "
            yield Finding(path, f"{message}characters, a pod does not start; remove it", Severity.WARNING)
        if spec.get("terminationGracePeriodSeconds") == 0:
            path = path_of((*steps, "spec", "terminationGracePeriodSeconds"))
            message = "is 0: pods end at once, so that a chief cannot save its state; use a larger number, or remove it"
            yield Finding(path, message, Severity.WARNING)
        yield from not_started(spec, (*steps, "spec"))
        for kind in ("initContainers", "containers"):
            for index, container in enumerate(spec.get(kind) or ()):
                yield from _of_other_effect_in(container, spec, (*steps, "spec", kind, index))
                if kind == "initContainers":
                    yield from _variables_of_init(container, (*steps, "spec", kind, index))
                    is_beside = container.get("restartPolicy") == "Always"
                else:
                    is_beside = container is not pods.main_container(spec)
                    if not is_beside:
                        yield from _unreadable_variables(container, (*steps, "spec", kind, index))
                        yield from _ignored_stop(container, (*steps, "spec", kind, index))
                    if not is_beside and role != names.PS:
                        yield from _probes_while_it_waits(container, (*steps, "spec", kind, index))
                if is_beside:
                    yield from _ports_beside(container, (*steps, "spec", kind, index))


def _ignored_stop(container: Mapping[str, Any], steps: Steps) -> Iterator[Finding]:
    """Yield a signal on which the launcher does not stop, so that no chief saves, and no server hands over."""
    stop = (container.get("lifecycle") or {}).get("stopSignal")
    if stop not in (None, "SIGTERM", "SIGINT", "SIGQUIT", "SIGRTMIN+3"):
        message = f"is {stop}, which does not stop the launcher: the pod runs until the end of its grace period"
        path = path_of((*steps, "lifecycle", "stopSignal"))
        yield Finding(path, f"{message}; use SIGTERM, or remove it", Severity.WARNING)


def _probes_while_it_waits(container: Mapping[str, Any], steps: Steps) -> Iterator[Finding]:
    """Yield the probes that end a training container while its launcher waits for parameter servers."""
    if container.get("livenessProbe"):
        message = "also runs while the launcher waits for parameter servers, such as after a loss: "
        path = path_of((*steps, "livenessProbe"))
        yield Finding(path, f"{message}a restart then counts as a failure; remove it", Severity.WARNING)
    if probe := container.get("startupProbe"):
        defaults = {"initialDelaySeconds": 0, "periodSeconds": 10, "failureThreshold": 3}
        delay, period, tries = (probe.get(name) or default for name, default in defaults.items())
        if not all(isinstance(found, int) for found in (delay, period, tries)):
            return  # it is reported as a wrong type
        seconds = delay + period * tries
        given = {variable["name"]: str(variable.get("value")) for variable in container.get("env") or ()}
        asked = number(given.get(contract.ENV_START_TIMEOUT))
        timeout = contract.START_TIMEOUT_SECONDS if asked is None else asked
        if seconds < timeout:
            message = f"ends the container after {seconds} s, but the launcher waits for parameter servers up to "
            path = path_of((*steps, "startupProbe"))
            yield Finding(path, f"{message}{timeout} s; raise failureThreshold", Severity.WARNING)


def _unreadable_variables(container: Mapping[str, Any], steps: Steps) -> Iterator[Finding]:
    """Yield the operator's variables in a template whose value the launcher or the runtime cannot read."""
    for index, variable in enumerate(container.get("env") or ()):
        name, value = variable["name"], variable.get("value") or ""
        if name not in contract.ENV_OF_TEMPLATES or not value or "$(" in value:
            continue
        found = number(value)
        if name == contract.ENV_START_TIMEOUT and found is None:
            message = (
                f"is {value!r}, and the launcher ends with an error: write a whole number of seconds, such as 1800"
            )
        elif name == contract.ENV_METRICS_PORT and (found is None or found >= 2**16):
            message = f"is {value!r}, so there are no metrics: write the number of a port, or 0 for any free port"
        else:
            continue
        yield Finding(path_of((*steps, "env", index, "value")), message, Severity.WARNING)


def _variables_of_init(container: Mapping[str, Any], steps: Steps) -> Iterator[Finding]:
    """Yield the variables of an init container that the CRD refuses in containers."""
    for index, variable in enumerate(container.get("env") or ()):
        name = str(variable.get("name"))
        if name == "TF_CONFIG" or (name.startswith(_RESERVED) and name not in contract.ENV_OF_TEMPLATES):
            message = "is the operator's, which sets it in the training container alone; choose another name"
            yield Finding(path_of((*steps, "env", index, "name")), message, Severity.WARNING)


def _ports_beside(container: Mapping[str, Any], steps: Steps) -> Iterator[Finding]:
    """Yield the ports of a sidecar that the launcher or TensorFlow uses: a pod's containers share them."""
    for index, port in enumerate(container.get("ports") or ()):
        if port.get("containerPort") in contract.RESERVED_PORTS and pods.is_tcp(port):
            first, last = contract.RESERVED_PORTS[0], contract.RESERVED_PORTS[-1]
            ours = f"TCP ports {first} to {last} of a pod are the operator's; let the container use another"
            message = f"is {port['containerPort']}: {ours}"
            yield Finding(path_of((*steps, "ports", index, "containerPort")), message, Severity.WARNING)


def _of_other_effect_in(container: Mapping[str, Any], spec: Mapping[str, Any], steps: Steps) -> Iterator[Finding]:
    for index, source in enumerate(container.get("envFrom") or ()):
        if str(source.get("prefix") or "").startswith(_RESERVED):
            path = path_of((*steps, "envFrom", index, "prefix"))
            message = f"gives names that start with {_RESERVED}, which are reserved; choose another prefix"
            yield Finding(path, message, Severity.WARNING)
    context = {**(spec.get("securityContext") or {}), **(container.get("securityContext") or {})}
    added = [str(name).removeprefix("CAP_") for name in (context.get("capabilities") or {}).get("add") or ()]
    useless = [name for name in added if name != _FOR_ANY_USER]
    if useless and not context.get("privileged") and not {"runAsUser", "runAsNonRoot"} & context.keys():
        path = path_of((*steps, "securityContext", "capabilities", "add"))
        message = f"{useless[0]} usually has no effect without a user, because the container does not run as root"
        yield Finding(path, f"{message}; set runAsUser, to 0 for root", Severity.WARNING)


def _parts(job: Mapping[str, Any]) -> Iterator[tuple[Steps, Any, type[BaseModel]]]:
    """Yield the Kubernetes objects in a job, each with its path and model."""
    from kubernetes import client

    spec = job["spec"]
    yield ("metadata",), job["metadata"], client.V1ObjectMeta
    for role in _ROLES:
        own = spec.get(role) or {}
        if own.get("template") is not None:
            yield ("spec", role, "template"), own["template"], client.V1PodTemplateSpec
        if own.get("resources"):
            yield ("spec", role, "resources"), own["resources"], client.V1ResourceRequirements
    placement = ((spec.get(names.PS) or {}).get("standby") or {}).get("placement")
    if placement:
        # The model of a pod's spec requires containers, which a placement does not have.
        yield ("spec", names.PS, "standby", "placement"), {"containers": [], **placement}, client.V1PodSpec
    checkpoint = spec.get("checkpoint") or {}
    if checkpoint.get("volume"):
        yield ("spec", "checkpoint", "volume"), {"name": "checkpoint", **checkpoint["volume"]}, client.V1Volume
    claim = client.V1PersistentVolumeClaimSpec
    if checkpoint.get("volumeClaimTemplate"):
        yield ("spec", "checkpoint", "volumeClaimTemplate"), checkpoint["volumeClaimTemplate"], claim
    for index, one in enumerate((spec.get(names.PS) or {}).get("volumeClaimTemplates") or ()):
        template = ("spec", names.PS, "volumeClaimTemplates", index)
        yield (*template, "metadata"), one["metadata"], client.V1ObjectMeta
        yield (*template, "spec"), one["spec"], claim


def _misfits(steps: Steps, value: Any, model: type[BaseModel]) -> Iterator[Finding]:
    """Yield the unknown fields and wrong types in one object."""
    try:
        model.model_validate(value)
    except ValidationError as error:
        for one in error.errors(include_url=False):
            place, given = one["loc"], one["input"]
            path = path_of((*steps, *place))
            if one["type"] == "extra_forbidden":
                hint = did_you_mean(str(place[-1]), _fields(_model_at(model, place[:-1])))
                yield Finding(path, f"is not a known field of Kubernetes{hint}", Severity.WARNING)
            elif one["type"] == "missing":
                yield Finding(path, "is required")
            elif not (isinstance(given, (int, float)) and one["type"] == "string_type" and _QUANTITIES & {*place}):
                yield Finding(path, f"{must(one['msg'])}, is {given!r}")


def _model_at(model: type[BaseModel] | None, place: Sequence[str | int]) -> type[BaseModel] | None:
    for step in place:
        if isinstance(step, str) and model is not None:
            field = next((f for name, f in model.model_fields.items() if (f.serialization_alias or name) == step), None)
            model = None if field is None else _inner(field.annotation)
    return model


def _inner(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside Optional, List and similar annotations."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := _inner(part)) is not None), None)


def _fields(model: type[BaseModel] | None) -> list[str]:
    return [] if model is None else [f.serialization_alias or name for name, f in model.model_fields.items()]


def _rendered(job: Mapping[str, Any]) -> Iterator[tuple[str, Finding]]:
    """Yield the findings about the pods that the operator would render, each with the pods' role."""
    typed = PSTrainingJob.model_validate({"spec": job["spec"], "metadata": {"name": "job", "namespace": "", "uid": ""}})
    spec = typed.spec
    roles = {
        names.WORKER: spec.worker.template,
        names.PS: spec.ps.template,
        names.CHIEF: spec.chief.template if spec.chief.enabled else {},
        names.EVALUATOR: spec.evaluator.template if spec.evaluator.enabled else {},
    }
    for role, template in roles.items():
        if template != {}:
            task = PodTask(role, None if role == names.PS else 0, 1)
            made = pods.build(typed, task, LauncherMap("launcher"))["spec"]
            claims = [c.metadata.name for c in spec.ps.volume_claim_templates] if role == names.PS else []
            owner = names.WORKER if template is None else role
            path = f"spec.{owner}.template.spec"
            yield from ((role, f) for f in _asked_of_pod(made, claims, path))
            given = spec.worker.template if template is None else template
            yield from ((role, f) for f in overridden.ports_left_out(given["spec"], made, f"{path}.containers"))


def _asked_of_pod(spec: Mapping[str, Any], claims: list[str], path: str) -> Iterator[Finding]:
    yield from _names_that_resolve(spec, path)
    volumes = [v["name"] for v in spec.get("volumes") or ()]
    for name in _twice(volumes):
        ours = ": the operator adds a volume with this name; choose another name" if name in names.VOLUMES else ""
        yield Finding(f"{path}.volumes", f"has {name} twice{ours}")
    containers = all_containers(spec)
    for name in _twice([c["name"] for c in containers]):
        yield Finding(f"{path}.containers", f"has {name} twice")
    for container in containers:
        where = f"container {container['name']}"
        if not container.get("image"):
            yield Finding(f"{path}.containers", f"{where} has no image")
        ports = [port.get("name") for port in container.get("ports") or ()]
        for name in (name for name in contract.PORTS if ports.count(name) > 1):
            ours = f"the operator has a port with this name, {contract.PORTS[name]}; choose another name"
            yield Finding(f"{path}.containers", f"{where} has the port name {name} twice: {ours}")
        yield from _ports_of_probes(container, f"{path}.containers")
        mounts = container.get("volumeMounts") or ()
        # POSIX keeps two slashes at the beginning.
        places = [posixpath.normpath(m["mountPath"]).replace("//", "/") for m in mounts]
        for place in (p for p in places if contract.MOUNT_DIR in places and p.startswith(f"{contract.MOUNT_DIR}/")):
            ours = f"in the operator's read-only volume {contract.MOUNT_DIR}: the container cannot start"
            yield Finding(f"{path}.containers", f"{where} mounts {place} {ours}; choose another path")
        for mounted in _twice(places):
            ours = "; the operator mounts /pstraining, /run/pstraining and, in the chief, spec.checkpoint.path"
            yield Finding(f"{path}.containers", f"{where} mounts {mounted} twice{ours}")
        for name in {m["name"]: None for m in mounts}:
            if name not in (*volumes, *claims):
                yield Finding(f"{path}.containers", f"{where} mounts {name}, which is not a volume")


def _ports_of_probes(container: Mapping[str, Any], path: str) -> Iterator[Finding]:
    """Warn if a probe or a hook names a port that the container does not have in the operator's pods."""
    ports = [port.get("name") for port in container.get("ports") or ()]
    handlers = {name: probe for name, probe in container.items() if name.endswith("Probe")}
    for name, handler in {**handlers, **(container.get("lifecycle") or {})}.items():
        targets = [handler.get(kind) for kind in ("httpGet", "tcpSocket") if isinstance(handler, Mapping)]
        asked = [target.get("port") for target in targets if isinstance(target, Mapping)]
        for port in (port for port in asked if isinstance(port, str) and port not in ports):
            message = f"container {container['name']}: {name} names the port {port}, which the container does not have"
            ours = f"; here {contract.TF_PORT} is {contract.TF_PORT_NAME}"
            yield Finding(path, f"{message}{ours}", Severity.WARNING)


def _names_that_resolve(spec: Mapping[str, Any], path: str) -> Iterator[Finding]:
    """Warn if short names of Services, which tasks use, do not resolve without the cluster's search domains."""
    policy = spec.get("dnsPolicy") or "ClusterFirst"
    searches = (spec.get("dnsConfig") or {}).get("searches") or ()
    if policy in ("Default", "None") and not any(".svc." in f"{search}." for search in searches):
        yield Finding(
            f"{path}.dnsPolicy",
            f"is {policy}, and no search domain of dnsConfig is a namespace's, such as default.svc.cluster.local: "
            "tasks wait, because they cannot resolve each other's names",
            Severity.WARNING,
        )


def _twice(items: list[str]) -> list[str]:
    return [item for item, times in Counter(items).items() if times > 1]
