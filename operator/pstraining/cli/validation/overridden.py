"""Fields of templates that the operator, Kubernetes or Kueue sets or reads elsewhere. All are warnings."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pstraining.api import contract, names
from pstraining.api.values import path_of
from pstraining.cli.validation.quantities import Steps
from pstraining.cli.validation.schema import Finding, Severity
from pstraining.resources import kueue, pods, workloads
from pstraining.resources.metadata import without_owner

_LABEL_OF_KUEUE: Final = (
    "belongs on the job: in a template, Kueue ignores it, or holds the pods one by one; write it to metadata.labels"
)
_HASH: Final = "pod-template-hash"
_PLACEMENT: Final = ("topologySpreadConstraints", "affinity")
_NOT_PASSED_ON: Final = "has no effect: the operator does not pass it to Kueue; remove it"


def names_and_marks(job: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the fields, labels and annotations of templates that the operator overrides."""
    for role in (names.PS, names.WORKER, names.CHIEF, names.EVALUATOR):
        template = (job["spec"].get(role) or {}).get("template") or {}
        for field in ("hostname", "subdomain"):
            if (template.get("spec") or {}).get(field):
                path = path_of(("spec", role, "template", "spec", field))
                yield Finding(path, "is the operator's, which names its pods itself", Severity.WARNING)
        metadata = template.get("metadata")
        for kind in ("labels", "annotations"):
            marks = metadata.get(kind) if isinstance(metadata, Mapping) else None
            for name in marks if isinstance(marks, Mapping) else ():
                if name.startswith(f"{names.GROUP}/"):
                    path = path_of(("spec", role, "template", "metadata", kind, name))
                    yield Finding(path, "is the operator's, which sets another value", Severity.WARNING)


