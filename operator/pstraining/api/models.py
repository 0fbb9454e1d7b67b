"""The API's objects: what a user writes in spec. What the operator tells is in status.py.

These models are the one source of the CRD (api/crd.py generates it) and of the typed spec that planning works on.
Defaults and bounds live here and so in the schema; rules across fields are CEL (api/rules.py). A field is added
together with its behaviour, never before.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from pstraining.api import schemas
from pstraining.api.base import Model
from pstraining.api.run_policy import Backoff, CleanPodPolicy, FailurePolicy, RestartPolicy, RunPolicy, SuccessPolicy
from pstraining.api.training import TrainingSpec

PodTemplate = Annotated[dict[str, Any], Field(json_schema_extra=schemas.pod_template)]
"""A pod template, opaque but for a skeleton of its containers."""
Resources = Annotated[dict[str, Any], Field(json_schema_extra=schemas.resources)]
"""A container's resources: limits and requests."""
VolumeSource = Annotated[dict[str, Any], Field(json_schema_extra=schemas.opaque)]
ClaimTemplate = Annotated[dict[str, Any], Field(json_schema_extra=schemas.claim_template)]


class Server(StrEnum):
    """Who runs TensorFlow's server on a PS."""

    PROGRAM = "Program"
    BUILTIN = "Builtin"


class Addressing(StrEnum):
    """How the others reach a worker."""

    HEADLESS = "Headless"
    CLUSTER_IP = "ClusterIP"


class OnChiefRestart(StrEnum):
    """What becomes of the parameter servers' memory when a new attempt of the chief starts."""

    RESTART = "Restart"
    KEEP = "Keep"


class StandbyMode(StrEnum):
    """What stands by for a parameter server that is lost."""

    NONE = "None"
    WARM = "Warm"
    HOT = "Hot"


class Isolation(StrEnum):
    """Who may reach the job's pods."""

    TRAINING = "Training"
    FULL = "Full"
    NONE = "None"


class Retention(StrEnum):
    """What becomes of a claim."""

    RETAIN = "Retain"
    DELETE = "Delete"


class Role(Model):
    """What every role has."""

    restart_policy: RestartPolicy = Field(
        default=RestartPolicy.ON_FAILURE,
        description="What follows a failed replica. OnFailure: it is started again, within its budget. Always: also "
        "after exit code 0 (of workers; a chief that ends with 0 has succeeded). Never: the job fails. ExitCode: 1 to "
        "127 fails the job, 128 and more is started again. A pod that Kubernetes ends (evicted, preempted, deleted, "
        "its node lost) is started again in every case, uncounted.",
    )
    backoff: Backoff = Field(default=Backoff(), description="The failures that one replica may have.")
    clean_pod_policy: CleanPodPolicy = Field(
        default=CleanPodPolicy(), description="In place of runPolicy.cleanPodPolicy, for this role."
    )


class Standby(Model):
    """Members of a shard that stand by."""

    mode: StandbyMode = Field(
        default=StandbyMode.NONE,
        description="None: a lost parameter server is started again. Warm: a second process with its server up takes "
        "the address over; the program goes on from its checkpoint. Hot: with pstraining.runtime and a "
        "training.mode, standbys get every update, too; a lost parameter server costs none that a worker was told of.",
    )
    replicas_per_shard: int = Field(default=1, ge=1, le=4, description="Standbys of each shard; with Hot 1 or 2.")


class ClaimMetadata(Model):
    """A claim template's metadata."""

    name: str = Field(
        pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63, description="The volume's name in the pod template."
    )
    labels: dict[str, str] = Field(default_factory=dict, description="Labels of the claims.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations of the claims.")


class VolumeClaimTemplate(Model):
    """A claim for each parameter server, as in a StatefulSet."""

    metadata: ClaimMetadata = Field(description="The claims' name and labels.")
    spec: ClaimTemplate = Field(description="The claims' spec.")


class ClaimRetention(Model):
    """What becomes of the parameter servers' claims."""

    when_deleted: Retention = Field(default=Retention.RETAIN, description="When the job is deleted.")
    when_scaled: Retention = Field(
        default=Retention.RETAIN, description="When ps.replicas shrinks, to those of the shards that are gone."
    )


class PSSpec(Role):
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
    standby: Standby = Field(default=Standby(), description="What stands by for a lost parameter server.")
    on_chief_restart: OnChiefRestart | None = Field(
        default=None,
        description="What becomes of the servers' memory when a new attempt of the chief starts. Restart: they are "
        "started again, since a plain program's dead chief leaves its variables behind. Keep: nothing. By default "
        "Restart, unless pstraining.runtime owns the state.",
    )
    volume_claim_templates: list[VolumeClaimTemplate] = Field(
        default_factory=list, max_length=8, description="Claims for each parameter server, as in a StatefulSet."
    )
    persistent_volume_claim_retention_policy: ClaimRetention = Field(
        default=ClaimRetention(), description="What becomes of those claims."
    )


