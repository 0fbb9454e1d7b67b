"""All names, labels and annotations of the API and of a job's children.

A job's name has at most 40 characters, so that the longest child's name, "<job>-worker-<index>", is a legal label
value, hostname and Service name (63 characters) with a nine-digit index and a Deployment's pod suffix.
"""

import re
from typing import Final

GROUP: Final = "pstraining.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "PSTrainingJob"
PLURAL: Final = "pstrainingjobs"
SINGULAR: Final = "pstrainingjob"
SHORT_NAME: Final = "pstj"

MAX_JOB_NAME: Final = 40
JOB_NAME_PATTERN: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"

CHIEF: Final = "chief"
WORKER: Final = "worker"
PS: Final = "ps"
EVALUATOR: Final = "evaluator"
ROLES: Final = (CHIEF, WORKER, PS, EVALUATOR)
MANAGED_BY: Final = f"{GROUP}/operator"
"""runPolicy.managedBy of the jobs that this operator manages."""
MULTIKUEUE: Final = "kueue.x-k8s.io/multikueue"
"""spec.managedBy of the jobs that Kueue sends to another cluster."""

MAIN_CONTAINER: Final = "tensorflow"
"""Name of the training container. In a pod with a single container, it may have any name."""

CHECKPOINT_VOLUME: Final = "pstraining-checkpoint"
VOLUMES: Final = ("pstraining", "pstraining-run", CHECKPOINT_VOLUME)
"""The operator's volumes in pods: the launcher's files, the pod's own state, and the job's checkpoints."""

# Labels
LABEL_JOB: Final = f"{GROUP}/job-name"
LABEL_JOB_UID: Final = f"{GROUP}/job-uid"
LABEL_ROLE: Final = f"{GROUP}/role"
LABEL_INDEX: Final = f"{GROUP}/index"
LABEL_TERM: Final = f"{GROUP}/term"
LABEL_MEMBER: Final = f"{GROUP}/member"
"""On a PS's pods: the number of the member in its shard; 0 in <job>-ps, k in the k-th StatefulSet of standbys."""
LABEL_RESTART_ATTEMPT: Final = f"{GROUP}/round"
"""On pods and the objects that hold them, once the whole job was restarted: the number of those restarts. Live objects
of earlier versions carry this label, so its text stays `round`."""
LABEL_ATTEMPT: Final = f"{GROUP}/attempt"
"""On the evaluator: its attempt."""
LABEL_POD_INDEX: Final = "apps.kubernetes.io/pod-index"
LABEL_STS_POD: Final = "statefulset.kubernetes.io/pod-name"
LABEL_APP_NAME: Final = "app.kubernetes.io/name"
LABEL_APP_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_APP_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_APP_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "pstraining"

# Annotations
ANNOTATION_SUCCEEDED: Final = f"{GROUP}/succeeded"
"""On a worker's Deployment: its program has ended with 0, so that it stays at 0 replicas."""
ANNOTATION_CLUSTER_HASH: Final = f"{GROUP}/cluster-hash"
"""On pods: a hash of their cluster map. A change of it makes the kubelet refresh the file at once."""
ANNOTATION_CONTAINER: Final = f"{GROUP}/container"
"""On pods: the name of the training container. Admission may add containers before and after it."""
ANNOTATION_SHARDS: Final = f"{GROUP}/shards"
"""On a StatefulSet of PSs: the number of shards that training has."""
ANNOTATION_LAYOUT: Final = f"{GROUP}/layout"
"""On a StatefulSet of PSs: the number of the layout of its shards; written together with ANNOTATION_SHARDS. Without it,
all pods are replaced for another number of shards."""
ANNOTATION_LAYOUT_TERM: Final = f"{GROUP}/layout-term"
"""On a StatefulSet of PSs: the first term of the chief that trains the layout; written together with the layout."""
ANNOTATION_NEXT_SHARDS: Final = f"{GROUP}/next-shards"
"""On a StatefulSet of PSs: the shards of the next layout, written before the chief may lead training to it."""
ANNOTATION_FIXED: Final = f"{GROUP}/fixed-fields"
"""On objects that own pods: a hash of the fields that are fixed while the job runs."""
ANNOTATION_SERVER_TEMPLATE: Final = f"{GROUP}/server-template"
"""On the pods of parameter servers with hot standbys: a hash of the spec's fields in their template."""
ANNOTATION_SIZE: Final = f"{GROUP}/size"
"""On pods: the last resources that the operator requested for the training container, as JSON."""
ANNOTATION_REPLACED: Final = f"{GROUP}/replaced"
"""On pods that the operator deletes to replace them: no rule of spec.failurePolicy applies to their deletion."""
ANNOTATION_GIVEN_UP: Final = f"{GROUP}/given-up"
"""On a worker's Deployment: its budget is spent and the job continues without it, so that it stays at 0 replicas."""
ANNOTATION_EPOCH: Final = f"{GROUP}/epoch"
"""On a shard's Service: the number of failovers and switchovers, written together with the selector."""
ANNOTATION_CAUSE: Final = f"{GROUP}/takeover-cause"
"""On a shard's Service: the cause of the last failover or switchover."""
ANNOTATION_DEMOTED: Final = f"{GROUP}/demoted"
"""On a shard's Service: the uid of the former primary's pod, which must be deleted."""
ANNOTATION_POD_SETS: Final = f"{GROUP}/pod-sets"
"""On a Workload of Kueue: a hash of the fields in its pod sets."""
ANNOTATION_SPEC: Final = f"{GROUP}/spec"
"""On a Workload that Kueue sends to another cluster: a hash of the spec of its job."""
ANNOTATION_REQUEST: Final = f"{GROUP}/create-request"
"""On a job of the Python client: a random text, by which the client knows its job if the response is lost."""
ANNOTATION_TAKEOVER: Final = f"{GROUP}/takeover"
"""On the job: a requested switchover, as "<shard>@<epoch>"; done once the epoch is higher."""

