"""The API's objects: what a user writes in spec and what the operator tells in status.

These models are the one source of the CRD (api/crd.py generates it) and of the typed spec that planning works on.
Defaults and bounds live here and so in the schema; rules across fields are CEL (api/rules.py). A field is added
together with its behaviour, never before.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pstraining.api import schemas

PodTemplate = Annotated[dict[str, Any], Field(json_schema_extra=schemas.pod_template)]
"""A pod template, opaque but for a skeleton of its containers."""
Resources = Annotated[dict[str, Any], Field(json_schema_extra=schemas.resources)]
"""A container's resources: limits and requests."""
VolumeSource = Annotated[dict[str, Any], Field(json_schema_extra=schemas.opaque)]
ClaimTemplate = Annotated[dict[str, Any], Field(json_schema_extra=schemas.claim_template)]


class Model(BaseModel):
    """Camel case outside, snake case inside; immutable; lenient to fields of a newer CRD."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


class Server(StrEnum):
    """Who runs TensorFlow's server on a PS."""

    PROGRAM = "Program"
    BUILTIN = "Builtin"


class Addressing(StrEnum):
    """How the others reach a worker."""

    HEADLESS = "Headless"
    CLUSTER_IP = "ClusterIP"


class CleanPodPolicy(StrEnum):
    """Which pods go when the job has finished."""

    RUNNING = "Running"
    ALL = "All"
    NONE = "None"


class PSSpec(Model):
    """The parameter servers."""

    replicas: int = Field(ge=1, le=1000, description="How many parameter servers hold the model's parameters.")
    template: PodTemplate | None = Field(
        default=None,
        description="Their pod template. Defaults to worker.template without its extended resources (GPUs) and with "
        "its devices hidden.",
    )
    resources: Resources | None = Field(
        default=None, description="Resources of the container tensorflow, in place of the template's."
    )
    server: Server = Field(
        default=Server.PROGRAM,
        description="Program: the template's command runs TensorFlow's server. Builtin: the launcher runs it, and the "
        "command is not used.",
    )
    restart_policy: Literal["OnFailure"] = Field(default="OnFailure", description="What follows a failed replica.")


class WorkerSpec(Model):
    """The workers."""

    replicas: int = Field(ge=1, le=10000, description="How many workers train.")
    template: PodTemplate = Field(description="Their pod template, and the default of the other roles'.")
    addressing: Addressing = Field(
        default=Addressing.HEADLESS,
        description="Headless: a DNS name each. ClusterIP: a Service each, so that a coordinator reaches a replaced "
        "worker at once.",
    )
    restart_policy: Literal["OnFailure"] = Field(default="OnFailure", description="What follows a failed replica.")


class ChiefSpec(Model):
    """The chief: coordinates, checkpoints, evaluates; its success is the job's."""

    enabled: bool = Field(
        default=True, description="false: worker 0 has the chief's duties, and its exit 0 is the job's success."
    )
    template: PodTemplate | None = Field(
        default=None,
        description="Its pod template. Defaults to worker.template without its extended resources (GPUs) and with its "
        "devices hidden.",
    )
    resources: Resources | None = Field(
        default=None, description="Resources of the container tensorflow, in place of the template's."
    )
    restart_policy: Literal["OnFailure"] = Field(default="OnFailure", description="What follows a failed attempt.")


class CheckpointSpec(Model):
    """Where the chief keeps checkpoints."""

    path: str = Field(
        default="/checkpoints",
        pattern="^/[^:]*$",
        max_length=1024,
        description="Where the volume is mounted in the chief; every program finds it in PSTRAINING_CHECKPOINT_DIR.",
    )
    keep: int = Field(default=3, ge=1, le=1000, description="How many checkpoints the runtime keeps.")
    interval_seconds: int = Field(
        default=60, ge=1, le=86400, description="Seconds between two checkpoints of the runtime."
    )
    volume: VolumeSource | None = Field(
        default=None,
        description="A pod's volume source, without a name, such as {persistentVolumeClaim: {claimName: c}}.",
    )
    volume_claim_template: ClaimTemplate | None = Field(
        default=None, description="A claim's spec; the claim <job>-checkpoint is created and goes with the job."
    )


