"""The operator's reports in status."""

from datetime import datetime
from typing import Final, Literal

from pydantic import Field

from pstraining.api import contract, schemas
from pstraining.api.autoscaling import RoleSizing
from pstraining.api.base import ApiModel

REPLICAS_MAX: Final = 10_000
"""Upper bound of the replicas of one role in spec."""
SHARDS_MAX: Final = 1000
"""Upper bound of ps.replicas in spec."""
FULL_RECORDS_MAX: Final = 200
"""Records that status holds in full; more are packed, because etcd limits the size of an object (packed_records.py)."""
ROLES_MAX: Final = 4
METRIC_VALUE_MAX: Final = 64
PACKED_MAX: Final = 16
"""Upper bound of the items of packedRecords: one for each role, and one for each member of the shards."""


class LastFailure(ApiModel):
    """Newest failure of the role."""

    pod: str = Field(description="Name of the pod that failed.")
    exit_code: int | None = Field(
        default=None, description="Exit code of the pod's training container, if the container ended."
    )
    reason: str = Field(default="", description="Cause of the failure, as in failurePolicy.")
    message: str = Field(default="", description="Last line of the container's log.")
    time: datetime | None = Field(default=None, description="Time of the failure.")
    count: int = Field(default=0, description="Failures of this replica so far.")


class RefusedSize(ApiModel):
    """Refusal of the role's new size by the API server, for its running pods."""

    generation: int = Field(description="Generation of the spec whose size was refused. It is not requested again.")
    reason: str = Field(description="ResizeRefused, or UpdateRefused if a template was refused.")
    message: str = Field(description="Message of the API server, with the object's name.")


class RoleStatus(ApiModel):
    """State of one role."""

    desired: int = Field(default=0, description="Replicas of the job as it runs.")
    replicas: int = Field(
        default=0, description="Replicas that should run now: those that are neither suspended, cleaned up nor done."
    )
    ready: int = Field(default=0, description="Replicas with a ready pod.")
    succeeded: int = Field(default=0, description="Replicas whose program has ended with exit code 0 for good.")
    restarts: int = Field(default=0, description="Number of replica restarts, for any reason.")
    summary: str = Field(default="", description="Ready and desired replicas, as ready/desired.")
    last_failure: LastFailure | None = None
    refused_size: RefusedSize | None = None


class ShardStatus(ApiModel):
    """State of one shard of the parameters; present if parameter servers have standbys."""

    index: int = Field(description="Number of the shard: its task index.")
    members: int = Field(default=0, description="Number of pods of the shard.")
    primary: str = Field(
        default="",
        description="Name of the primary's pod. With hot standbys it is empty until the shard has a primary.",
    )
    ready_standbys: int = Field(default=0, description="Standbys that are ready for a failover now.")
    takeovers: int = Field(default=0, description="Number of failovers and switchovers: another member became primary.")
    last_cause: str = Field(default="", description="Cause of the last failover or switchover.")


class TrainingMetric(ApiModel):
    """One number of the training program."""

    name: str = Field(max_length=contract.METRIC_NAME_MAX, description="Name of the metric.")
    value: str = Field(max_length=METRIC_VALUE_MAX, description="Newest value of the metric.")


class TrainingProgress(ApiModel):
    """Progress of training, as the program of the chief has reported it."""

    step: int | None = Field(default=None, ge=0, description="Parameter updates so far, in the whole job.")
    steps: int | None = Field(default=None, ge=0, description="Parameter updates that the job will make, if known.")
    epoch: int | None = Field(default=None, ge=0, description="Current epoch, from 0.")
    progress_percentage: int | None = Field(
        default=None, ge=0, le=100, description="Share of training that is done, in percent, if its end is known."
    )
    estimated_remaining_seconds: int | None = Field(
        default=None, ge=0, description="Estimated seconds until training ends, if its end is known."
    )
    loss: str | None = Field(
        default=None, max_length=METRIC_VALUE_MAX, description="Mean loss of all workers over the last seconds."
    )
    metrics: list[TrainingMetric] = Field(
        default_factory=list,
        max_length=contract.METRICS_MAX,
        json_schema_extra=schemas.atomic_list(contract.METRICS_MAX),
        description="Metrics of the program, such as those of the last epoch.",
    )
    samples_per_second: str | None = Field(
        default=None, max_length=METRIC_VALUE_MAX, description="Samples that all workers train per second."
    )
    checkpoint_step: int | None = Field(default=None, ge=0, description="Step of the newest checkpoint.")
    checkpoint_time: datetime | None = Field(default=None, description="Time of the newest checkpoint.")
    layout: int | None = Field(
        default=None, ge=1, description="Number of the layout in which the parameters are partitioned over the servers."
    )
    term: int | None = Field(default=None, ge=1, description="Attempt of the chief that has reported the layout.")
    last_updated_time: datetime | None = Field(default=None, description="Time of the report.")


class ReplicaRecord(ApiModel):
    """Counters of one replica that failed or was replaced, because they outlive its pods."""

    role: str = Field(description="Role of the replica.")
    index: int = Field(description="Task index of the replica.")
    member: int = Field(default=0, description="Number of the member in its shard; parameter servers only.")
    failures: int = Field(default=0, description="Failures that count against the replica's budget.")
    failure_times: list[datetime] = Field(
        default_factory=list, description="Times of the newest of these failures; kept only if backoff has a window."
    )
    restarts: int = Field(default=0, description="Number of restarts of the replica, for any reason.")
    given_up: bool = Field(default=False, description="Marks a worker that the job continues without.")
    pod_uid: str = Field(default="", alias="podUID", description="UID of the newest pod that was counted.")
    pod_created: datetime | None = Field(default=None, description="Creation time of that pod.")
    ended: int = Field(default=0, description="Ended runs of that pod's container that have been counted.")


