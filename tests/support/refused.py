"""Jobs that the API server rejects, each with a part of its message, for the real server and for offline validation."""

import copy
from collections.abc import Callable
from typing import Any

from tests.support.kube import Object
from tests.support.scripted_program import IMAGE, manifest

SCHEDULING = "spec.runPolicy.schedulingPolicy"
SIMPLE: Object = {
    "spec": {"containers": [{"name": "tensorflow", "image": IMAGE, "command": ["sleep", "1000"]}]},
}


def simple(namespace: str, name: str = "bad", *, workers: int = 2) -> Object:
    """Return a valid job."""
    made = manifest(namespace, name, workers=workers)
    made["spec"]["worker"]["template"] = copy.deepcopy(SIMPLE)
    return made


def container(job: Object) -> Object:
    """Return the job's only container."""
    found: Object = job["spec"]["worker"]["template"]["spec"]["containers"][0]
    return found


def edit(path: str, value: object) -> Callable[[Object], None]:
    """Return a function that sets a field, given by its dotted path; None removes the field."""

    def change(job: Any) -> None:
        *steps, last = path.split(".")
        for step in steps:
            job = job[int(step)] if isinstance(job, list) else job.setdefault(step, {})
        if value is None:
            del job[last]
        else:
            job[last] = value

    return change


def edits(*changes: Callable[[Object], None]) -> Callable[[Object], None]:
    """Return a function that applies several changes."""

    def change(job: Any) -> None:
        for one in changes:
            one(job)

    return change


