"""How a job is run and ended: restarts, budgets, deadlines, clean-up, success and failure.

TFJob's words where TFJob has them, so that its users feel at home.
"""

from enum import StrEnum

from pydantic import Field

from pstraining.api import schemas
from pstraining.api.base import Model


class RestartPolicy(StrEnum):
    """What follows a failed replica."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    EXIT_CODE = "ExitCode"


class Backoff(Model):
    """How many failures a replica may have."""

    limit: int | None = Field(
        default=None, ge=0, le=10000, description="Failures of one replica; runPolicy.backoffLimit if not set."
    )
    window_seconds: int | None = Field(
        default=None,
        ge=1,
        le=31536000,
        description="Only failures of the last so many seconds count; all of the job's life if not set.",
    )


class CleanUp(StrEnum):
    """Which pods of a role go when the job has ended."""

    ALL = "All"
    RUNNING = "Running"
    FAILED = "Failed"
    NONE = "None"


class CleanPodPolicy(Model):
    """What is freed when the job has ended, by outcome."""

    on_success: CleanUp | None = Field(
        default=None,
        description="All frees everything, Running what still runs (a finished chief stays for its log), None nothing; "
        "Failed is the same as Running here.",
    )
    on_failure: CleanUp | None = Field(
        default=None,
        description="Failed keeps only the replica that failed, idle, for keepFailedSeconds; All, Running and None as "
        "on success.",
    )


class JobCleanPodPolicy(Model):
    """What is freed when the job has ended, by outcome, unless a role says otherwise."""

    on_success: CleanUp = Field(
        default=CleanUp.RUNNING,
        description="All frees everything, Running what still runs (a finished chief stays for its log), None nothing; "
        "Failed is the same as Running here.",
    )
    on_failure: CleanUp = Field(
        default=CleanUp.FAILED,
        description="Failed keeps only the replica that failed, idle, for keepFailedSeconds; All, Running and None as "
        "on success.",
    )
    keep_failed_seconds: int = Field(
        default=86400,
        ge=0,
        le=2**31 - 1,
        description="Seconds after the job's failure for which what onFailure keeps is kept.",
    )


class Gang(StrEnum):
    """Who places the pods that the job cannot do without, all at once or none."""

    NONE = "None"
    SCHEDULER_PLUGINS = "SchedulerPlugins"
    VOLCANO = "Volcano"


class SchedulingPolicy(Model):
    """How the job's pods are scheduled."""

    gang: Gang = Field(
        default=Gang.NONE,
        description="None: pods are scheduled one by one. SchedulerPlugins, Volcano: the parameter servers, the chief "
        "and the workers that the job cannot do without start together or not at all; that scheduler must run in the "
        "cluster. What else the job has is created once they have their places.",
    )
    queue: str | None = Field(
        default=None, min_length=1, max_length=253, description="With Volcano: the queue; Volcano's default if not set."
    )
    min_available: int | None = Field(
        default=None,
        ge=1,
        le=11001,
        description="With a gang: how many of the parameter servers, the chief and the workers start together. By "
        "default all parameter servers, the chief and worker.minReplicas workers (all without it); never fewer.",
    )
    timeout_seconds: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="With SchedulerPlugins: seconds for which pods that have a place hold it for the rest of the gang; "
        "the scheduler's own setting if not set.",
    )
    priority_class: str | None = Field(
        default=None, max_length=253, description="The priorityClassName of every pod whose template names none."
    )


class RunPolicy(Model):
    """How the job as a whole is run and ended."""

    suspend: bool = Field(
        default=False, description="true: the job's pods go, and come back from the newest checkpoint on false."
    )
    managed_by: str = Field(
        default="pstraining.dev/operator",
        min_length=1,
        max_length=63,
        description="Who looks after the job; the operator leaves jobs of any other manager (such as "
        "kueue.x-k8s.io/multikueue) alone. Immutable.",
    )
    clean_pod_policy: JobCleanPodPolicy = Field(
        default=JobCleanPodPolicy(), description="What is freed when the job has ended."
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None, ge=0, le=2**31 - 1, description="Seconds after its end at which the job deletes itself."
    )
    active_deadline_seconds: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="Seconds that the job may be active for, without the time it is suspended; then it fails.",
    )
    backoff_limit: int = Field(
        default=6, ge=0, le=10000, description="How often one replica may fail before the job does."
    )
    max_restarts: int = Field(
        default=3,
        ge=0,
        le=10000,
        description="How often failurePolicy may restart the job as a whole (RestartJob) before it fails.",
    )
    node_loss_seconds: int = Field(
        default=2,
        ge=0,
        le=86400,
        description="Seconds beyond Kubernetes' own node grace for which a pod waits for its lost node.",
    )
    force_delete_volumes: bool = Field(
        default=False,
        description="true: a parameter server with a volume, too, is force-deleted when its node is lost. Only for "
        "volumes that two nodes may have mounted at once.",
    )
    scheduling_policy: SchedulingPolicy = Field(
        default=SchedulingPolicy(), description="How the job's pods are scheduled."
    )


class SuccessPolicy(StrEnum):
    """Whose success is the job's."""

    CHIEF = "Chief"
    ALL_WORKERS = "AllWorkers"


class FailedRole(StrEnum):
    """The roles that a failure rule can name: TensorFlow's task types."""

    CHIEF = "chief"
    WORKER = "worker"
    PS = "ps"
    EVALUATOR = "evaluator"


class FailureReason(StrEnum):
    """Why a replica failed, as a rule can name it."""

    ERROR = "Error"
    OOM_KILLED = "OOMKilled"
    EVICTED = "Evicted"
    PREEMPTED = "Preempted"
    DELETED = "Deleted"
    NODE_LOST = "NodeLost"
    INIT_FAILED = "InitFailed"
    START_TIMEOUT = "StartTimeout"


class FailureAction(StrEnum):
    """What a failure rule does."""

    FAIL_JOB = "FailJob"
    RESTART_REPLICA = "RestartReplica"
    RESTART_JOB = "RestartJob"
    IGNORE = "Ignore"


class ExitCodes(Model):
    """Exit codes of the training container."""

    values: list[int] = Field(
        min_length=1, max_length=64, description="Exit codes, 1 to 255.", json_schema_extra=schemas.exit_codes
    )
    negate: bool = Field(default=False, description="true: every non-zero code but these.")


class FailureRule(Model):
    """What one kind of failure means; what it does not name matches anything."""

    role: FailedRole | None = Field(default=None, description="The role that failed; any if not set.")
    exit_codes: ExitCodes | None = Field(default=None, description="The exit codes that match; any if not set.")
    reasons: list[FailureReason] | None = Field(
        default=None, min_length=1, max_length=16, description="The reasons that match; any if not set."
    )
    action: FailureAction = Field(
        description="FailJob: at once, whatever the budget. RestartReplica: within its budget, whatever its "
        "restartPolicy. RestartJob: all replicas anew, within runPolicy.maxRestarts. Ignore: restart it, uncounted."
    )


class FailurePolicy(Model):
    """What failures mean for the job: the first rule that matches decides, else the role's restartPolicy."""

    rules: list[FailureRule] = Field(
        default_factory=list, max_length=20, description="In order; the first that matches decides."
    )
