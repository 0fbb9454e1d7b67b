"""Renders a task's pod template: the user's template, with the launcher before its command and with safe defaults.

The user's template wins, except for the fields that make a pod a task of a job: the wrapped command and its restarts,
the identity (labels and annotations of pstraining.dev), the volumes under /pstraining and /run/pstraining, and the host
names.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pstraining.api import contract, names
from pstraining.api.models import PSTrainingJob, Role
from pstraining.api.run_policy import RestartPolicy
from pstraining.api.values import copied
from pstraining.resources import (
    checkpoint_volume,
    cluster_map,
    devices,
    gang,
    placement,
    resource_requests,
    security,
    sizes,
    standbys,
    tolerations,
)
from pstraining.resources.containers import all_containers
from pstraining.resources.installation import (
    STANDARD,
    Installation,
    ProgressEndpoint,
    progress_audience,
    progress_path,
)
from pstraining.resources.launcher import LauncherMap
from pstraining.resources.metadata import on_template, role_labels

TOKEN_SECONDS = 3600
"""Seconds for which a token for reports of progress is valid; the kubelet renews it earlier."""

RESTART_FIELDS: Final = ("restartPolicy", "restartPolicyRules")
"""Fields of a container by which its kubelet restarts it (KEP-5307). For the training container, the role decides."""
_ESCAPED_TF_CONFIG: Final = re.compile(r"\${2,}(?=\(TF_CONFIG\))")
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_CONTRACT_VOLUME, _RUN_VOLUME, _ = names.VOLUMES


@dataclass(frozen=True)
class PodTask:
    """The task of a pod. The pods of a StatefulSet share one template, so a PS has no index here."""

    role: str
    index: int | None = None
    term: int | None = None
    """The attempt's number, the chief's term; for a PS, the chief's newest term when its template was rendered."""
    member: int = 0


def build(
    job: PSTrainingJob, task: PodTask, launcher: LauncherMap, installation: Installation = STANDARD
) -> dict[str, Any]:
    """Return the pod template of one task.

    Args:
        job: the owner.
        task: the task.
        launcher: the launcher's ConfigMap.
        installation: how the operator is installed.
    """
    template = _template(job, task.role)
    metadata, spec = template.setdefault("metadata", {}) or {}, template["spec"]
    labels = role_labels(job, task.role, task.index)
    if task.role in (names.CHIEF, names.EVALUATOR) and task.term is not None:
        labels |= {number_label(task.role): str(task.term)}
    if task.role == names.PS:
        labels |= {names.LABEL_MEMBER: str(task.member)}
        if standbys.standbys(job):
            standbys.place(job, task.member, spec)
            standbys.keep_apart(job, spec)
    container = main_container(spec)
    annotations = {
        names.ANNOTATION_CLUSTER_HASH: cluster_map.digest(job, task.role, task.term or 1),
        names.ANNOTATION_CONTAINER: container["name"],
    }
    if task.role == names.PS and standbys.is_hot(job):
        annotations |= {names.ANNOTATION_SERVER_TEMPLATE: standbys.server_template(job)}
    _set_resources(job, task.role, container)
    template["metadata"] = {
        **metadata,
        "labels": on_template(metadata.get("labels"), labels),
        "annotations": on_template(
            metadata.get("annotations"), annotations | {names.ANNOTATION_SIZE: sizes.text(container)}
        ),
    }
    _wrap(job, task, container, launcher)
    if task.role == names.PS and standbys.is_hot(job):
        # Evictions and replacements of a shard's members wait for this: another probe would let them lose updates.
        container["readinessProbe"] = _readiness(job, task)
    elif task.role == names.PS or launcher.is_current:
        container.setdefault("readinessProbe", _readiness(job, task))
    grace = spec.get("terminationGracePeriodSeconds")
    if has_chief_duty(job, task) and isinstance(grace, int):
        container["env"] = [{"name": contract.ENV_GRACE, "value": str(grace)}, *container["env"]]
    _mount(job, task, spec, container, launcher)
    if installation.progress is not None and has_chief_duty(job, task):
        _accept_progress(job, spec, container, installation.progress)
    _name(job, task, spec)
    placement.prefer(job, task.role, spec)
    gang.join(job, template["metadata"], spec)
    tolerations.tolerate(job, spec)
    spec.setdefault("enableServiceLinks", False)
    spec.setdefault("automountServiceAccountToken", False)
    security.restrict(spec, ids=installation.sets_ids)
    return template


