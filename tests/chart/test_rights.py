"""The rights that the chart grants are exactly those of the operator's calls.

The test plays a job through every action that planning can request. The calls follow from the actions, and the watches
from the registration.
"""

from datetime import timedelta

from pstraining.controller.registration import NODES, WATCHED
from pstraining.core.actions import Kind
from pstraining.kube.paths import EVENTS, RESOURCES
from tests.support.builders import job
from tests.support.simulation import World

from .test_rbac import CLUSTER

CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
# A name in use is checked once.
VERBS = {"Create": ("create", "get"), "Apply": ("patch",), "Replace": ("patch",), "Delete": ("delete",)}


def test_every_right_is_used_and_every_call_is_allowed() -> None:
    used: dict[tuple[str, str], set[str]] = {}
    for group, _, plural in (*WATCHED, NODES):
        used.setdefault((group, plural), set()).update(("list", "watch"))
    for action, kind in {(w[0], w[1]) for w in a_life_with_everything()}:
        place = RESOURCES[Kind(kind)]
        used.setdefault((_group(place.api), place.plural), set()).update(VERBS[action])
    used["pstraining.dev", "pstrainingjobs/status"] = {"patch"}
    used["pstraining.dev", "pstrainingjobs/finalizers"] = {"update"}  # not called: blockOwnerDeletion requires it
    used[_group(EVENTS.api), EVENTS.plural] = {"create"}
    used["authentication.k8s.io", "tokenreviews"] = {"create"}  # for every report of progress
    used["", "pods/resize"] = {"patch"}  # for a Resize
    used["", "pods/log"] = {"get"}  # for every history of a job
    assert {k: tuple(sorted(v)) for k, v in used.items()} == CLUSTER


def a_life_with_everything() -> list[tuple[str, str, str]]:
    """Return all writes of a job that is created, disturbed, corrected, scaled, suspended, resumed and ended."""
    spec = {
        "checkpoint": {"volumeClaimTemplate": CLAIM},
        "worker": {"addressing": "ClusterIP"},
        "ps": {
            "replicas": 2,
            "volumeClaimTemplates": [{"metadata": {"name": "shard"}, "spec": CLAIM}],
            "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"},
        },
        "runPolicy": {"ttlSecondsAfterFinished": 1, "schedulingPolicy": {"gang": "SchedulerPlugins"}},
    }
    world = World(job(spec=spec))
    world.settle()
    world.children["StatefulSet", "digits-ps"]["spec"]["replicas"] = 0
    world.children["Service", "digits-hs"]["spec"]["selector"] = {}
    world.children["NetworkPolicy", "digits"]["spec"]["ingress"] = [{}]
    world.edit({"worker": {"replicas": 3}})
    world.settle()
    world.end("chief", code=1)
    world.end("worker", 1)
    world.settle()
    world.end("ps", code=1)
    for pod in world.pods.values():
        if pod["metadata"]["labels"]["pstraining.dev/role"] == "ps":
            pod["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    world.reconcile()
    world.reconcile()
    world.settle()
    for suspend, standby, gang in (
        *((True, "Warm", "SchedulerPlugins"), (False, "Warm", "SchedulerPlugins")),
        *((True, "None", "SchedulerPlugins"), (False, "None", "Volcano")),
    ):
        policy = {"suspend": suspend, "schedulingPolicy": {"gang": gang}}
        world.edit({"runPolicy": policy, "ps": {"standby": {"mode": standby}}})
        world.settle()
        if not suspend and standby == "Warm":
            world.children["PodDisruptionBudget", "digits-ps-0"]["spec"]["minAvailable"] = 0
            world.settle()
    world.edit({"ps": {"replicas": 1}})
    world.settle()
    world.edit({"worker": {"replicas": 2}})
    world.settle()
    for child in world.children.values():
        child["metadata"].pop("ownerReferences", None)
    world.settle()
    for retain in ("Delete", "Retain"):
        world.edit({"checkpoint": {"retainPolicy": retain}})
        world.settle()
    world.end("chief")
    world.settle()
    world.now += timedelta(minutes=1)
    world.reconcile()
    return world.writes


def _group(api: str) -> str:
    return api.split("/")[1] if api.startswith("apis/") else ""
