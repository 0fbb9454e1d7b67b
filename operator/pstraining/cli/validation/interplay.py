"""Fields of a job that have no effect, or cannot work, together with other fields. All are warnings."""

from collections.abc import Iterator, Mapping
from typing import Any

from pstraining.api import names
from pstraining.api.autoscaling import AutoscalingMode
from pstraining.cli.validation.schema import Finding, Severity
from pstraining.resources.containers import all_containers

_ONE_POD, _ONE_NODE, _MANY_NODES = "ReadWriteOncePod", "ReadWriteOnce", "ReadWriteMany"


def without_effect(of_job: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the fields that other fields make useless.

    Args:
        of_job: the spec of a job without errors and nulls.
    """
    yield from _standbys(of_job[names.PS].get("standby") or {})
    yield from _unused_claims(of_job)
    yield from _claim_of_an_evaluator(of_job)
    yield from _resources_of_pods(of_job)
    yield from _most_servers(of_job)


def _most_servers(of_job: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a number of servers up to which none is added automatically."""
    autoscaling, replicas = of_job.get("autoscaling") or {}, of_job[names.PS]["replicas"]
    for index, policy in enumerate(autoscaling.get("rolePolicies") or ()):
        most = policy.get("maxReplicas")
        if most is None:
            continue
        if autoscaling.get("mode") != AutoscalingMode.FULL:
            message = "only mode Full adds servers: set spec.autoscaling.mode to Full, or remove it"
        elif most <= replicas:
            message = f"is {most}, and spec.ps.replicas is {replicas}, so no server is added; raise it"
        else:
            continue
        yield Finding(f"spec.autoscaling.rolePolicies[{index}].maxReplicas", message, Severity.WARNING)


def _resources_of_pods(of_job: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the sizes of roles whose template has resources of the whole pod, by which Kubernetes goes."""
    for role in names.ROLES:
        own = of_job.get(role) or {}
        owner = role if own.get("template") else names.WORKER
        if own.get("resources") and of_job[owner]["template"]["spec"].get("resources"):
            message = f"is for the training container, but spec.{owner}.template.spec.resources of the whole pod stay"
            todo = "and Kubernetes goes by them; remove those"
            yield Finding(f"spec.{role}.resources", f"{message}, {todo}", Severity.WARNING)


def _standbys(standby: Mapping[str, Any]) -> Iterator[Finding]:
    number = standby.get("replicasPerShard", 1)  # a stored job has the default
    if number != 1 and standby.get("mode", "None") == "None":
        message = f"is {number}, but mode None has no standbys: set spec.ps.standby.mode to Warm or Hot, or remove it"
        yield Finding("spec.ps.standby.replicasPerShard", message, Severity.WARNING)


def _unused_claims(of_job: Mapping[str, Any]) -> Iterator[Finding]:
    servers, workers = of_job[names.PS], of_job[names.WORKER]
    spec = (servers.get("template") or workers["template"])["spec"]
    kinds = ("volumeMounts", "volumeDevices")
    used = {
        mount["name"] for container in all_containers(spec) for kind in kinds for mount in container.get(kind) or ()
    }
    for index, claim in enumerate(servers.get("volumeClaimTemplates") or ()):
        if claim["metadata"]["name"] not in used:
            message = "no container of a parameter server mounts it, so it stays empty: mount it in spec.ps.template"
            yield Finding(f"spec.ps.volumeClaimTemplates[{index}]", message, Severity.WARNING)


def _claim_of_an_evaluator(of_job: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the access mode of a claim that the evaluator's pod cannot mount beside the pod that writes checkpoints."""
    claim = (of_job.get("checkpoint") or {}).get("volumeClaimTemplate") or {}
    if not (of_job.get(names.EVALUATOR) or {}).get("enabled"):
        return
    modes = claim.get("accessModes") or ()
    writer = "the chief" if (of_job.get(names.CHIEF) or {}).get("enabled", True) else "worker 0"
    if _ONE_POD in modes:
        message = f"is {_ONE_POD}, so the evaluator's pod waits until {writer} has ended; use another mode"
    elif _ONE_NODE in modes and _MANY_NODES not in modes:
        message = f"is {_ONE_NODE}, so the evaluator's pod starts only on the node of {writer}; use {_MANY_NODES}"
        message += ", or set spec.checkpoint.uri instead of the claim"
    else:
        return
    yield Finding("spec.checkpoint.volumeClaimTemplate.accessModes", message, Severity.WARNING)
