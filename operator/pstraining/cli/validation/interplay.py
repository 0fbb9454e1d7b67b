"""Fields of a job that have no effect, or cannot work, together with other fields. All are warnings."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pstraining.api import names
from pstraining.api.autoscaling import AutoscalingMode
from pstraining.api.models import ChiefSpec, ClaimRetention, EvaluatorSpec, PSTrainingJob
from pstraining.api.run_policy import CleanUp, JobCleanPodPolicy, RestartPolicy
from pstraining.cli.validation import failure_rules
from pstraining.cli.validation.schema import Finding, Severity
from pstraining.core.policies.grown_sizes import own_resources
from pstraining.resources import sizes
from pstraining.resources.containers import all_containers
from pstraining.resources.resource_requests import parse

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
    yield from _backups(of_job)
    yield from _absent_roles(of_job)
    yield from _of_the_end(of_job)
    roles = [role for role in names.ROLES if _exists(of_job, role)]
    yield from _growth(of_job, roles)
    yield from failure_rules.without_effect(of_job, roles)


def _backups(of_job: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a number of backup workers that leaves no other worker."""
    backups, workers = (of_job.get("training") or {}).get("backupWorkers") or 0, of_job[names.WORKER]["replicas"]
    if backups >= workers:
        message = f"is {backups}, and spec.worker.replicas is {workers}: each update has the gradient of one worker"
        yield Finding("spec.training.backupWorkers", f"{message} alone; lower it", Severity.WARNING)


def _exists(of_job: Mapping[str, Any], role: str) -> bool:
    defaults = {names.CHIEF: True, names.EVALUATOR: False}
    return role not in defaults or bool((of_job.get(role) or {}).get("enabled", defaults[role]))


def _absent_roles(of_job: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the fields of a chief or an evaluator that does not run, and those that an existing one does not follow."""
    models: dict[str, tuple[type[ChiefSpec] | type[EvaluatorSpec], str]] = {
        names.CHIEF: (
            ChiefSpec,
            "enabled is false, so no chief runs: set those of spec.worker, or set enabled to true",
        ),
        names.EVALUATOR: (EvaluatorSpec, "enabled is not true, so no evaluator runs: set it, or remove the others"),
    }
    for role, (model, message) in models.items():
        own = model.model_validate(of_job.get(role) or {}).model_dump(by_alias=True, exclude_defaults=True)
        own.pop("enabled", None)
        if own and not _exists(of_job, role):
            yield Finding(f"spec.{role}", f"has {', '.join(own)}, but {message}", Severity.WARNING)
    evaluator = of_job.get(names.EVALUATOR) or {}
    if _exists(of_job, names.EVALUATOR) and evaluator.get("restartPolicy") == RestartPolicy.ALWAYS:
        message = "is Always, but an evaluator that ends with exit code 0 does not run again; let its program loop"
        yield Finding("spec.evaluator.restartPolicy", f"{message}, and set OnFailure", Severity.WARNING)
    if of_job[names.PS].get("onChiefRestart") and not _exists(of_job, names.CHIEF):
        message = "is for new attempts of a chief, and worker 0 does the chief's work in this job; remove it"
        yield Finding("spec.ps.onChiefRestart", message, Severity.WARNING)


def _of_the_end(of_job: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the fields of what is kept after the end of a job, or of its pods, that have nothing to keep."""
    policy = JobCleanPodPolicy.model_validate((of_job.get("runPolicy") or {}).get("cleanPodPolicy") or {})
    by_role = [((of_job.get(role) or {}).get("cleanPodPolicy") or {}).get("onFailure") for role in names.ROLES]
    if policy.keep_failed_seconds != JobCleanPodPolicy().keep_failed_seconds and CleanUp.FAILED not in (
        own or policy.on_failure for own in by_role
    ):
        message = "is for onFailure: Failed, which no role has; set it, or remove keepFailedSeconds"
        yield Finding("spec.runPolicy.cleanPodPolicy.keepFailedSeconds", message, Severity.WARNING)
    servers = of_job[names.PS]
    retention = ClaimRetention.model_validate(servers.get("persistentVolumeClaimRetentionPolicy") or {})
    if retention != ClaimRetention() and not servers.get("volumeClaimTemplates"):
        message = "is for claims of volumeClaimTemplates, of which there are none; remove it"
        yield Finding("spec.ps.persistentVolumeClaimRetentionPolicy", message, Severity.WARNING)


def _growth(of_job: Mapping[str, Any], roles: Sequence[str]) -> Iterator[Finding]:
    """Yield the maxima of sizes that do not grow.

    Args:
        of_job: the spec of a job without errors and nulls.
        roles: the roles of the job.
    """
    autoscaling = of_job.get("autoscaling") or {}
    job = PSTrainingJob.model_validate({"metadata": {"name": "j", "namespace": "", "uid": ""}, "spec": of_job})
    for index, policy in enumerate(autoscaling.get("rolePolicies") or ()):
        role, path = policy["role"], f"spec.autoscaling.rolePolicies[{index}]"
        if role not in roles:
            yield Finding(path, f"has no effect: the job has no {role}; remove it", Severity.WARNING)
        elif "maxReplicas" in policy:
            continue  # with servers that are added, memory may stay as it is
        elif not job.spec.autoscaling.grows:
            message = "only modes Grow and Full let memory grow: set spec.autoscaling.mode to Grow, or remove it"
            yield Finding(path, message, Severity.WARNING)
        elif (limit := sizes.memory_limit(own_resources(job, role))) is None:
            message = f"the training container has no memory limit to raise: set one in spec.{role}.resources"
            yield Finding(path, message, Severity.WARNING)
        elif parse(policy["maxAllowed"]["memory"]) <= limit:
            message = f"is {policy['maxAllowed']['memory']}, and the memory limit is {sizes.memory_text(limit)}"
            yield Finding(f"{path}.maxAllowed.memory", f"{message}, so it does not grow; raise it", Severity.WARNING)


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
    if not _exists(of_job, names.EVALUATOR):
        return
    modes = claim.get("accessModes") or ()
    writer = "the chief" if _exists(of_job, names.CHIEF) else "worker 0"
    if _ONE_POD in modes:
        message = f"is {_ONE_POD}, so the evaluator's pod waits until {writer} has ended; use another mode"
    elif _ONE_NODE in modes and _MANY_NODES not in modes:
        message = f"is {_ONE_NODE}, so the evaluator's pod starts only on the node of {writer}; use {_MANY_NODES}"
        message += ", or set spec.checkpoint.uri instead of the claim"
    else:
        return
    yield Finding("spec.checkpoint.volumeClaimTemplate.accessModes", message, Severity.WARNING)