class Mode(StrEnum):
    """How updates reach the parameters."""

    ASYNC = "Async"


class TrainingSpec(Model):
    """Settings for programs that use pstraining.runtime; others ignore them."""

    mode: Mode = Field(default=Mode.ASYNC, description="Async: every worker applies its updates on its own.")
    steps: int | None = Field(
        default=None, ge=1, le=2**53, description="Global steps to train, in place of the program's own number."
    )


class RunPolicy(Model):
    """How the job as a whole is run and ended."""

    suspend: bool = Field(
        default=False, description="true: the job's pods go, and come back from the newest checkpoint on false."
    )
    clean_pod_policy: CleanPodPolicy = Field(
        default=CleanPodPolicy.RUNNING,
        description="On the end of the job: Running frees what still runs and keeps the finished chief for its log, "
        "All frees everything, None nothing.",
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None, ge=0, le=2**31 - 1, description="Seconds after its end at which the job deletes itself."
    )
    backoff_limit: int = Field(
        default=6, ge=0, le=10000, description="How often one replica may fail before the job does."
    )


class PSTrainingJobSpec(Model):
    """What is to be trained, and how."""

    ps: PSSpec
    worker: WorkerSpec
    chief: ChiefSpec = ChiefSpec()
    checkpoint: CheckpointSpec | None = None
    training: TrainingSpec = TrainingSpec()
    run_policy: RunPolicy = RunPolicy()


class LastFailure(Model):
    """The newest failure of a role, for people."""

    pod: str
    exit_code: int | None = None
    reason: str = ""
    message: str = Field(default="", description="The last line of its log.")
    time: datetime | None = None
    count: int = Field(default=0, description="Failures of this replica so far.")


class RoleStatus(Model):
    """How one role stands."""

    desired: int = 0
    replicas: int = Field(default=0, description="Replicas asked for: those that are not suspended, freed or done.")
    ready: int = 0
    succeeded: int = 0
    restarts: int = Field(default=0, description="Replicas started again, for whatever reason.")
    summary: str = Field(default="", description="ready/desired, for kubectl's columns.")
    last_failure: LastFailure | None = None


class ReplicaRecord(Model):
    """What has been counted of one replica that failed or was replaced: the counters that no pod remembers."""

    role: str
    index: int
    failures: int = Field(default=0, description="Failures that count against backoffLimit.")
    restarts: int = 0
    pod_uid: str = Field(default="", alias="podUID", description="The newest pod that was counted.")
    pod_created: datetime | None = None
    ended: int = Field(default=0, description="Ended runs of that pod's container that are counted.")


class StatusCondition(Model):
    """A condition, as everywhere in Kubernetes."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    last_transition_time: datetime
    observed_generation: int = 0


class PSTrainingJobStatus(Model):
    """How the job stands."""

    observed_generation: int = 0
    phase: str = Field(default="", description="One word for people; the conditions are the truth.")
    conditions: list[StatusCondition] = Field(
        default_factory=list, json_schema_extra=schemas.map_list("type"), description="Terminal truth is here."
    )
    start_time: datetime | None = None
    completion_time: datetime | None = None
    term: int = Field(default=0, description="The newest attempt of the chief: its fencing token.")
    restarts: int = 0
    ps: RoleStatus = RoleStatus()
    worker: RoleStatus = RoleStatus()
    chief: RoleStatus = RoleStatus()
    selector: str = Field(default="", description="The workers' label selector, for the scale subresource.")
    replica_records: list[ReplicaRecord] = Field(
        default_factory=list, json_schema_extra=schemas.map_list("role", "index")
    )


class Metadata(Model):
    """The part of metadata that planning reads."""

    name: str
    namespace: str
    uid: str
    generation: int = 1


class PSTrainingJob(Model):
    """One training job."""

    metadata: Metadata
    spec: PSTrainingJobSpec
