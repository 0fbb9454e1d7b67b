"""The run policy of a job: restarts, budgets, deadlines, clean-up, success and failure.

Fields that TFJob also has have TFJob's names.
"""

from enum import StrEnum

from pydantic import Field

from pstraining.api import schemas
from pstraining.api.base import ApiModel


class RestartPolicy(StrEnum):
    """Action after a replica fails."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    EXIT_CODE = "ExitCode"


class Backoff(ApiModel):
    """Failure budget of a replica."""

    limit: int | None = Field(
        default=None,
        ge=0,
        le=10000,
        description="Failures of one replica that are tolerated; the next one is final. Default: "
        "runPolicy.backoffLimit.",
    )
    window_seconds: int | None = Field(
        default=None,
        ge=1,
        le=31536000,
        description="Window in seconds: older failures no longer count. Default: every failure in the life of the "
        "job counts.",
    )


class CleanUp(StrEnum):
    """Pods of a role that are deleted when the job has ended."""

    ALL = "All"
    RUNNING = "Running"
    FAILED = "Failed"
    NONE = "None"


class CleanPodPolicy(ApiModel):
    """Pods that are deleted when the job has ended, by outcome."""

    on_success: CleanUp | None = Field(
        default=None,
        description="Pods deleted when the job succeeds. Default: as in runPolicy.cleanPodPolicy. Running: pods "
        "that still run; ended pods of chief and evaluator stay for their logs. All: every pod. None: no pod; "
        "parameter servers keep running. Failed: as Running.",
    )
    on_failure: CleanUp | None = Field(
        default=None,
        description="Pods deleted when the job fails. Default: as in runPolicy.cleanPodPolicy. Failed: all pods "
        "except the failed replica's, which stays idle for keepFailedSeconds, so that you can examine it. Running, "
        "All and None: as in onSuccess.",
    )


class JobCleanPodPolicy(ApiModel):
    """Pods that are deleted when the job has ended, by outcome, unless a role overrides it."""

    on_success: CleanUp = Field(
        default=CleanUp.RUNNING,
        description="Pods deleted when the job succeeds. Running (default): pods that still run; ended pods of "
        "chief and evaluator stay for their logs. All: every pod. None: no pod; parameter servers keep running. "
        "Failed: as Running.",
    )
    on_failure: CleanUp = Field(
        default=CleanUp.FAILED,
        description="Pods deleted when the job fails. Failed (default): all pods except the failed replica's, "
        "which stays idle for keepFailedSeconds, so that you can examine it. Running, All and None: as in "
        "onSuccess.",
    )
    keep_failed_seconds: int = Field(
        default=86400,
        ge=0,
        le=2**31 - 1,
        description="Seconds for which the failed replica is kept after the job fails, if onFailure is Failed. "
        "Default 86400 (one day).",
    )


class Gang(StrEnum):
    """Scheduler that starts the required pods together."""

    NONE = "None"
    SCHEDULER_PLUGINS = "SchedulerPlugins"
    VOLCANO = "Volcano"


class SchedulingPolicy(ApiModel):
    """Scheduling of the job's pods."""

    gang: Gang = Field(
        default=Gang.NONE,
        description="Scheduler that starts the required pods together. None (default): pods are scheduled one by "
        "one. SchedulerPlugins, Volcano: the parameter servers, the chief and the required workers start together "
        "or not at all. That scheduler must run in the cluster. Other pods of the job are created once the whole "
        "gang has nodes.",
    )
    queue: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Queue of the job in Volcano. Default: Volcano's own default. Needs gang Volcano.",
    )
    min_available: int | None = Field(
        default=None,
        ge=1,
        le=11001,
        description="Number of parameter servers, chief and workers that start together. Default and minimum: all "
        "parameter servers, the chief and worker.minReplicas workers (all workers if unset). Needs a gang.",
    )
    timeout_seconds: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="Seconds for which the scheduler reserves nodes while other pods of the gang have none. Default: "
        "the scheduler's own setting. Needs gang SchedulerPlugins.",
    )
    priority_class: str | None = Field(
        default=None, max_length=253, description="PriorityClassName of every pod whose template has none."
    )