POD = "spec.worker.template.spec"
CLAIM = {
    "metadata": {"name": "shard"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
SERVERS_GROW = {"role": "ps", "maxAllowed": {"memory": "1Gi"}, "maxReplicas": 4}
REFUSED = {
    "growth without a maximum": (edit("spec.autoscaling", {"mode": "Grow"}), "needs the maximum of at least one role"),
    "more servers without a maximum": (
        edits(
            edit("spec.autoscaling", {"mode": "Full", "rolePolicies": [{**SERVERS_GROW, "maxReplicas": None}]}),
            edit("spec.checkpoint", {"volume": {"persistentVolumeClaim": {"claimName": "c"}}}),
        ),
        "mode Full needs maxReplicas of role ps",
    ),
    "more servers without a checkpoint": (
        edit("spec.autoscaling", {"mode": "Full", "rolePolicies": [SERVERS_GROW]}),
        "spec.autoscaling.mode Full needs spec.checkpoint",
    ),
    "a largest number of workers": (
        edit("spec.autoscaling", {"mode": "Grow", "rolePolicies": [{**SERVERS_GROW, "role": "worker"}]}),
        "only role ps may have maxReplicas",
    ),
    "unknown field": (edit("spec.workers", 1), 'unknown field "spec.workers"'),
    "replicas 0": (edit("spec.ps.replicas", 0), "spec.ps.replicas"),
    "no worker replicas": (edit("spec.worker.replicas", 0), "spec.worker.replicas"),
    "missing template": (edit("spec.worker.template", None), "spec.worker.template"),
    "missing command": (edit(f"{POD}.containers.0.command", None), "needs a command"),
    "TF_CONFIG": (edit(f"{POD}.containers.0.env", [{"name": "TF_CONFIG", "value": "x"}]), "TF_CONFIG is set by"),
    "reserved variable": (edit(f"{POD}.containers.0.env", [{"name": "PSTRAINING_X", "value": "x"}]), "PSTRAINING_"),
    "host network": (edit(f"{POD}.hostNetwork", True), "hostNetwork"),
    "pod restart policy": (edit(f"{POD}.restartPolicy", "Always"), "restartPolicy"),
    "two containers, none named": (
        edit(f"{POD}.containers", [{"name": n, "image": "i", "command": ["c"]} for n in ("a", "b")]),
        "name the one that trains 'tensorflow'",
    ),
    "a name with a digit first": (edit("metadata.name", "2024-run"), "metadata.name must be lower-case"),
    "a name too long": (edit("metadata.name", "a" * 41), "at most 40 characters"),
    "a wrong mode": (edit("spec.training.mode", "Psync"), "spec.training.mode"),
    "a wrong codec": (edit("spec.training.compression.push", "Zip"), "spec.training.compression.push"),
    "a bound on staleness with Sync": (
        edit("spec.training", {"mode": "Sync", "maxStaleness": 4}),
        "spec.training.maxStaleness needs mode Async",
    ),
    "overlapped communication with Sync": (
        edit("spec.training", {"mode": "Sync", "overlapCommunication": True}),
        "spec.training.overlapCommunication needs mode Async",
    ),
    "overlapped communication and local steps": (
        edit("spec.training", {"localSteps": 2, "overlapCommunication": True}),
        "spec.training.overlapCommunication needs mode Async without localSteps",
    ),
    "backup workers without Sync": (
        edit("spec.training.backupWorkers", 1),
        "backupWorkers needs spec.training.mode: Sync",
    ),
    "ordered sums without Sync": (
        edit("spec.training.orderedSums", True),
        "orderedSums needs spec.training.mode: Sync",
    ),
    "ordered sums and backup workers": (
        edit("spec.training", {"mode": "Sync", "orderedSums": True, "backupWorkers": 1}),
        "cannot be used with backupWorkers",
    ),
    "a codec for pulls without Sync": (edit("spec.training.compression.pull", "Int8"), "must be None, Bf16 or Auto"),
    "ordered sums and Auto": (
        edit("spec.training", {"mode": "Sync", "orderedSums": True, "compression": {"push": "Auto"}}),
        "compression Auto, which depends on measured times",
    ),
    "compression with Hybrid": (
        edit("spec.training", {"mode": "Hybrid", "compression": {"push": "Int8"}}),
        "spec.training.compression cannot be used with mode Hybrid",
    ),
    "local steps with Hybrid": (
        edit("spec.training", {"mode": "Hybrid", "localSteps": 2}),
        "spec.training.localSteps cannot be used with mode Hybrid",
    ),
    "backup workers with Hybrid": (
        edit("spec.training", {"mode": "Hybrid", "backupWorkers": 1}),
        "backupWorkers needs spec.training.mode: Sync",
    ),
    "ordered sums with Hybrid": (
        edit("spec.training", {"mode": "Hybrid", "orderedSums": True}),
        "orderedSums needs spec.training.mode: Sync",
    ),
    "local steps and accumulation": (
        edit("spec.training", {"localSteps": 2, "accumulationSteps": 2}),
        "localSteps and accumulationSteps cannot be used together",
    ),
    "a wrong policy": (
        edit("spec.runPolicy.cleanPodPolicy.onSuccess", "Never"),
        "spec.runPolicy.cleanPodPolicy.onSuccess",
    ),
    "no checkpoint volume": (edit("spec.checkpoint.path", "/c"), "exactly one of uri, volume and volumeClaimTemplate"),
    "a volume and an object store": (
        edit("spec.checkpoint", {"uri": "s3://bucket/a", "volume": {"emptyDir": {}}}),
        "exactly one of uri, volume and volumeClaimTemplate",
    ),
    "a mount path of an object store": (
        edit("spec.checkpoint", {"uri": "s3://bucket/a", "path": "/c"}),
        "spec.checkpoint.path is the mount path of a volume",
    ),
    "a URI of another store": (edit("spec.checkpoint", {"uri": "file:///tmp"}), "spec.checkpoint.uri"),
    "a claim of one's own that would be deleted": (
        edit("spec.checkpoint", {"volume": {"emptyDir": {}}, "retainPolicy": "Delete"}),
        "spec.checkpoint.retainPolicy: Delete needs volumeClaimTemplate",
    ),
    "a checkpoint path that is the image's root": (
        edit("spec.checkpoint", {"path": "/", "volume": {"emptyDir": {}}}),
        "reserved for the image and the launcher; choose another path",
    ),
    "a checkpoint path of ours": (
        edit("spec.checkpoint", {"path": "/pstraining", "volume": {"emptyDir": {}}}),
        "spec.checkpoint.path",
    ),
    "two claim templates of one name": (
        edit("spec.ps.volumeClaimTemplates", [CLAIM, CLAIM]),
        "two templates have the same name",
    ),
    "a claim template with our volume's name": (
        edit("spec.ps.volumeClaimTemplates", [{**CLAIM, "metadata": {"name": "pstraining-run"}}]),
        "are the operator's volumes",
    ),
    "hot standbys of a program of one's own": (
        edits(edit("spec.training", {}), edit("spec.ps.standby", {"mode": "Hot"})),
        "spec.ps.standby.mode Hot needs pstraining.runtime: set spec.training.mode to Sync, Async or Hybrid",
    ),
    "too many hot standbys": (
        edit("spec.ps.standby", {"mode": "Hot", "replicasPerShard": 3}),
        "replicasPerShard must be 1 or 2 with hot standbys",
    ),
    "a placement of no standbys": (
        edit("spec.ps.standby", {"placement": {"nodeSelector": {"pool": "reliable"}}}),
        "spec.ps.standby.placement places standbys, and mode None has none: set spec.ps.standby.mode to Warm or Hot",
    ),
    "hot standbys that are thrown away": (
        edit("spec.ps", {"replicas": 1, "onChiefRestart": "Restart", "standby": {"mode": "Hot"}}),
        "would delete the state on hot standbys",
    ),
    "a gang of no scheduler": (edit(f"{SCHEDULING}.gang", "Kueue"), f"{SCHEDULING}.gang"),
    "a queue without a gang": (edit(f"{SCHEDULING}.queue", "q"), "only Volcano has queues; set gang to Volcano"),
    "a queue of scheduler-plugins": (
        edit(SCHEDULING, {"gang": "SchedulerPlugins", "queue": "q"}),
        f"{SCHEDULING}.queue: only Volcano has queues",
    ),
    "a timeout of Volcano": (
        edit(SCHEDULING, {"gang": "Volcano", "timeoutSeconds": 9}),
        f"{SCHEDULING}.timeoutSeconds: only SchedulerPlugins has such a timeout",
    ),
    "so many at once without a gang": (
        edit(f"{SCHEDULING}.minAvailable", 3),
        f"{SCHEDULING}.minAvailable: without a gang pods are scheduled one by one",
    ),
    "a gang without a worker that is needed": (
        edits(edit("spec.worker.replicas", 3), edit(SCHEDULING, {"gang": "Volcano", "minAvailable": 3})),
        f"{SCHEDULING}.minAvailable must be at least all parameter servers, the chief",
    ),
    "a gang without its parameter servers": (
        edits(
            edit("spec.ps.replicas", 3),
            edits(edit("spec.worker.minReplicas", 1), edit(SCHEDULING, {"gang": "Volcano", "minAvailable": 4})),
        ),
        f"{SCHEDULING}.minAvailable must be at least",
    ),
    "a gang larger than the job": (
        edits(edit("spec.worker.replicas", 3), edit(SCHEDULING, {"gang": "SchedulerPlugins", "minAvailable": 99})),
        "at most all of these with spec.worker.replicas",
    ),
    "a server of no kind": (edit("spec.ps.server", "None"), "spec.ps.server"),
    "an own PS template without a command": (
        edit("spec.ps.template", {"spec": {"containers": [{"name": "x", "image": "i"}]}}),
        "spec.ps.server: Builtin",
    ),
}