def sized(job: PSTrainingJob, role: str) -> dict[str, Any]:
    """Return the pod spec of a role from which sizes follow: its containers have the resources of rendered pods.

    Args:
        job: the job.
        role: the role.
    """
    spec: dict[str, Any] = _template(job, role)["spec"]
    _set_resources(job, role, main_container(spec))
    return spec


def main_container(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the wrapped container: the one named `tensorflow`, or else the only one."""
    containers: list[dict[str, Any]] = spec["containers"]
    return next((c for c in containers if c.get("name") == names.MAIN_CONTAINER), containers[0])


def gang_requests(job: PSTrainingJob, members: gang.GangMembers) -> dict[str, str]:
    """Return the sum of the resource requests of a gang's pods, as quantities."""
    tasks = (
        (PodTask(names.PS), members.ps),
        (PodTask(names.CHIEF, term=1), members.chief),
        (PodTask(names.WORKER, 0), members.workers),
    )
    return resource_requests.total(
        (count, resource_requests.of_pod(build(job, task, LauncherMap(""))["spec"])) for task, count in tasks if count
    )


def number_label(role: str) -> str:
    """Return the label for the number of an attempt."""
    return names.LABEL_TERM if role == names.CHIEF else names.LABEL_ATTEMPT


def has_chief_duty(job: PSTrainingJob, task: PodTask) -> bool:
    """Whether this task coordinates, checkpoints and decides the job's success."""
    if job.spec.chief.enabled:
        return task.role == names.CHIEF
    return task.role == names.WORKER and task.index == 0


def _template(job: PSTrainingJob, role: str) -> dict[str, Any]:
    spec = job.spec
    own = {
        names.PS: spec.ps.template,
        names.CHIEF: spec.chief.template,
        names.EVALUATOR: spec.evaluator.template,
    }.get(role)
    template = copied(spec.worker.template if own is None else own)
    if own is None and role != names.WORKER:
        drop_devices(template["spec"], spec.worker.resources)
        drop_probes(template["spec"])
    if role in names.ATTEMPT_LABELS:
        _drop_resize_policies(template["spec"])
    return template


def drop_devices(spec: dict[str, Any], own: Mapping[str, Any] | None = None) -> None:
    """Remove the accelerators from the pod of a role that uses the worker's template.

    Args:
        spec: the pod's spec; it is changed.
        own: the resources in spec.worker.
    """
    devices.drop(spec, own)
    container = main_container(spec)
    container["env"] = [e for e in container.get("env") or () if e["name"] != "CUDA_VISIBLE_DEVICES"]
    container["env"].append({"name": "CUDA_VISIBLE_DEVICES", "value": ""})


def drop_probes(spec: dict[str, Any]) -> None:
    """Remove the probes of the worker's program from the pod of a role that uses the worker's template.

    Args:
        spec: the pod's spec; it is changed.
    """
    container = main_container(spec)
    for probe in _PROBES:
        container.pop(probe, None)


def _drop_resize_policies(spec: dict[str, Any]) -> None:
    """Remove the policies of resizes: Kubernetes 1.33 or newer refuses restarts in pods that never restart."""
    for container in all_containers(spec):
        container.pop("resizePolicy", None)


def _set_resources(job: PSTrainingJob, role: str, container: dict[str, Any]) -> None:
    spec = job.spec
    own = {
        names.PS: spec.ps.resources,
        names.WORKER: spec.worker.resources,
        names.CHIEF: spec.chief.resources,
        names.EVALUATOR: spec.evaluator.resources,
    }.get(role)
    if own is not None:
        # The resources of a role have no claims, by which the container gets the devices of its pod.
        claims = (container.get("resources") or {}).get("claims")
        container["resources"] = ({"claims": claims} if claims else {}) | copied(own)


def _wrap(job: PSTrainingJob, task: PodTask, container: dict[str, Any], launcher: LauncherMap) -> None:
    command = [*(container.get("command") or ()), *(container.pop("args", None) or ())]
    if launcher.is_current:
        command = list(map(_for_launcher, command))
    container["command"] = [*contract.LAUNCH_COMMAND, *command]
    for field in RESTART_FIELDS:
        container.pop(field, None)
    container["env"] = [*_identity(job, task), *_gpus(container), *(container.get("env") or ())]
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    own = _own_ports(job, task)
    ports = [p for p in container.get("ports") or () if not (p.get("containerPort") in own and is_tcp(p))]
    container["ports"] = [
        *({"name": n, "containerPort": p, "protocol": "TCP"} for p, n in own.items()),
        *ports,
    ]


def _for_launcher(word: Any) -> Any:
    """Return a word of a command from which the kubelet makes the word as it is in the template, as for $$(TF_CONFIG).

    Only the launcher knows the value of TF_CONFIG. It then distinguishes a reference from an escaped one.
    """
    return _ESCAPED_TF_CONFIG.sub(lambda dollars: 2 * dollars[0], word) if isinstance(word, str) else word


def is_tcp(port: Mapping[str, Any]) -> bool:
    """Return whether a container's port is one of TCP, as by default."""
    return port.get("protocol") in (None, "", "TCP")


def _gpus(container: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the variable with the number of GPUs in the container's limits, such as nvidia.com/gpu."""
    asked = resource_requests.of_container({"resources": {"limits": (container.get("resources") or {}).get("limits")}})
    number = sum(int(amount) for name, amount in asked.items() if name.endswith("/gpu"))
    return [{"name": contract.ENV_GPUS, "value": str(number)}] if number > 0 else []


def _readiness(job: PSTrainingJob, task: PodTask) -> dict[str, Any]:
    """Return the readiness probe: a PS is ready if it serves, another role if its program runs."""
    is_ps = task.role == names.PS
    return {
        "httpGet": {"path": "/readyz", "port": contract.STATUS_PORT_NAME},
        # Programs wait for the readiness of a PS. That of other roles is only shown in the status.
        "periodSeconds": 1 if is_ps else 2,
        "timeoutSeconds": 5,
        # A hot standby must be unready whenever it is not in sync. Another server that fails a probe may only be slow.
        "failureThreshold": 1 if is_ps and standbys.is_hot(job) else 3,
    }


def _own_ports(job: PSTrainingJob, task: PodTask) -> dict[int, str]:
    witness = {contract.WITNESS_PORT: contract.WITNESS_PORT_NAME} if (task.index or 0) < standbys.witnesses(job) else {}
    metrics = {contract.METRICS_PORT: contract.METRICS_PORT_NAME}
    further = {names.CHIEF: metrics, names.WORKER: metrics | witness}
    training = {contract.TF_PORT: contract.TF_PORT_NAME, contract.STATUS_PORT: contract.STATUS_PORT_NAME}
    return training | further.get(task.role, {})


def _identity(job: PSTrainingJob, task: PodTask) -> list[dict[str, Any]]:
    def value(name: str, text: str) -> dict[str, Any]:
        return {"name": name, "value": text}

    def field(name: str, path: str) -> dict[str, Any]:
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    index = (
        field(contract.ENV_TASK_INDEX, f"metadata.labels['{names.LABEL_POD_INDEX}']")
        if task.role == names.PS
        else value(contract.ENV_TASK_INDEX, str(task.index or 0))
    )
    found = [
        value(contract.ENV_JOB, job.metadata.name),
        value(contract.ENV_NAMESPACE, job.metadata.namespace),
        value(contract.ENV_TASK_TYPE, task.role),
        index,
        field(contract.ENV_POD_NAME, "metadata.name"),
        field(contract.ENV_POD_UID, "metadata.uid"),
        field(contract.ENV_POD_IP, "status.podIP"),
    ]
    if has_chief_duty(job, task):
        found.append(value(contract.ENV_JOB_UID, job.metadata.uid))
        found.append(value(contract.ENV_TERM, str(task.term or 1)))
    if task.role == names.PS:
        found.append(value(contract.ENV_SERVER, job.spec.ps.server))
        if standbys.standbys(job):
            found.append(value(contract.ENV_MEMBER, str(task.member)))
        if standbys.is_hot(job):
            found.append(field(contract.ENV_NODE, "spec.nodeName"))
    else:
        found.append(value(contract.ENV_STATUS_PORT, str(contract.STATUS_PORT)))
    found.append(value(contract.ENV_RESTART_POLICY, _restart_policy(job, task)))
    if job.spec.checkpoint is not None:
        found.append(value(contract.ENV_CHECKPOINT_DIR, job.spec.checkpoint.uri or job.spec.checkpoint.path))
    return found


def _accept_progress(
    job: PSTrainingJob, spec: dict[str, Any], container: dict[str, Any], endpoint: ProgressEndpoint
) -> None:
    """Let the program report its progress: add the endpoint's address and authority, and a token for this job only."""
    url = endpoint.url + progress_path(job.metadata.namespace, job.metadata.name)
    container["env"] = [
        {"name": contract.ENV_PROGRESS_URL, "value": url},
        {"name": contract.ENV_PROGRESS_AUTHORITY, "value": endpoint.authority},
        *container["env"],
    ]
    token = {"audience": progress_audience(job.metadata.uid), "path": contract.PROGRESS_TOKEN_FILE}
    # A wrong template may have volumes without a name, or with this one, which the API server refuses.
    volume = next(v for v in reversed(spec["volumes"]) if v.get("name") == _CONTRACT_VOLUME)
    volume["projected"]["sources"].append({"serviceAccountToken": token | {"expirationSeconds": TOKEN_SECONDS}})


def _restart_policy(job: PSTrainingJob, task: PodTask) -> str:
    roles: dict[str, Role] = {names.PS: job.spec.ps, names.WORKER: job.spec.worker, names.CHIEF: job.spec.chief}
    policy = roles.get(task.role, job.spec.evaluator).restart_policy
    # Exit code 0 of the task that does the chief's work is the job's success, so that task never runs again.
    final = policy is RestartPolicy.ALWAYS and has_chief_duty(job, task)
    return RestartPolicy.ON_FAILURE if final else policy


def _mount(
    job: PSTrainingJob, task: PodTask, spec: dict[str, Any], container: dict[str, Any], launcher: LauncherMap
) -> None:
    sources = [
        # All files are mounted, because a running job keeps its launcher, whose version may have other files.
        {"configMap": {"name": launcher.name}},
        {
            "configMap": {
                "name": names.cluster_config_map(job.metadata.name),
                "items": [_item(contract.CLUSTER_FILE)],
            }
        },
    ]
    spec["volumes"] = [
        *(spec.get("volumes") or ()),
        {"name": _CONTRACT_VOLUME, "projected": {"sources": sources}},
        {"name": _RUN_VOLUME, "emptyDir": {}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": _CONTRACT_VOLUME, "mountPath": contract.MOUNT_DIR, "readOnly": True},
        {"name": _RUN_VOLUME, "mountPath": contract.RUN_DIR},
    ]
    checkpoint = job.spec.checkpoint
    reads = task.role == names.EVALUATOR
    if checkpoint is not None and checkpoint.uri is None and (has_chief_duty(job, task) or reads):
        name = checkpoint_volume.add(spec, checkpoint, names.checkpoint_claim(job.metadata.name), writes=not reads)
        mount = {"name": name, "mountPath": checkpoint.path}
        mounts.append(mount | {"readOnly": True} if reads else mount)
    container["volumeMounts"] = [*(container.get("volumeMounts") or ()), *mounts]


def _item(file: str) -> dict[str, str]:
    return {"key": file, "path": file}


def _name(job: PSTrainingJob, task: PodTask, spec: dict[str, Any]) -> None:
    if task.role == names.PS:
        return  # the StatefulSet sets the names
    name = job.metadata.name
    spec["subdomain"] = names.headless_service(name)
    hosts = {names.CHIEF: names.chief_host(name), names.EVALUATOR: names.evaluator_host(name)}
    spec["hostname"] = hosts.get(task.role) or names.worker_name(name, task.index or 0)