class RunPolicy(ApiModel):
    """Execution and end of the job as a whole."""

    suspend: bool = Field(
        default=False,
        description="Suspends the job. When true, the chief stops first and may save, then all other pods are "
        "deleted; volumes stay. When false again, all pods are created again, and programs resume from the newest "
        "checkpoint. Most templates can be changed only while the job is suspended. Default false.",
    )
    managed_by: str = Field(
        default="pstraining.dev/operator",
        min_length=1,
        max_length=63,
        description="Manager of the job. Default pstraining.dev/operator. The operator ignores jobs of any other "
        "manager. Kueue's kueue.x-k8s.io/multikueue belongs to spec.managedBy. Immutable.",
    )
    clean_pod_policy: JobCleanPodPolicy = Field(
        default=JobCleanPodPolicy(), description="Pods deleted after the job has ended."
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None,
        ge=0,
        le=2**31 - 1,
        description="Seconds from the job's end until it is deleted with its pods. Default: the job is kept. "
        "checkpoint.retainPolicy decides whether the claim <job>-checkpoint is deleted with it.",
    )
    active_deadline_seconds: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="Seconds that the job may be active, excluding suspended time, before it fails. Default: no limit.",
    )
    backoff_limit: int = Field(
        default=6,
        ge=0,
        le=10000,
        description="Failures of one replica that are tolerated; the next one fails the job. Default 6: the 7th "
        "failure. Evictions, preemptions, deletions and lost nodes do not count. `<role>.backoff.limit` overrides "
        "it.",
    )
    max_restarts: int = Field(
        default=3,
        ge=0,
        le=10000,
        description="Restarts of the whole job by failurePolicy (RestartJob) that are tolerated; the next one "
        "fails the job. Default 3.",
    )
    node_loss_seconds: int = Field(
        default=2,
        ge=0,
        le=86400,
        description="Seconds that pods stay on a node after Kubernetes has marked it not ready or unreachable; "
        "then they are replaced. Default 2. Kubernetes marks a node some 50 seconds after its last heartbeat.",
    )
    force_delete_volumes: bool = Field(
        default=False,
        description="Allows the pod of a parameter server or chief to be force-deleted while its lost node may "
        "still mount its volume. Default false: the job waits for the node. No volume is deleted. Dangerous with a "
        "disk that only one node may mount: its data may be corrupted.",
    )
    scheduling_policy: SchedulingPolicy = Field(default=SchedulingPolicy(), description="Scheduling of the job's pods.")


class SuccessPolicy(StrEnum):
    """Replicas whose success makes the job succeed."""

    CHIEF = "Chief"
    ALL_WORKERS = "AllWorkers"


class FailedRole(StrEnum):
    """The roles that a failure rule can name: TensorFlow's task types."""

    CHIEF = "chief"
    WORKER = "worker"
    PS = "ps"
    EVALUATOR = "evaluator"


class FailureReason(StrEnum):
    """Cause of a failure."""

    ERROR = "Error"
    OOM_KILLED = "OOMKilled"
    EVICTED = "Evicted"
    PREEMPTED = "Preempted"
    DELETED = "Deleted"
    NODE_LOST = "NodeLost"
    INIT_FAILED = "InitFailed"
    START_TIMEOUT = "StartTimeout"
    BAD_SETTINGS = "BadSettings"


class FailureAction(StrEnum):
    """Action of a failure rule."""

    FAIL_JOB = "FailJob"
    RESTART_REPLICA = "RestartReplica"
    RESTART_JOB = "RestartJob"
    IGNORE = "Ignore"


class ExitCodes(ApiModel):
    """Exit codes of the training container."""

    values: list[int] = Field(
        min_length=1, max_length=64, description="Exit codes from 1 to 255.", json_schema_extra=schemas.exit_codes
    )
    negate: bool = Field(
        default=False, description="Inverts the match: every non-zero code except these. Default false."
    )


class FailureRule(ApiModel):
    """Reaction to one kind of failure; a field that is not set matches any failure."""

    role: FailedRole | None = Field(default=None, description="Role that failed. Default: any.")
    exit_codes: ExitCodes | None = Field(default=None, description="Exit codes that match. Default: any.")
    reasons: list[FailureReason] | None = Field(
        default=None, min_length=1, max_length=16, description="Causes that match. Default: any."
    )
    action: FailureAction = Field(
        description="Reaction to a matching failure. FailJob: fails the job at once, even within the budget. "
        "RestartReplica: restarts the replica within its budget, under any restartPolicy. RestartJob: restarts all "
        "replicas, within runPolicy.maxRestarts. Ignore: restarts the replica without counting the failure."
    )


class FailurePolicy(ApiModel):
    """Reactions to failures: the first matching rule decides, or else the role's restartPolicy."""

    rules: list[FailureRule] = Field(
        default_factory=list, max_length=20, description="Rules in order of precedence: the first match decides."
    )
