"""What the operator tells in status."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from pstraining.api import schemas
from pstraining.api.base import Model


class LastFailure(Model):
    """The newest failure of a role, for people."""

    pod: str = Field(description="The pod that failed.")
    exit_code: int | None = Field(default=None, description="Of its training container, if that ended.")
    reason: str = Field(default="", description="Why, in one word, as in failurePolicy.")
    message: str = Field(default="", description="The last line of its log.")
    time: datetime | None = Field(default=None, description="When it failed.")
    count: int = Field(default=0, description="Failures of this replica so far.")


class RoleStatus(Model):
    """How one role stands."""

    desired: int = Field(default=0, description="Replicas that the spec asks for.")
    replicas: int = Field(default=0, description="Replicas asked for: those that are not suspended, freed or done.")
    ready: int = Field(default=0, description="Replicas whose pod is ready.")
    succeeded: int = Field(default=0, description="Replicas whose program has ended with 0 for good.")
    restarts: int = Field(default=0, description="Replicas started again, for whatever reason.")
    summary: str = Field(default="", description="ready/desired, for kubectl's columns.")
    last_failure: LastFailure | None = None


class ShardStatus(Model):
    """How one shard of the parameters stands; told when parameter servers have standbys."""

    index: int = Field(description="The shard's number: its task index.")
    members: int = Field(default=0, description="Pods that the shard has.")
    primary: str = Field(default="", description="The pod that serves it; before one does, empty with hot standbys.")
    ready_standbys: int = Field(default=0, description="Standbys that could take over now.")
    takeovers: int = Field(default=0, description="How often another member became primary.")
    last_cause: str = Field(default="", description="Why the last take-over happened.")


class ReplicaRecord(Model):
    """What has been counted of one replica that failed or was replaced: the counters that no pod remembers."""

    role: str = Field(description="The replica's role.")
    index: int = Field(description="Its task index.")
    member: int = Field(default=0, description="Of a parameter server: which member of its shard.")
    failures: int = Field(default=0, description="Failures that count against the replica's budget.")
    failure_times: list[datetime] = Field(
        default_factory=list, description="When the newest of them happened; kept where backoff has a window."
    )
    restarts: int = Field(default=0, description="How often it was started again, for whatever reason.")
    given_up: bool = Field(default=False, description="A worker that the job goes on without.")
    pod_uid: str = Field(default="", alias="podUID", description="The newest pod that was counted.")
    pod_created: datetime | None = Field(default=None, description="When that pod was created.")
    ended: int = Field(default=0, description="Ended runs of that pod's container that are counted.")


class StatusCondition(Model):
    """A condition, as everywhere in Kubernetes."""

    type: str = Field(description="What it is about; docs/reference lists all.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it is so.")
    reason: str = Field(description="Why, in one word for programs.")
    message: str = Field(default="", description="Why, for people, and what to do.")
    last_transition_time: datetime = Field(description="When status last changed.")
    observed_generation: int = Field(default=0, description="The generation of the spec that it was said of.")


class PSTrainingJobStatus(Model):
    """How the job stands."""

    observed_generation: int = Field(default=0, description="The newest generation of the spec that was acted on.")
    phase: str = Field(default="", description="One word for people; the conditions are the truth.")
    conditions: list[StatusCondition] = Field(
        default_factory=list, json_schema_extra=schemas.map_list("type"), description="Terminal truth is here."
    )
    start_time: datetime | None = Field(default=None, description="Since when the job is active.")
    active_seconds: int = Field(default=0, description="Seconds that it was active before it was last suspended.")
    completion_time: datetime | None = Field(default=None, description="When the job succeeded or failed.")
    term: int = Field(default=0, description="The newest attempt of the chief: its fencing token.")
    evaluator_attempt: int = Field(default=0, description="The newest attempt of the evaluator.")
    restarts: int = Field(default=0, description="Replicas started again, for whatever reason.")
    job_restarts: int = Field(default=0, description="How often failurePolicy restarted the job as a whole.")
    ps: RoleStatus = RoleStatus()
    worker: RoleStatus = RoleStatus()
    chief: RoleStatus = RoleStatus()
    evaluator: RoleStatus | None = None
    shards: list[ShardStatus] = Field(
        default_factory=list, json_schema_extra=schemas.map_list("index"), description="How each shard stands."
    )
    standby_summary: str = Field(default="", description="Ready standbys of those desired, for kubectl's columns.")
    takeovers: int = Field(default=0, description="How often a standby became primary.")
    failed_replica: str = Field(default="", description="The replica that failed the job, as role/index.")
    selector: str = Field(default="", description="The workers' label selector, for the scale subresource.")
    replica_records: list[ReplicaRecord] = Field(
        default_factory=list,
        json_schema_extra=schemas.map_list("role", "index", "member"),
        description="What has been counted of replicas that failed or were replaced.",
    )