def marks_of_claims(of_job: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the labels and annotations of the parameter servers' claims that the claims do not get.

    Args:
        of_job: the spec of a job without errors.
    """
    for index, claim in enumerate(of_job[names.PS].get("volumeClaimTemplates") or ()):
        for kind in ("labels", "annotations"):
            marks = claim["metadata"].get(kind) or {}
            kept = without_owner(marks)
            for name in marks:
                path = path_of(("spec", names.PS, "volumeClaimTemplates", index, "metadata", kind, name))
                if name not in kept:
                    message = "is left out: Argo CD or Flux may delete a claim with it; remove it"
                    yield Finding(path, message, Severity.WARNING)
                elif kind == "labels" and name.startswith(f"{names.GROUP}/"):
                    yield Finding(path, "is the operator's, which sets another value", Severity.WARNING)


def probe(servers: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the readiness probe of hot standbys, which the operator overrides."""
    if servers.get("template") and (servers.get("standby") or {}).get("mode") == "Hot":
        spec = servers["template"]["spec"]
        container = pods.main_container(spec)
        if container.get("readinessProbe"):
            index = spec["containers"].index(container)
            path = path_of(("spec", names.PS, "template", "spec", "containers", index, "readinessProbe"))
            ours = "is the operator's: hot standbys are ready while they are in sync"
            yield Finding(path, ours, Severity.WARNING)


def in_template(of_job: Mapping[str, Any], role: str) -> Iterator[Finding]:
    """Yield the fields in the template of a role that have no effect there, if the role has a template.

    Args:
        of_job: the spec of a job without errors.
        role: the role.
    """
    if template := (of_job.get(role) or {}).get("template"):
        yield from _restarts(template["spec"], role)
        yield from _early_hook(template["spec"], role)
        if role == _template_of_leader(of_job):
            yield from _hook_before_save(template["spec"], role)
        yield from _resize_policies(template["spec"], role)
        yield from _labels_of_jobs(template, role, _in_jobs(of_job, role))
        yield from _marks_of_kueue(template, role)
        if role == names.WORKER:
            yield from _keys_of_deployments(template["spec"], ("spec", role, "template", "spec"))


def _keys_of_deployments(value: Any, steps: Steps) -> Iterator[Finding]:
    """Yield the label keys of spreads and affinities by which a worker is compared with no other one."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name == "matchLabelKeys" and _HASH in item:
                message = f"{_HASH} differs for each worker, which has a Deployment of its own, so that no other "
                yield Finding(path_of((*steps, name)), f"{message}worker is meant; remove it", Severity.WARNING)
            elif name in _PLACEMENT or steps[-1] != "spec":
                yield from _keys_of_deployments(item, (*steps, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _keys_of_deployments(item, (*steps, index))


def _restarts(spec: dict[str, Any], role: str) -> Iterator[Finding]:
    """Yield the fields of the training container by which the kubelet would restart it."""
    container = pods.main_container(spec)
    for field in (field for field in pods.RESTART_FIELDS if field in container):
        index = spec["containers"].index(container)
        path = path_of(("spec", role, "template", "spec", "containers", index, field))
        yield Finding(path, f"is left out: use spec.{role}.restartPolicy", Severity.WARNING)


def _early_hook(spec: dict[str, Any], role: str) -> Iterator[Finding]:
    """Yield the hook that asks the program as soon as its container starts, when only the launcher runs."""
    container = pods.main_container(spec)
    request = ((container.get("lifecycle") or {}).get("postStart") or {}).get("httpGet") or {}
    if request and not request.get("host"):
        index = spec["containers"].index(container)
        path = path_of(("spec", role, "template", "spec", "containers", index, "lifecycle", "postStart", "httpGet"))
        message = (
            "is sent before the program runs, which the launcher starts later: it fails, and with it the container"
        )
        yield Finding(path, f"{message}; remove it", Severity.WARNING)


def _hook_before_save(spec: dict[str, Any], role: str) -> Iterator[Finding]:
    """Yield the hook that takes its time from the last save of a chief, which gets SIGTERM only after the hook."""
    container, given = pods.main_container(spec), spec.get("terminationGracePeriodSeconds")
    hook = (container.get("lifecycle") or {}).get("preStop") or {}
    slept = (hook.get("sleep") or {}).get("seconds") or 0
    if hook and (given is None or slept >= given > 0):
        index, grace = spec["containers"].index(container), 30 if given is None else given
        path = path_of(("spec", role, "template", "spec", "containers", index, "lifecycle", "preStop"))
        message = f"takes its time from the {grace} s in which the chief can save its state: "
        way_out = "set terminationGracePeriodSeconds to the seconds of the hook and of a save"
        yield Finding(path, f"{message}{way_out}", Severity.WARNING)


def _resize_policies(spec: Mapping[str, Any], role: str) -> Iterator[Finding]:
    """Yield the restarts for a resize in the template of pods that never restart."""
    for kind in ("initContainers", "containers") if role in names.ATTEMPT_LABELS else ():
        for index, container in enumerate(spec.get(kind) or ()):
            if any(policy.get("restartPolicy") == "RestartContainer" for policy in container.get("resizePolicy") or ()):
                path = path_of(("spec", role, "template", "spec", kind, index, "resizePolicy"))
                yield Finding(path, "is left out: each attempt has a pod that never restarts", Severity.WARNING)


def _labels_of_jobs(template: Mapping[str, Any], role: str, tasks: Sequence[str]) -> Iterator[Finding]:
    """Yield the labels in a template that Kubernetes itself sets on the pods of Jobs, those of some tasks."""
    labels = ((template.get("metadata") or {}).get("labels") or {}) if tasks else {}
    for name in (name for name in workloads.LABELS_OF_JOBS if name in labels):
        path = path_of(("spec", role, "template", "metadata", "labels", name))
        message = f"is Kubernetes' on pods of Jobs, and has another value there (pods of {', '.join(tasks)})"
        yield Finding(path, f"{message}; choose another label", Severity.WARNING)


def _marks_of_kueue(template: Mapping[str, Any], role: str) -> Iterator[Finding]:
    """Yield the labels and annotations in a template that Kueue reads on the job, or not at all."""
    metadata, messages = template.get("metadata") or {}, {"labels": _LABEL_OF_KUEUE, "annotations": _NOT_PASSED_ON}
    for kind, message in messages.items():
        for name in (name for name in metadata.get(kind) or {} if name.startswith(f"{kueue.GROUP}/")):
            path = path_of(("spec", role, "template", "metadata", kind, name))
            yield Finding(path, message, Severity.WARNING)


def ports_left_out(given: dict[str, Any], made: dict[str, Any], path: str) -> Iterator[Finding]:
    """Warn of fields of the operator's ports, which the operator replaces.

    Args:
        given: the spec of the pod's template.
        made: the spec of the pod.
        path: the path of the template's containers.
    """
    container = pods.main_container(given)
    ours = {port["containerPort"]: port for port in pods.main_container(made)["ports"] if pods.is_tcp(port)}
    for port in filter(pods.is_tcp, container.get("ports") or ()):
        number = port.get("containerPort")
        known = ours.get(number, {})
        lost = [f for f in ("name", "hostPort", "hostIP") if port.get(f) and port[f] != known.get(f)]
        if lost and known.get("name") in contract.PORTS:
            why = f"the port is the operator's, named {known['name']}; use that name, or another port"
            message = f"container {container['name']}: {lost[0]} of port {number} is left out: {why}"
            yield Finding(path, message, Severity.WARNING)


def _in_jobs(of_job: Mapping[str, Any], role: str) -> list[str]:
    """Return the roles that use the template of a role, and whose pods belong to Jobs."""
    chief, evaluator = of_job.get(names.CHIEF) or {}, of_job.get(names.EVALUATOR) or {}
    enabled = [(names.CHIEF, chief)] if chief.get("enabled", True) else []
    enabled += [(names.EVALUATOR, evaluator)] if evaluator.get("enabled", False) else []
    return [task for task, own in enabled if role == (task if own.get("template") else names.WORKER)]


def _template_of_leader(of_job: Mapping[str, Any]) -> str:
    """Return the role with the template of the chief, or of worker 0 in a job without one."""
    chief = of_job.get(names.CHIEF) or {}
    return names.CHIEF if chief.get("enabled", True) and chief.get("template") else names.WORKER