class PackedRecords(ApiModel):
    """Records of many replicas of one role in columns. The n-th entry of each list belongs to the n-th index."""

    role: str = Field(description="Role of the replicas.")
    member: int = Field(default=0, description="Number of the member in its shard; parameter servers only.")
    indexes: str = Field(description="Task indexes in ascending order, as ranges such as 0-57,60.")
    given_up: str = Field(default="", description="Indexes of the workers that the job continues without.")
    since: datetime = Field(description="Time from which podCreated and failureTimes are counted.")
    failures: list[int] = Field(
        json_schema_extra=schemas.atomic_list(REPLICAS_MAX), description="As in replicaRecords, for each index."
    )
    failure_times: list[list[int]] = Field(
        default_factory=list,
        json_schema_extra=schemas.atomic_list(REPLICAS_MAX),
        description="As in replicaRecords, in seconds; empty if no backoff has a window.",
    )
    restarts: list[int] = Field(
        json_schema_extra=schemas.atomic_list(REPLICAS_MAX), description="As in replicaRecords, for each index."
    )
    pod_uids: list[str] = Field(
        alias="podUIDs",
        json_schema_extra=schemas.atomic_list(REPLICAS_MAX),
        description="As in replicaRecords, each UID as the base64 text of its 16 bytes.",
    )
    pod_created: list[int] = Field(
        json_schema_extra=schemas.atomic_list(REPLICAS_MAX), description="As in replicaRecords, in seconds."
    )
    ended: list[int] = Field(
        json_schema_extra=schemas.atomic_list(REPLICAS_MAX), description="As in replicaRecords, for each index."
    )


class StatusCondition(ApiModel):
    """A condition, as in other Kubernetes APIs."""

    type: str = Field(
        description="Type of the condition, such as Running, Succeeded, Failed or Degraded. The API reference "
        "lists all types."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Status of the condition: True, False or Unknown.")
    reason: str = Field(description="Reason in one word, for programs.")
    message: str = Field(default="", description="Human-readable explanation, with the next step if there is one.")
    last_transition_time: datetime = Field(description="Last time that status changed.")
    observed_generation: int = Field(default=0, description="Generation of the spec that the condition describes.")


class PSTrainingJobStatus(ApiModel):
    """Observed state of the job, written by the operator."""

    observed_generation: int = Field(
        default=0, description="Newest generation of the spec that the operator has processed."
    )
    phase: str = Field(default="", description="Summary for display. Use the conditions in automation.")
    conditions: list[StatusCondition] = Field(
        default_factory=list,
        json_schema_extra=schemas.map_list("type"),
        description="Current conditions of the job. Succeeded and Failed are final.",
    )
    start_time: datetime | None = Field(
        default=None, description="Time since which the job has been active; unset while it is suspended."
    )
    active_seconds: int = Field(default=0, description="Seconds that the job was active before its last suspension.")
    completion_time: datetime | None = Field(default=None, description="Time at which the job succeeded or failed.")
    term: int = Field(
        default=0,
        description="Number of the chief's newest attempt, which is its fencing token. Older attempts are ignored.",
    )
    evaluator_attempt: int = Field(default=0, description="Number of the evaluator's newest attempt.")
    restarts: int = Field(default=0, description="Number of replica restarts, for any reason.")
    job_restarts: int = Field(default=0, description="Number of restarts of the whole job by failurePolicy.")
    ps: RoleStatus = RoleStatus()
    worker: RoleStatus = RoleStatus()
    chief: RoleStatus = RoleStatus()
    evaluator: RoleStatus | None = None
    shards: list[ShardStatus] = Field(
        default_factory=list,
        json_schema_extra=schemas.atomic_list(SHARDS_MAX),
        description="State of each shard; only with standbys.",
    )
    standby_summary: str = Field(default="", description="Ready and desired standbys, as ready/desired.")
    takeovers: int = Field(default=0, description="Number of failovers and switchovers in all shards.")
    training: TrainingProgress | None = Field(
        default=None, description="Progress of training, at most a minute old while the job runs."
    )
    autoscaling: list[RoleSizing] = Field(
        default_factory=list,
        json_schema_extra=schemas.atomic_list(ROLES_MAX),
        description="Measurements of each role, and the sizes that follow from them; only with spec.autoscaling.",
    )
    failed_replica: str = Field(default="", description="Replica that failed the job, as role/index.")
    selector: str = Field(default="", description="Label selector of the workers, for the scale subresource.")
    completed_indexes: str = Field(
        default="",
        pattern=r"^(\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*)?$",
        description="Indexes of the workers whose program has ended with exit code 0 for good, as ranges such as "
        "0-57,60.",
    )
    replica_records: list[ReplicaRecord] = Field(
        default_factory=list,
        json_schema_extra=schemas.atomic_list(FULL_RECORDS_MAX),
        description="Counters of replicas that failed or were replaced. If there are more than 200, the list has the "
        "replicas that are given up or failed most often; packedRecords has the others.",
    )
    packed_records: list[PackedRecords] = Field(
        default_factory=list,
        json_schema_extra=schemas.atomic_list(PACKED_MAX),
        description="Counters of the replicas beyond the 200 in replicaRecords, in a compact form.",
    )
