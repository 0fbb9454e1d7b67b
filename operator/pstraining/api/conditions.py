"""Condition types and reasons: the constants that status, events and tests share."""

from enum import StrEnum


class Condition(StrEnum):
    """Condition types. Terminal truth is a condition, so `kubectl wait --for=condition=Succeeded` works."""

    CREATED = "Created"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    # These appear only once they have been true.
    DEGRADED = "Degraded"
    RESCALING = "Rescaling"
    UPDATING = "Updating"
    CHECKPOINT_NOT_DURABLE = "CheckpointNotDurable"
    GPU_SETTINGS_INHERITED = "GPUSettingsInherited"
    NAME_CONFLICT = "NameConflict"
    INVALID_TEMPLATE = "InvalidTemplate"
    STATUS_INCOMPLETE = "StatusIncomplete"
    STALLED = "Stalled"


ALWAYS_TOLD = (
    Condition.CREATED,
    Condition.RUNNING,
    Condition.RESTARTING,
    Condition.SUSPENDED,
    Condition.SUCCEEDED,
    Condition.FAILED,
)
"""Written on the first visit, and ever after."""


class Reason(StrEnum):
    """Why: the reason of a condition, an event or an action."""

    # The life of a job
    CHILDREN_MISSING = "ChildrenMissing"
    CHILDREN_CREATED = "ChildrenCreated"
    WAITING_FOR_PODS = "WaitingForPods"
    TRAINING = "Training"
    NOT_RESTARTING = "NotRestarting"
    CHIEF_REPLACED = "ChiefReplaced"
    PS_LOST = "PSLost"
    SUSPENDED = "Suspended"
    NOT_SUSPENDED = "NotSuspended"
    RESUMED = "Resumed"
    STOPPING = "Stopping"
    NOT_FINISHED = "NotFinished"
    CHIEF_SUCCEEDED = "ChiefSucceeded"
    WORKER_ZERO_SUCCEEDED = "WorkerZeroSucceeded"
    ALL_WORKERS_SUCCEEDED = "AllWorkersSucceeded"
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded"
    REPLICA_FAILED = "ReplicaFailed"
    BAD_SETTINGS = "BadSettings"
    FAILURE_RULE = "FailureRule"
    RESTARTS_EXCEEDED = "RestartsExceeded"
    TOO_FEW_WORKERS = "TooFewWorkers"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    JOB_FINISHED = "JobFinished"
    TTL_EXPIRED = "TTLExpired"
    # What keeps a pod from running
    UNSCHEDULABLE = "Unschedulable"
    SCHEDULING_GATED = "SchedulingGated"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_CONFIG_INVALID = "ContainerConfigInvalid"
    CRASH_LOOP = "CrashLoop"
    QUOTA_EXCEEDED = "QuotaExceeded"
    INIT_CONTAINER_FAILED = "InitContainerFailed"
    NODE_LOST = "NodeLost"
    PODS_REFUSED = "PodsRefused"
    VOLUME_NOT_MOUNTED = "VolumeNotMounted"
    STILL_WAITING = "StillWaiting"
    NO_STEP = "NoStep"
    STEPPING = "Stepping"
    WAITING_FOR_GANG = "WaitingForGang"
    # How the shards stand
    STANDBY_MISSING = "StandbyMissing"
    STANDBYS_READY = "StandbysReady"
    TOOK_OVER = "TookOver"
    TAKE_OVER = "TakeOver"
    # How the number of parameter servers changes
    CHECKPOINTING = "Checkpointing"
    RESHARDING = "Resharding"
    RESUMING = "Resuming"
    RESCALED = "Rescaled"
    # How parameter servers are made anew beside their standbys
    REPLACING_SERVERS = "ReplacingServers"
    SERVERS_UPDATED = "ServersUpdated"
    UPDATE_REFUSED = "UpdateRefused"
    # What is wrong with the job or its surroundings
    NO_CHECKPOINT_VOLUME = "NoCheckpointVolume"
    CHECKPOINT_VOLUME_NOT_DURABLE = "CheckpointVolumeNotDurable"
    CHECKPOINT_DURABLE = "CheckpointDurable"
    WORKER_TEMPLATE_COPIED = "WorkerTemplateCopied"
    OWN_SETTINGS = "OwnSettings"
    NAME_TAKEN = "NameTaken"
    NAMES_FREE = "NamesFree"
    TEMPLATE_REFUSED = "TemplateRefused"
    TEMPLATE_ACCEPTED = "TemplateAccepted"
    STATUS_TOO_LARGE = "StatusTooLarge"
    STATUS_REFUSED = "StatusRefused"
    STATUS_ACCEPTED = "StatusAccepted"
    WRITE_REFUSED = "WriteRefused"
    GANG_NOT_INSTALLED = "GangNotInstalled"
    # Why an action is taken
    DESIRED = "Desired"
    NOT_DESIRED = "NotDesired"
    DRIFTED = "Drifted"
    SPEC_CHANGED = "SpecChanged"
    WORKER_SUCCEEDED = "WorkerSucceeded"
    CLUSTER_MAP_CHANGED = "ClusterMapChanged"
    PROGRAM_ENDED = "ProgramEnded"
    STUCK_IN_BACK_OFF = "StuckInBackOff"
    NEXT_TERM = "NextTerm"
    NEXT_ATTEMPT = "NextAttempt"
    GIVEN_UP = "GivenUp"
    JOB_RESTARTED = "JobRestarted"
    OLD_TERM = "OldTerm"


class Phase(StrEnum):
    """One word for people, derived from the conditions; never decided on."""

    PENDING = "Pending"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    RESCALING = "Rescaling"
    STOPPING = "Stopping"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    INVALID = "Invalid"
