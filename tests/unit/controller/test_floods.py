"""A user of one namespace may copy the labels, owners and names of a job's objects, and fill all other fields."""

from typing import Any

import orjson
import pytest

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.controller.informer_cache import InformerCache
from pstraining.controller.transform import transform
from pstraining.controller.watch_state import WatchState
from pstraining.core.actions import Kind
from pstraining.core.facts import gather
from pstraining.core.observe import observe
from pstraining.core.planner import plan
from pstraining.resources import kueue
from tests.support.builders import job
from tests.support.copying import copied
from tests.support.simulation import World, running

KEY = ("default", "digits")
LARGE = "x" * 200_000
ANOTHER = {"kind": "X", "name": "x", "uid": "another", "controller": True}
CHILDREN = {
    Kind.STATEFUL_SET: "digits-ps",
    Kind.DEPLOYMENT: "digits-worker-9",
    Kind.JOB: "digits-chief-9",
    Kind.SERVICE: "digits-ps-9",
    Kind.CONFIG_MAP: "digits-launcher-9",
    Kind.NETWORK_POLICY: "digits",
    Kind.POD_DISRUPTION_BUDGET: "digits-ps-9",
    Kind.CLAIM: "data-digits-ps-9",
    Kind.POD: "digits-ps-9",
    Kind.WORKLOAD: "pstrainingjob-digits-9",
}


def imitation(kind: Kind, name: str) -> dict[str, Any]:
    """Return an object that imitates a child of the job, with large values wherever a user may write them."""
    uid = job()["metadata"]["uid"]
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "digits", "uid": uid, "controller": True}
    labels = {names.LABEL_JOB: "digits", names.LABEL_JOB_UID: uid, names.LABEL_ROLE: "ps"}
    labels |= {f"{names.GROUP}/{number}": "x" * 60 for number in range(500)}
    annotations = {"a": LARGE, f"{names.GROUP}/a": LARGE, names.ANNOTATION_SIZE: LARGE}
    owners = [owner, *({"kind": "ConfigMap", "name": LARGE, "uid": str(n)} for n in range(5))]
    owners += [{"kind": "ConfigMap", "name": f"m{number}", "uid": str(number)} for number in range(2_000)]
    metadata = {"name": name, "namespace": "default", "uid": "u", "labels": labels, "annotations": annotations}
    container = {"name": "c", "image": "i", "env": [{"name": "A", "value": LARGE}]}
    volume = {"name": "pstraining", "projected": {"sources": [{"configMap": {"name": LARGE}}]}}
    template: dict[str, Any] = {
        "metadata": {"annotations": annotations},
        "spec": {"containers": [container], "volumes": [volume]},
    }
    spec = template["spec"] if kind is Kind.POD else {"template": template, "ports": [{"name": LARGE}]}
    if kind is Kind.POD:
        owners[0] = {"kind": "StatefulSet", "name": "digits-ps", "uid": "s", "controller": True}
        spec = spec | {"schedulingGates": [{"name": LARGE}]}
    found = {"kind": str(kind), "metadata": metadata | {"ownerReferences": owners}, "spec": spec}
    if kind is Kind.WORKLOAD:  # the API server drops other fields, and limits the lengths of these
        return found | {"spec": {"queueName": "q", "podSets": [{"name": "ps", "count": 1, "template": template}]}}
    return found | {"data": {"a": LARGE}}


@pytest.mark.parametrize(("kind", "name"), CHILDREN.items())
@pytest.mark.parametrize("controlled", [True, False])
def test_little_is_kept_of_an_imitation(kind: Kind, name: str, *, controlled: bool) -> None:
    found = imitation(kind, name)
    if not controlled:
        del found["metadata"]["ownerReferences"][0]
    assert len(orjson.dumps(found)) > 1_000_000
    kept = transform(found)
    assert len(orjson.dumps(kept)) < 8_192
    assert len(kept["metadata"]["ownerReferences"]) <= 16


