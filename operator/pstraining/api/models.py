"""The API's objects and their spec. The operator's reports are in status.py.

These models are the one source of the CRD (api/crd.py generates it) and of the typed spec that planning works on.
Defaults and bounds are here, and therefore in the schema. Rules across fields are CEL (api/cel_rules.py). A field is
added together with its behaviour, never before.
"""

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from pstraining.api.autoscaling import Autoscaling
from pstraining.api.base import ApiModel
from pstraining.api.kubernetes_types import ClaimTemplate, PodTemplate, Resources, VolumeSource
from pstraining.api.run_policy import Backoff, CleanPodPolicy, FailurePolicy, RestartPolicy, RunPolicy, SuccessPolicy
from pstraining.api.standby import Standby
from pstraining.api.summary import HistoryPolicy
from pstraining.api.training import TrainingSpec

_RESIZED = "Running pods are resized in place on Kubernetes 1.33 or newer; the condition Resizing reports it."


class Server(StrEnum):
    """The process that runs TensorFlow's server on a PS."""

    PROGRAM = "Program"
    BUILTIN = "Builtin"


class Addressing(StrEnum):
    """Kind of a worker's network address."""

    HEADLESS = "Headless"
    CLUSTER_IP = "ClusterIP"


class OnChiefRestart(StrEnum):
    """Handling of the parameter servers' memory when a new attempt of the chief starts."""

    RESTART = "Restart"
    KEEP = "Keep"


class Isolation(StrEnum):
    """The peers that may reach the job's pods."""

    TRAINING = "Training"
    FULL = "Full"
    NONE = "None"


class Retention(StrEnum):
    """Handling of a claim."""

    RETAIN = "Retain"
    DELETE = "Delete"


class Role(ApiModel):
    """Fields of every role."""

    restart_policy: RestartPolicy = Field(
        default=RestartPolicy.ON_FAILURE,
        description="Action after a replica fails. OnFailure (default): restart within its failure budget. Always: as "
        "OnFailure, and restart a worker after exit code 0. Never: the failure is final. ExitCode: final from 1 to "
        "127, restart from 128 on. Pods that Kubernetes ends (eviction, preemption, deletion, lost node) are "
        "restarted without being counted. A matching rule of failurePolicy takes precedence.",
    )
    backoff: Backoff = Field(default=Backoff(), description="Failure budget of each replica of this role.")
    clean_pod_policy: CleanPodPolicy = Field(
        default=CleanPodPolicy(), description="Overrides runPolicy.cleanPodPolicy for this role."
    )


class ClaimMetadata(ApiModel):
    """A claim template's metadata."""

    name: str = Field(
        pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63, description="Name of the volume in the pod template."
    )
    labels: dict[str, str] = Field(default_factory=dict, description="Labels of the claims.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations of the claims.")


class VolumeClaimTemplate(ApiModel):
    """A claim for each parameter server, as in a StatefulSet."""

    metadata: ClaimMetadata = Field(description="Name, labels and annotations of the claims.")
    spec: ClaimTemplate = Field(description="Spec of the claims (core/v1 PersistentVolumeClaimSpec).")


class ClaimRetention(ApiModel):
    """Handling of the parameter servers' claims."""

    when_deleted: Retention = Field(
        default=Retention.RETAIN,
        description="Handling of the claims when the job is deleted. Retain (default): they are kept. Delete: "
        "they are deleted with their data.",
    )
    when_scaled: Retention = Field(
        default=Retention.RETAIN,
        description="Handling of the claims of removed shards when ps.replicas shrinks. Retain (default): they "
        "are kept. Delete: they are deleted with their data.",
    )


MAX_SERVERS: Final = 1000
"""Maximum of spec.ps.replicas."""


class PSSpec(Role):
    """The parameter servers, which hold the model's parameters."""

    replicas: int = Field(
        ge=1,
        le=MAX_SERVERS,
        description="Number of shards of the parameters, each with one primary. After a change, the chief saves, and "
        "the programs restart from that checkpoint. With hot standbys, training usually continues without a restart. "
        "Most jobs keep the pods of servers and workers.",
    )
    template: PodTemplate | None = Field(
        default=None,
        description="Pod template of the parameter servers. Default: a copy of worker.template without probes and GPUs "
        "(extended resources, resource claims), and with CUDA_VISIBLE_DEVICES empty. It also drops the selectors, "
        "tolerations and runtime class of GPU nodes. If it selects nodes by other labels, it keeps all.",
    )
    resources: Resources | None = Field(
        default=None,
        description="Resources of the training container (named tensorflow, or the only one), instead of the "
        "template's. " + _RESIZED,
    )
    server: Server = Field(
        default=Server.PROGRAM,
        description="Process that runs TensorFlow's server. Program (default): the command of the template. "
        "Builtin: the launcher; the command is not used.",
    )
    standby: Standby = Field(default=Standby(), description="Standbys for the failover of lost parameter servers.")
    on_chief_restart: OnChiefRestart | None = Field(
        default=None,
        description="Handling of the servers' memory when a new attempt of the chief starts. Restart: the "
        "servers' processes restart, which frees the variables of the old attempt. Keep: they keep running. "
        "Default: Keep if the program uses pstraining.runtime, otherwise Restart. Restart is refused with hot "
        "standbys.",
    )
    volume_claim_templates: list[VolumeClaimTemplate] = Field(
        default_factory=list, max_length=8, description="Claims created for each parameter server, as in a StatefulSet."
    )
    persistent_volume_claim_retention_policy: ClaimRetention = Field(
        default=ClaimRetention(), description="Handling of these claims when the job is deleted or ps.replicas shrinks."
    )