FIELD_MANAGER: Final = "pstraining"
STATUS_FIELD_MANAGER: Final = "pstraining-status"
PROGRESS_FIELD_MANAGER: Final = "pstraining-progress"


_CHILD: Final = re.compile(r"(-hs|-ps(-\d+)?|-standby(-\d+){0,2}|-(worker|chief|evaluator)-\d+|-launcher-[^-]+)?")
_TASKS: Final = re.compile(
    r"-(?P<numbered>worker|chief|evaluator)-(?P<number>\d+)|-(?P<servers>ps|standby(-(?P<member>\d+))?)"
)
ATTEMPT_LABELS: Final = {CHIEF: LABEL_TERM, EVALUATOR: LABEL_ATTEMPT}
"""The label with the number of an attempt, by role. Other roles have no attempts."""
_WORKLOAD_PREFIX_MAX: Final = 57
"""Maximum characters of a Workload's name before its hash; the whole name has at most 63."""
_WORKLOAD_HASH: Final = re.compile(r"-[0-9a-f]{5}")


def cluster_config_map(job: str) -> str:
    """Return the name of the ConfigMap with the job's cluster map."""
    return job


def launcher_config_map(job: str, version: str) -> str:
    """Return the name of the immutable ConfigMap with the launcher. A running job keeps its launcher's version."""
    return f"{job}-launcher-{version}"


def headless_service(job: str) -> str:
    """Return the name of the governing Service, which gives chief and workers DNS names."""
    return f"{job}-hs"


def ps_stateful_set(job: str) -> str:
    """Return the name of the StatefulSet of all shards' first members."""
    return f"{job}-ps"


def standby_stateful_set(job: str, member: int) -> str:
    """Return the name of the StatefulSet of every shard's standby with this number, from 1."""
    return f"{job}-standby" if member == 1 else f"{job}-standby-{member}"


def shard_budget(job: str, index: int) -> str:
    """Return the name of the PodDisruptionBudget of a shard's members."""
    return f"{job}-ps-{index}"


def network_policy(job: str) -> str:
    """Return the name of the NetworkPolicy of the job's pods."""
    return job


def pod_group(job: str) -> str:
    """Return the name of the PodGroup of a job whose pods are scheduled as a gang."""
    return job


def evaluator_host(job: str) -> str:
    """Return the evaluator's hostname, the same in every attempt."""
    return f"{job}-evaluator"


def evaluator_job(job: str, attempt: int) -> str:
    """Return the name of the Job of one attempt of the evaluator."""
    return f"{job}-evaluator-{attempt}"


def ps_service(job: str, index: int) -> str:
    """Return the name of the Service that has one PS task's address."""
    return f"{job}-ps-{index}"


def worker_name(job: str, index: int) -> str:
    """Return the name of a worker's Deployment and Service, which is also its hostname."""
    return f"{job}-worker-{index}"


def chief_host(job: str) -> str:
    """Return the chief's hostname, the same in every term."""
    return f"{job}-chief"


def chief_job(job: str, term: int) -> str:
    """Return the name of the Job of one attempt of the chief."""
    return f"{job}-chief-{term}"


def task_labels(job: str, name: str) -> dict[str, str]:
    """Return the labels of an object with pods that follow from its name; empty if it is not the job's.

    Args:
        job: the job's name.
        name: the name of a StatefulSet, a Deployment or a Job.
    """
    found = _TASKS.fullmatch(name[len(job) :]) if name.startswith(job) else None
    if found is None:
        return {}
    if role := found["numbered"]:
        return {LABEL_ROLE: role, ATTEMPT_LABELS.get(role, LABEL_INDEX): found["number"]}
    return {LABEL_ROLE: PS, LABEL_MEMBER: "0" if found["servers"] == "ps" else found["member"] or "1"}


def workload_prefix(job: str) -> str:
    """Return the name of each of the job's Workloads of Kueue without its hash."""
    return f"{SINGULAR}-{job}"[:_WORKLOAD_PREFIX_MAX]


def is_child(job: str, name: str) -> bool:
    """Return whether a name is that of a child of the job, except for claims and Workloads."""
    return _has_suffix(name, job, _CHILD)


def is_workload(job: str, name: str) -> bool:
    """Return whether a name is that of a Workload that the operator creates for the job."""
    return _has_suffix(name, workload_prefix(job), _WORKLOAD_HASH)


def _has_suffix(name: str, prefix: str, suffix: re.Pattern[str]) -> bool:
    return name.startswith(prefix) and suffix.fullmatch(name[len(prefix) :]) is not None


def task_name(role: str, index: int, member: int = 0) -> str:
    """Return the name of a task for display: its pod's name without the job's name and Kubernetes' suffix."""
    if member == 0:
        return f"{role}-{index}"
    return f"standby-{index}" if member == 1 else f"standby-{member}-{index}"


def checkpoint_claim(job: str) -> str:
    """Return the name of the PersistentVolumeClaim of checkpoint.volumeClaimTemplate."""
    return f"{job}-checkpoint"
