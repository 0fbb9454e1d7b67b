"""Queues of the real Kueue: each namespace has its own queue, and no pod may exist without quota at any moment."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pstraining.api import names
from pstraining.resources import kueue
from tests.campaign.api import QUEUE_API, Api, Object
from tests.support.kueue_webhook import is_true

QUEUE = "queue"
"""The LocalQueue of each namespace."""
FLAVOR = "campaign"
PODS = 20
"""The quota of each queue; Kueue counts pods as the resource `pods`."""


async def install(api: Api) -> None:
    """Let the campaign watch Workloads, and create the flavor of all queues."""
    api.bases["workloads"] = QUEUE_API
    await api.ask("DELETE", f"{QUEUE_API}/resourceflavors/{FLAVOR}")
    await _make(api, "ResourceFlavor", "resourceflavors", FLAVOR, {})


async def add(api: Api, namespace: str) -> None:
    """Create the queue of a namespace."""
    resources = [{"name": "pods", "nominalQuota": PODS}]
    group = {"coveredResources": ["pods"], "flavors": [{"name": FLAVOR, "resources": resources}]}
    spec = {"namespaceSelector": {}, "resourceGroups": [group]}
    await _make(api, "ClusterQueue", "clusterqueues", namespace, spec)
    local = f"namespaces/{namespace}/localqueues"
    await _make(api, "LocalQueue", local, QUEUE, {"clusterQueue": namespace})


async def remove(api: Api, namespaces: Sequence[str]) -> None:
    """Delete the queues of namespaces, and the flavor."""
    for name in namespaces:
        await api.ask("DELETE", f"{QUEUE_API}/clusterqueues/{name}")
    await api.ask("DELETE", f"{QUEUE_API}/resourceflavors/{FLAVOR}")


async def used(api: Api, namespace: str) -> str:
    """Return the number of pods that have quota according to Kueue."""
    found = await api.ask("GET", f"{QUEUE_API}/clusterqueues/{namespace}")
    reserved = (found.get("status") or {}).get("flavorsReservation") or ()
    totals = [item.get("total", "0") for flavor in reserved for item in flavor.get("resources") or ()]
    return str(next(iter(totals), "0"))


async def _make(api: Api, kind: str, where: str, name: str, spec: Object) -> None:
    body = {"apiVersion": kueue.API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
    await api.ask("POST", f"{QUEUE_API}/{where}", body)


def quota(workloads: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return the number of pods of each pod set that have quota.

    A replaced Workload holds its quota until its successor has it, because Kueue writes both in sequence.
    """
    found = list(workloads)
    reserved = {w["metadata"]["name"] for w in found if is_true(w, "QuotaReserved")}
    successors = {_replaces(w): w["metadata"]["name"] for w in found if _replaces(w)}
    held = Counter[str]()
    for workload in found:
        name = workload["metadata"]["name"]
        is_over = is_true(workload, "Finished") and (name not in successors or successors[name] in reserved)
        if name in reserved and not is_over:
            held += _quota_of(workload)
    return held


def _replaces(workload: Mapping[str, Any]) -> str:
    annotations = workload["metadata"].get("annotations") or {}
    return str(annotations.get(kueue.ANNOTATION_REPLACES, "").partition("/")[2])


def _quota_of(workload: Mapping[str, Any]) -> Counter[str]:
    status = workload["status"]
    asked = {item["name"]: item["count"] for item in workload["spec"]["podSets"]}
    assigned = (status.get("admission") or {}).get("podSetAssignments") or ()
    held = Counter({item["name"]: min(item["count"], asked[item["name"]]) for item in assigned})
    held.subtract({item["name"]: item["count"] for item in status.get("reclaimablePods") or ()})
    return held


def without_quota(history: Iterable[tuple[str, Object]]) -> list[str]:
    """Replay a namespace, and return the moments at which pods existed without quota.

    Args:
        history: every version of its pods and Workloads.
    """
    now: dict[str, Object] = {}
    found: list[str] = []
    for change, version in sorted(history, key=lambda event: int(event[1]["metadata"]["resourceVersion"])):
        uid = version["metadata"]["uid"]
        if change == "DELETED" or (version.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            now.pop(uid, None)
        else:
            now[uid] = version
        pods = Counter(pod_set(v) for v in now.values() if v["kind"] == "Pod")
        more = pods - quota(v for v in now.values() if v["kind"] == "Workload")
        if more:
            found.append(f"at version {version['metadata']['resourceVersion']}, pods without quota: {dict(more)}")
    return found[:3]


def pod_set(pod: Mapping[str, Any]) -> str:
    """Return the pod set of a pod."""
    labels = pod["metadata"].get("labels") or {}
    role = str(labels.get(names.LABEL_ROLE, ""))
    return kueue.STANDBY if role == names.PS and labels.get(names.LABEL_MEMBER, "0") != "0" else role