class WorkerSpec(Role):
    """The workers, which compute gradients."""

    replicas: int = Field(ge=1, le=10000, description="Number of workers.")
    min_replicas: int | None = Field(
        default=None,
        ge=1,
        le=10000,
        description="Minimum number of workers with which training continues. If set, a worker that exceeds its "
        "failure budget is given up while at least this many remain. If unset, the first such worker fails the job. "
        "Also the number of workers in a gang, and of the workers that vote with hot standbys.",
    )
    template: PodTemplate = Field(
        description="Pod template of the workers, and the default template of the other roles."
    )
    resources: Resources | None = Field(
        default=None,
        description="Resources of the workers' training container (named tensorflow, or the only one), instead of the "
        "template's. Other roles that copy the template keep the template's resources. " + _RESIZED,
    )
    addressing: Addressing = Field(
        default=Addressing.HEADLESS,
        description="Network address of a worker. Headless (default): a DNS name that resolves to its pod. "
        "ClusterIP: a Service per worker, so that a coordinator reaches a replaced worker at once.",
    )


class ChiefSpec(Role):
    """The chief, which coordinates training, saves checkpoints and evaluates."""

    enabled: bool = Field(
        default=True,
        description="Runs the chief in its own pod. Default true. When false, worker 0 does the chief's work and "
        "counts as the chief in successPolicy.",
    )
    template: PodTemplate | None = Field(
        default=None,
        description="Pod template of the chief. Default: a copy of worker.template without probes and GPUs (extended "
        "resources, resource claims), and with CUDA_VISIBLE_DEVICES empty. It also drops the selectors, tolerations "
        "and runtime class of GPU nodes. If it selects nodes by other labels, it keeps all.",
    )
    resources: Resources | None = Field(
        default=None,
        description="Resources of the training container (named tensorflow, or the only one), instead of the "
        "template's. " + _RESIZED,
    )


class EvaluatorSpec(Role):
    """The evaluator of checkpoints during training. The job does not end with it, but fails if its budget is spent."""

    enabled: bool = Field(
        default=False,
        description="Runs an evaluator pod during training. Default false. It mounts the checkpoint volume read-only.",
    )
    template: PodTemplate | None = Field(
        default=None,
        description="Pod template of the evaluator. Default: a copy of worker.template without probes and GPUs "
        "(extended resources, resource claims), and with CUDA_VISIBLE_DEVICES empty. It also drops the selectors, "
        "tolerations and runtime class of GPU nodes. If it selects nodes by other labels, it keeps all.",
    )
    resources: Resources | None = Field(
        default=None,
        description="Resources of the training container (named tensorflow, or the only one), instead of the "
        "template's. " + _RESIZED,
    )
    in_cluster: bool = Field(
        default=False,
        description="Lists the evaluator in the cluster of TF_CONFIG. Default false. Most TensorFlow 2 programs "
        "hang when it is listed; some older programs need it.",
    )


OBJECT_URI: Final = r"^(s3|gs)://[a-z0-9][a-z0-9._-]*[a-z0-9](/[A-Za-z0-9!_.*'()-]+)*$"
"""URIs of a bucket and a prefix, whose characters need no escaping. Clouds check the rest."""