def test_a_large_workload_keeps_the_operators_and_kueues_metadata() -> None:
    queued = job() | {"metadata": job()["metadata"] | {"labels": {kueue.LABEL_QUEUE: "q"}}}
    built = kueue.build(PSTrainingJob.model_validate(queued), kueue.Priority(), "w", kueue.SliceChain("w", "v"))
    metadata = built["metadata"] | {"uid": "u", "resourceVersion": "1"}
    others = {f"a.io/{number}": LARGE for number in range(3)}
    annotations = others | metadata["annotations"] | {f"{kueue.GROUP}/other": LARGE}
    kept = transform(built | {"metadata": metadata | {"annotations": annotations}})
    assert kept["metadata"] == metadata
    few = metadata | {"annotations": metadata["annotations"] | {"a.io/0": "another client's"}}
    assert transform(built | {"metadata": few})["metadata"] == few


@pytest.mark.parametrize("hot", [False, True])
def test_a_plan_is_the_same_with_what_is_kept(hot: bool) -> None:
    world = running(**({"ps": {"standby": {"mode": "Hot"}}} if hot else {}))
    assert not _planned(world)
    world.edit({"ps": {"resources": {"limits": {"memory": "2Gi"}}}, "worker": {"replicas": 3}})
    plain, kept = plan(gather(world.snapshot(), world.now), world.launcher).actions, _planned(world)
    assert plain == kept
    assert kept


def _planned(world: World) -> tuple[Any, ...]:
    """Plan with the objects of a world as the cache has them."""
    assert world.job is not None
    found = observe(
        transform(world.job),
        map(transform, world.children.values()),
        [transform({**pod, "kind": "Pod"}) for pod in world.pods.values()],
        installation=world.installation,
    )
    return plan(gather(found, world.now), world.launcher).actions


def copy_of_a_child(kind: Kind, name: str, owner: dict[str, Any] | None = None) -> dict[str, Any]:
    labels = {names.LABEL_JOB: "digits", names.LABEL_JOB_UID: job()["metadata"]["uid"]}
    metadata = {"name": name, "namespace": "default", "uid": "copy", "labels": labels, "resourceVersion": "7"}
    return {"kind": str(kind), "metadata": metadata | ({"ownerReferences": [owner]} if owner else {})}


@pytest.mark.parametrize("kind", [Kind.STATEFUL_SET, Kind.CONFIG_MAP, Kind.JOB])
def test_a_copy_of_a_child_is_not_cached(kind: Kind) -> None:
    cache = InformerCache()
    cache.observed(job())
    assert not cache.belongs(copy_of_a_child(kind, "my-copy"))
    assert not cache.belongs(copy_of_a_child(kind, "digits-ps", ANOTHER))
    assert cache.belongs(copy_of_a_child(kind, "digits-ps"))
    own = {"uid": job()["metadata"]["uid"], "controller": True}
    assert cache.belongs(copy_of_a_child(kind, "digits-ps", own))
    assert not cache.belongs(copy_of_a_child(kind, "x", own)), "any user of the namespace can write the owner"
    assert cache.belongs(copy_of_a_child(Kind.CLAIM, "data-digits-ps-0", ANOTHER)), "that of a StatefulSet"


def test_the_deletion_of_an_object_in_the_way_causes_a_pass() -> None:
    state = WatchState()
    state.receive(job(), "ADDED")
    found = copy_of_a_child(Kind.STATEFUL_SET, "digits-ps", ANOTHER)
    assert state.receive(found, "ADDED") == ()
    assert state.receive(found, "DELETED") == (KEY,)
    own = copied(found)
    own["metadata"]["ownerReferences"][0]["uid"] = job()["metadata"]["uid"]
    state.receive(own, "ADDED")
    state.cache.deleted(Kind.STATEFUL_SET, "default", "digits-ps", "copy")
    assert state.receive(own, "DELETED") == (), "its own deletion"