class WorkerSpec(Role):
    """The workers."""

    replicas: int = Field(ge=1, le=10000, description="How many workers train.")
    min_replicas: int | None = Field(
        default=None,
        ge=1,
        le=10000,
        description="Workers without which the job cannot go on. If set, a worker whose budget is spent is given up, "
        "and the job fails only when fewer are left; if not, it fails with the first.",
    )
    template: PodTemplate = Field(description="Their pod template, and the default of the other roles'.")
    addressing: Addressing = Field(
        default=Addressing.HEADLESS,
        description="Headless: a DNS name each. ClusterIP: a Service each, so that a coordinator reaches a replaced "
        "worker at once.",
    )


class ChiefSpec(Role):
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


class EvaluatorSpec(Role):
    """The evaluator: looks at checkpoints while the others train; its end does not end the job."""

    enabled: bool = Field(default=False, description="Whether there is one.")
    template: PodTemplate | None = Field(
        default=None,
        description="Its pod template. Defaults to worker.template without its extended resources (GPUs) and with its "
        "devices hidden.",
    )
    resources: Resources | None = Field(
        default=None, description="Resources of the container tensorflow, in place of the template's."
    )
    in_cluster: bool = Field(
        default=False,
        description="Whether TF_CONFIG's cluster names it. Most TensorFlow 2 programs hang if it does, some old ones "
        "need it.",
    )


class CheckpointSpec(Model):
    """Where the chief keeps checkpoints."""

    path: str = Field(
        default="/checkpoints",
        pattern="^/[^:]*$",
        max_length=1024,
        description="Where the volume is mounted in the chief; every program finds it in PSTRAINING_CHECKPOINT_DIR.",
    )
    keep: int = Field(default=3, ge=1, le=1000, description="How many checkpoints the runtime keeps.")
    interval_seconds: int | None = Field(
        default=None,
        ge=1,
        le=86400,
        description="Seconds between two checkpoints of the runtime. Unless given, it follows from what a checkpoint "
        "costs and how often parameter servers are lost (Young's rule), 5 seconds to 10 minutes.",
    )
    volume: VolumeSource | None = Field(
        default=None,
        description="A pod's volume source, without a name, such as {persistentVolumeClaim: {claimName: c}}.",
    )
    volume_claim_template: ClaimTemplate | None = Field(
        default=None, description="A claim's spec; the claim <job>-checkpoint is created and goes with the job."
    )


class NetworkSpec(Model):
    """Who may reach the job, and where its pods stand."""

    isolation: Isolation = Field(
        default=Isolation.TRAINING,
        description="Training: only the job's own pods reach TensorFlow's ports, since its server runs whatever it is "
        "sent; other ports stay open. Full: only they reach any port. None: no NetworkPolicy.",
    )
    topology_key: str = Field(
        default="kubernetes.io/hostname",
        min_length=1,
        max_length=317,
        description="The nodes' label over whose values pods are spread, and which no two members of a shard share.",
    )
    pack_topology_key: str | None = Field(
        default=None,
        min_length=1,
        max_length=317,
        description="The nodes' label of which the job's pods would rather share one value, such as a zone or a rack: "
        "what workers and parameter servers send each other then stays inside. Within it they are still spread over "
        "`topologyKey`. A job never waits for it.",
    )
    bandwidth_megabits: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="What a node's network carries each way, in megabits a second. A hint: `kubectl pstraining "
        "plan` reckons with it how long an update takes; nothing is limited to it.",
    )


class PSTrainingJobSpec(Model):
    """What is to be trained, and how."""

    ps: PSSpec
    worker: WorkerSpec
    chief: ChiefSpec = ChiefSpec()
    evaluator: EvaluatorSpec = EvaluatorSpec()
    checkpoint: CheckpointSpec | None = None
    training: TrainingSpec = TrainingSpec()
    run_policy: RunPolicy = RunPolicy()
    success_policy: SuccessPolicy = Field(
        default=SuccessPolicy.CHIEF,
        description="Chief: the job succeeds with its chief (worker 0 where there is none). AllWorkers: when every "
        "worker has ended with 0, and the chief if there is one.",
    )
    failure_policy: FailurePolicy = FailurePolicy()
    network: NetworkSpec = NetworkSpec()


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