class CheckpointSpec(ApiModel):
    """Storage of the chief's checkpoints."""

    path: str = Field(
        default="/checkpoints",
        pattern="^/[^:]*$",
        max_length=1024,
        description="Mount path of the volume in the chief, and read-only in the evaluator. Default /checkpoints. "
        "Programs find it in PSTRAINING_CHECKPOINT_DIR.",
    )
    uri: str | None = Field(
        default=None,
        pattern=OBJECT_URI,
        max_length=1024,
        description="Bucket and prefix of an object store instead of a volume, as s3://bucket/prefix or "
        "gs://bucket/prefix. The chief needs credentials for it, from its environment or service account; "
        "parameter servers need none. Programs find it in PSTRAINING_CHECKPOINT_DIR.",
    )
    keep: int = Field(
        default=3,
        ge=1,
        le=1000,
        description="Number of checkpoints that pstraining.runtime keeps. Default 3; older ones are deleted.",
    )
    interval_seconds: int | None = Field(
        default=None,
        ge=1,
        le=86400,
        description="Seconds between two checkpoints of pstraining.runtime. Default: computed from the cost of a "
        "checkpoint and the rate of lost servers (Young's rule), 5 seconds to 10 minutes. Slow saves raise the upper "
        "bound.",
    )
    full_every: int | None = Field(
        default=None,
        ge=1,
        le=100,
        description="Number of saves of pstraining.runtime of which one is full. The others write only the changed "
        "rows of large tables, where the parameter servers write their tables themselves. Default 1: every save is "
        "full.",
    )
    history: HistoryPolicy | None = Field(
        default=None,
        description="History of the job beside the checkpoints of pstraining.runtime: summary.json, and the end of "
        "each task's log. Keep (default of the runtime): the chief writes it. None: it does not.",
    )
    volume: VolumeSource | None = Field(
        default=None,
        description="Volume source of a pod, without a name, such as {persistentVolumeClaim: {claimName: c}}. Your "
        "own claim outlives the job.",
    )
    volume_claim_template: ClaimTemplate | None = Field(
        default=None,
        description="Spec of the claim <job>-checkpoint, which the operator creates. retainPolicy decides whether the "
        "claim outlives the job. An existing claim of that name is used unchanged, and never deleted.",
    )
    retain_policy: Retention = Field(
        default=Retention.RETAIN,
        description="Handling of the claim of volumeClaimTemplate when the job is deleted, also by "
        "ttlSecondsAfterFinished. Retain (default): it is kept. Delete: it is deleted with its checkpoints and the "
        "model. It may change at any time.",
    )


class NetworkSpec(ApiModel):
    """Network access to the job's pods, and their placement on nodes."""

    isolation: Isolation = Field(
        default=Isolation.TRAINING,
        description="Network access to the job's pods. Training (default): only the job's own pods reach TCP "
        "ports 2222 to 2239; other ports stay open. Full: only they reach any port. None: no NetworkPolicy. Any "
        "client of TensorFlow's port can run code in the pod.",
    )
    topology_key: str = Field(
        default="kubernetes.io/hostname",
        min_length=1,
        max_length=317,
        description="Node label by which parameter servers and workers are spread, as a preference. Default "
        "kubernetes.io/hostname. Members of one shard are never placed on nodes with the same value.",
    )
    pack_topology_key: str | None = Field(
        default=None,
        min_length=1,
        max_length=317,
        description="Node label, such as topology.kubernetes.io/zone, whose value the job's pods prefer to share, "
        "which keeps traffic local. Among those nodes, pods are still spread by topologyKey. This is a preference: "
        "the job never waits for it.",
    )
    bandwidth_megabits: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="Bandwidth of a node's network in each direction, in megabits per second. `kubectl pstraining "
        "plan` estimates the duration of an update from it. It does not limit traffic.",
    )


class PSTrainingJobSpec(ApiModel):
    """The desired job: its roles, training settings and policies."""

    ps: PSSpec
    worker: WorkerSpec
    chief: ChiefSpec = ChiefSpec()
    evaluator: EvaluatorSpec = EvaluatorSpec()
    checkpoint: CheckpointSpec | None = Field(
        default=None,
        description="Durable storage for checkpoints: exactly one of uri, volume and volumeClaimTemplate. Without it, "
        "the loss of a parameter server restarts training from the beginning, except with hot standbys. When the pods "
        "end, the parameters are lost unless the program saves them itself.",
    )
    training: TrainingSpec = TrainingSpec()
    autoscaling: Autoscaling = Autoscaling()
    run_policy: RunPolicy = RunPolicy()
    success_policy: SuccessPolicy = Field(
        default=SuccessPolicy.CHIEF,
        description="Replicas whose exit code 0 makes the job succeed. Chief (default): the chief, or worker 0 if "
        "there is no chief. AllWorkers: every worker, and the chief if there is one.",
    )
    failure_policy: FailurePolicy = FailurePolicy()
    network: NetworkSpec = NetworkSpec()
    managed_by: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        description="Manager of the job, where Kueue reads and removes it. kueue.x-k8s.io/multikueue: Kueue sends the "
        "job to another cluster, and its status comes from there. Default: runPolicy.managedBy. Immutable.",
    )

    @property
    def manager(self) -> str:
        """The manager of the job."""
        return self.managed_by or self.run_policy.managed_by


def _texts(labels: Any) -> Any:
    """Return the labels whose values are texts: the API server accepts no others, and null means absent."""
    return {k: v for k, v in labels.items() if isinstance(v, str)} if isinstance(labels, dict) else {}


class Metadata(ApiModel):
    """The part of metadata that planning reads."""

    name: str
    namespace: str
    uid: str
    generation: int = 1
    labels: Annotated[dict[str, str], BeforeValidator(_texts)] = Field(default_factory=dict)
    annotations: Annotated[dict[str, str], BeforeValidator(_texts)] = Field(default_factory=dict)


class PSTrainingJob(ApiModel):
    """One training job."""

    metadata: Metadata
    spec: PSTrainingJobSpec
