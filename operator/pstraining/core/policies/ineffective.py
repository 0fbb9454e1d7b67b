"""Which fields of a job have no effect, or cannot work, together with its other fields? Pure.

Status, event and CLI use the same text. Fields that are wrong by themselves are not among them.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from pstraining.api import names
from pstraining.api.autoscaling import AutoscalingMode
from pstraining.api.models import ClaimRetention, PSTrainingJob, PSTrainingJobSpec
from pstraining.api.run_policy import CleanUp, FailureAction, JobCleanPodPolicy, RestartPolicy, RunPolicy
from pstraining.api.standby import StandbyMode
from pstraining.core.policies import idle_rules
from pstraining.core.policies.failures import role_spec
from pstraining.core.policies.grown_sizes import own_resources
from pstraining.core.policies.idle_rules import Ineffective
from pstraining.resources import kueue, sizes
from pstraining.resources.containers import all_containers
from pstraining.resources.resource_requests import parse

SHOWN: Final = 5
"""Maximum number of fields in one message."""
_ONE_POD, _ONE_NODE, _MANY_NODES = "ReadWriteOncePod", "ReadWriteOnce", "ReadWriteMany"


def ineffective(job: PSTrainingJob) -> list[Ineffective]:
    """Return the fields that other fields make useless.

    Args:
        job: the job as its user wrote it. Its templates may have values that Kubernetes refuses.
    """
    spec = job.spec
    roles = [role for role in names.ROLES if _exists(spec, role)]
    return [
        *_standbys(spec),
        *_unused_claims(spec),
        *_claim_of_an_evaluator(spec),
        *_resources_of_pods(spec),
        *_most_servers(spec),
        *_backups(spec),
        *_absent_roles(spec),
        *_of_the_end(spec),
        *_growth(job, roles),
        *_budgets(job, roles),
        *_dispatch(job),
        *idle_rules.found(spec, roles),
    ]


def message_about(found: Sequence[Ineffective]) -> str:
    """Return one message about fields, of limited length."""
    shown = " ".join(f"{one.field}: {one.message}." for one in found[:SHOWN])
    more = len(found) - SHOWN
    return f"{shown} `kubectl pstraining validate` names {more} more." if more > 0 else shown


def _backups(spec: PSTrainingJobSpec) -> Iterator[Ineffective]:
    """Yield a number of backup workers that leaves no other worker."""
    backups, workers = spec.training.backup_workers or 0, spec.worker.replicas
    if backups >= workers:
        message = f"is {backups}, and spec.worker.replicas is {workers}: each update has the gradient of one worker"
        yield Ineffective("spec.training.backupWorkers", f"{message} alone; lower it")


def _exists(spec: PSTrainingJobSpec, role: str) -> bool:
    enabled = {names.CHIEF: spec.chief.enabled, names.EVALUATOR: spec.evaluator.enabled}
    return enabled.get(role, True)


def _absent_roles(spec: PSTrainingJobSpec) -> Iterator[Ineffective]:
    """Yield the fields of a chief or an evaluator that does not run, and those that an existing one does not follow."""
    no_chief = "enabled is false, so no chief runs: set those of spec.worker, or set enabled to true"
    no_evaluator = "enabled is not true, so no evaluator runs: set it, or remove the others"
    for name, role, message in (
        (names.CHIEF, spec.chief, no_chief),
        (names.EVALUATOR, spec.evaluator, no_evaluator),
    ):
        own = {} if role.enabled else role.model_dump(by_alias=True, exclude_defaults=True, exclude={"enabled"})
        if own:
            yield Ineffective(f"spec.{name}", f"has {', '.join(own)}, but {message}")
    if spec.evaluator.enabled and spec.evaluator.restart_policy is RestartPolicy.ALWAYS:
        message = "is Always, but an evaluator that ends with exit code 0 does not run again; let its program loop"
        yield Ineffective("spec.evaluator.restartPolicy", f"{message}, and set OnFailure")
    if spec.ps.on_chief_restart and not spec.chief.enabled:
        message = "is for new attempts of a chief, and worker 0 does the chief's work in this job; remove it"
        yield Ineffective("spec.ps.onChiefRestart", message)


def _of_the_end(spec: PSTrainingJobSpec) -> Iterator[Ineffective]:
    """Yield the fields of what is kept after the end of a job, or of its pods, that have nothing to keep."""
    policy = spec.run_policy.clean_pod_policy
    roles = (spec.ps, spec.worker, spec.chief, spec.evaluator)
    if policy.keep_failed_seconds != JobCleanPodPolicy().keep_failed_seconds and CleanUp.FAILED not in (
        role.clean_pod_policy.on_failure or policy.on_failure for role in roles
    ):
        message = "is for onFailure: Failed, which no role has; set it, or remove keepFailedSeconds"
        yield Ineffective("spec.runPolicy.cleanPodPolicy.keepFailedSeconds", message)
    if spec.ps.persistent_volume_claim_retention_policy != ClaimRetention() and not spec.ps.volume_claim_templates:
        message = "is for claims of volumeClaimTemplates, of which there are none; remove it"
        yield Ineffective("spec.ps.persistentVolumeClaimRetentionPolicy", message)


def _growth(job: PSTrainingJob, roles: Sequence[str]) -> Iterator[Ineffective]:
    """Yield the maxima of sizes that do not grow.

    Args:
        job: the job.
        roles: the roles of the job.
    """
    for index, policy in enumerate(job.spec.autoscaling.role_policies):
        path, memory = f"spec.autoscaling.rolePolicies[{index}]", policy.max_allowed.memory
        if policy.role not in roles:
            yield Ineffective(path, f"has no effect: the job has no {policy.role}; remove it")
        elif policy.max_replicas is not None:
            continue  # with servers that are added, memory may stay as it is
        elif not job.spec.autoscaling.grows:
            message = "only modes Grow and Full let memory grow: set spec.autoscaling.mode to Grow, or remove it"
            yield Ineffective(path, message)
        elif (limit := sizes.memory_limit(own_resources(job, policy.role))) is None:
            message = f"the training container has no memory limit to raise: set one in spec.{policy.role}.resources"
            yield Ineffective(path, message)
        elif parse(memory) <= limit:
            message = f"is {memory}, and the memory limit is {sizes.memory_text(limit)}, so it does not grow; raise it"
            yield Ineffective(f"{path}.maxAllowed.memory", message)


def _budgets(job: PSTrainingJob, roles: Sequence[str]) -> Iterator[Ineffective]:
    """Yield the numbers of failures that are tolerated of roles whose first failure is final.

    Args:
        job: the job.
        roles: the roles of the job.
    """
    spec = job.spec
    tolerant = {rule.role for rule in spec.failure_policy.rules if rule.action is FailureAction.RESTART_REPLICA}
    final = [
        role
        for role in roles
        if role_spec(job, role).restart_policy is RestartPolicy.NEVER and not {None, role} & tolerant
    ]
    todo = "set OnFailure there, or remove it"
    for role in final:
        backoff = role_spec(job, role).backoff
        if backoff.limit or backoff.window_seconds:
            message = f"is for failures that are tolerated, and spec.{role}.restartPolicy is Never"
            yield Ineffective(f"spec.{role}.backoff", f"{message}, so the first one is final; {todo}")
    limit = spec.run_policy.backoff_limit
    if final == list(roles) and limit not in (0, RunPolicy().backoff_limit):
        message = f"is {limit}, but every role has restartPolicy Never, so the first failure is final; {todo}"
        yield Ineffective("spec.runPolicy.backoffLimit", message)


def _dispatch(job: PSTrainingJob) -> Iterator[Ineffective]:
    """Yield a manager that sends jobs of queues, for a job without a queue."""
    if kueue.is_dispatched(job) and not job.metadata.labels.get(kueue.LABEL_QUEUE):
        message = f"is {names.MULTIKUEUE}, which sends only jobs in a queue: set the label {kueue.LABEL_QUEUE}"
        yield Ineffective("spec.managedBy", f"{message}, unless the namespace has a queue named default")


def _most_servers(spec: PSTrainingJobSpec) -> Iterator[Ineffective]:
    """Yield a number of servers up to which none is added automatically."""
    for index, policy in enumerate(spec.autoscaling.role_policies):
        most, replicas = policy.max_replicas, spec.ps.replicas
        if most is None:
            continue
        if spec.autoscaling.mode is not AutoscalingMode.FULL:
            message = "only mode Full adds servers: set spec.autoscaling.mode to Full, or remove it"
        elif most <= replicas:
            message = f"is {most}, and spec.ps.replicas is {replicas}, so no server is added; raise it"
        else:
            continue
        yield Ineffective(f"spec.autoscaling.rolePolicies[{index}].maxReplicas", message)


def _resources_of_pods(spec: PSTrainingJobSpec) -> Iterator[Ineffective]:
    """Yield the sizes of roles whose template has resources of the whole pod, by which Kubernetes goes."""
    roles = ((names.PS, spec.ps), (names.WORKER, spec.worker), (names.CHIEF, spec.chief))
    for name, role in (*roles, (names.EVALUATOR, spec.evaluator)):
        owner, template = (name, role.template) if role.template else (names.WORKER, spec.worker.template)
        if role.resources and template["spec"].get("resources"):
            message = f"is for the training container, but spec.{owner}.template.spec.resources of the whole pod stay"
            todo = "and Kubernetes goes by them; remove those"
            yield Ineffective(f"spec.{name}.resources", f"{message}, {todo}")


def _standbys(spec: PSTrainingJobSpec) -> Iterator[Ineffective]:
    """Yield a number of standbys without a mode, and a policy under which no standby replaces a server that fails."""
    number, has_none = spec.ps.standby.replicas_per_shard, spec.ps.standby.mode is StandbyMode.NONE
    if number != 1 and has_none:
        message = f"is {number}, but mode None has no standbys: set spec.ps.standby.mode to Warm or Hot, or remove it"
        yield Ineffective("spec.ps.standby.replicasPerShard", message)
    if has_none or spec.ps.restart_policy is not RestartPolicy.NEVER:
        return
    rules = (rule for rule in spec.failure_policy.rules if rule.role in (None, names.PS))
    if all(rule.action is FailureAction.FAIL_JOB for rule in rules):  # rules take precedence
        message = "is Never, so a server whose program fails ends the job without a failover to a standby"
        yield Ineffective("spec.ps.restartPolicy", f"{message}; set OnFailure")


def _unused_claims(spec: PSTrainingJobSpec) -> Iterator[Ineffective]:
    claims, pod = spec.ps.volume_claim_templates, (spec.ps.template or spec.worker.template)["spec"]
    kinds = ("volumeMounts", "volumeDevices")
    used = {
        mount.get("name")
        for container in (all_containers(pod) if claims else ())
        for kind in kinds
        for mount in container.get(kind) or ()
    }
    for index, claim in enumerate(claims):
        if claim.metadata.name not in used:
            message = "no container of a parameter server mounts it, so it stays empty: mount it in spec.ps.template"
            yield Ineffective(f"spec.ps.volumeClaimTemplates[{index}]", message)


def _claim_of_an_evaluator(spec: PSTrainingJobSpec) -> Iterator[Ineffective]:
    """Yield the access mode of a claim that the evaluator's pod cannot mount beside the pod that writes checkpoints."""
    claim = {} if spec.checkpoint is None else spec.checkpoint.volume_claim_template or {}
    if not spec.evaluator.enabled:
        return
    modes = claim.get("accessModes") or ()
    writer = "the chief" if spec.chief.enabled else "worker 0"
    if _ONE_POD in modes:
        message = f"is {_ONE_POD}, so the evaluator's pod waits until {writer} has ended; use another mode"
    elif _ONE_NODE in modes and _MANY_NODES not in modes:
        message = f"is {_ONE_NODE}, so the evaluator's pod starts only on the node of {writer}; use {_MANY_NODES}"
        message += ", or set spec.checkpoint.uri instead of the claim"
    else:
        return
    yield Ineffective("spec.checkpoint.volumeClaimTemplate.accessModes", message)
