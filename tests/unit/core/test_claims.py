"""The parameter servers' claims: their requests, owners and deletion."""

from typing import Any

import pytest
from kubernetes.client import V1StatefulSet

from pstraining.controller.transform import transform
from pstraining.resources import volume_claims, workloads
from pstraining.resources.launcher import LauncherMap
from tests.support.builders import UID, job, typed
from tests.support.simulation import World, running

CLAIM = "PersistentVolumeClaim"
SPEC = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
TEMPLATES = [
    {"metadata": {"name": "shard", "labels": {"team": "vision"}, "annotations": {"note": "x"}}, "spec": SPEC},
    {"metadata": {"name": "shard-digits-ps"}, "spec": SPEC},
]


def ps(**more: Any) -> dict[str, Any]:
    return {"replicas": 2, "volumeClaimTemplates": TEMPLATES, **more}


def policy(**fields: str) -> dict[str, Any]:
    return {"persistentVolumeClaimRetentionPolicy": fields}


def built(spec: dict[str, Any], member: int = 0) -> dict[str, Any]:
    stateful_set = workloads.build_parameter_servers(typed(job(spec={"ps": spec})), LauncherMap("l"), member)
    V1StatefulSet.model_validate(stateful_set)
    found: dict[str, Any] = stateful_set["spec"]
    return found


def names_of(world: World) -> list[str]:
    return world.names_of(CLAIM)


@pytest.mark.parametrize("member", [0, 1])
def test_every_member_has_the_claims(member: int) -> None:
    spec = built(ps(standby={"mode": "Warm"}), member)
    first, second = spec["volumeClaimTemplates"]
    assert (first["metadata"]["name"], first["spec"]) == ("shard", SPEC)
    assert first["metadata"]["annotations"] == {"note": "x"}
    assert first["metadata"]["labels"]["team"] == "vision"
    # The watch selects a job's claims by these labels.
    assert first["metadata"]["labels"]["pstraining.dev/job-name"] == "digits"
    assert first["metadata"]["labels"]["pstraining.dev/job-uid"] == UID
    assert second["metadata"]["name"] == "shard-digits-ps"


def test_labels_of_a_claim_template_are_kept_as_those_of_pods() -> None:
    """Bills and policies of backups select claims by them."""
    mine = {"app.kubernetes.io/name": "recommender", "app.kubernetes.io/component": "parameters"}
    metadata = {"name": "shard", "labels": mine | {"pstraining.dev/job-name": "x"}}
    (claim,) = built(ps(volumeClaimTemplates=[{"metadata": metadata, "spec": SPEC}]))["volumeClaimTemplates"]
    assert claim["metadata"]["labels"] == {**claim["metadata"]["labels"], **mine, "pstraining.dev/job-name": "digits"}


def test_a_job_without_claims_has_no_claim_fields() -> None:
    assert not built({"replicas": 1}).keys() & {"volumeClaimTemplates", "persistentVolumeClaimRetentionPolicy"}


@pytest.mark.parametrize(("when", "owners"), [("Retain", []), ("Delete", [UID])])
def test_the_job_owns_the_claims_that_are_deleted_with_it(when: str, owners: list[str]) -> None:
    """The job owns the claims that are deleted with it. A StatefulSet never owns a claim, because every suspension
    deletes it.
    """
    spec = built(ps(**policy(whenDeleted=when)))
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    for template in spec["volumeClaimTemplates"]:
        found = template["metadata"].get("ownerReferences", [])
        assert [o["uid"] for o in found] == owners
        assert not any("controller" in o for o in found)


@pytest.mark.parametrize(
    ("name", "shard"),
    [
        ("shard-digits-ps-0", 0),
        ("shard-digits-ps-12", 12),
        ("shard-digits-ps-digits-ps-1", 1),
        ("shard-digits-standby-1", 1),
        ("shard-digits-standby-2-1", None),
        ("digits-checkpoint", None),
        ("shard-digits-ps-x", None),
        ("other-digits-ps-0", None),
    ],
)
def test_a_claims_name_contains_its_shard(name: str, shard: int | None) -> None:
    assert volume_claims.shard(typed(job(spec={"ps": ps(standby={"mode": "Warm"})})), name) == shard


def test_claims_survive_a_suspension_and_the_end() -> None:
    world = running(ps=ps(**policy(whenDeleted="Delete", whenScaled="Delete")))
    before = names_of(world)
    assert len(before) == 4
    for suspend in (True, False):
        world.edit({"runPolicy": {"suspend": suspend}})
        world.settle()
        assert names_of(world) == before
    world.end("chief")
    world.settle()
    assert names_of(world) == before


@pytest.mark.parametrize(("before", "after"), [("Delete", "Retain"), ("Retain", "Delete")])
@pytest.mark.parametrize("standby", ["None", "Warm"])
def test_a_changed_policy_reaches_the_claims_that_exist(before: str, after: str, standby: str) -> None:
    """A StatefulSet sets owners only at the creation of a claim. Claims to keep were deleted with the job."""
    world = running(ps=ps(standby={"mode": standby}, **policy(whenDeleted=before)))
    claims = names_of(world)
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    world.edit({"ps": policy(whenDeleted=after)})
    writes = len(world.writes)
    world.settle()
    assert sorted(name for _, _, name in world.writes[writes:]) == claims, "nothing else is touched"
    owners = [c["metadata"].get("ownerReferences", []) for c in world.children.values() if c["kind"] == CLAIM]
    assert not any("controller" in owner for found in owners for owner in found)
    world.edit({"runPolicy": {"suspend": False}})
    world.settle()
    assert world.plan().actions == ()
    world.collect_garbage(UID)
    assert names_of(world) == (claims if after == "Retain" else [])


def test_another_owner_of_a_claim_stays() -> None:
    world = running(ps=ps(**policy(whenDeleted="Delete")))
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}
    world.children[CLAIM, "shard-digits-ps-0"]["metadata"]["ownerReferences"].append(other)
    world.edit({"ps": policy(whenDeleted="Retain")})
    world.settle()
    assert world.children[CLAIM, "shard-digits-ps-0"]["metadata"]["ownerReferences"] == [other]


@pytest.mark.parametrize("suspended", [False, True])
@pytest.mark.parametrize(("when", "left"), [("Retain", {"0", "1", "2"}), ("Delete", {"0"})])
def test_fewer_servers(when: str, left: set[str], suspended: bool) -> None:
    world = running(ps=ps(replicas=3, **policy(whenScaled=when)), checkpoint={"volumeClaimTemplate": SPEC})
    if suspended:
        world.edit({"runPolicy": {"suspend": True}})
        world.settle()
    world.lingering = {"chief"}
    world.edit({"ps": {"replicas": 1}})
    world.settle()
    assert len(names_of(world)) == 7, "nothing is deleted before the chief has saved its state"
    world.gone("chief")
    world.edit({"runPolicy": {"suspend": False}})
    world.settle()
    assert "digits-checkpoint" in names_of(world)
    assert {n[-1] for n in names_of(world) if n != "digits-checkpoint"} == left
    assert world.plan().actions == ()


def test_claims_of_an_earlier_job_of_this_name_are_not_ours_to_delete() -> None:
    world = running(ps=ps(replicas=3, **policy(whenScaled="Delete")))
    kept = world.children[CLAIM, "shard-digits-ps-2"]["metadata"]
    kept["labels"]["pstraining.dev/job-uid"] = "another"
    world.edit({"ps": {"replicas": 1}})
    world.settle()
    assert [n for n in names_of(world) if n.endswith("2")] == ["shard-digits-ps-2"]


def test_the_binding_of_a_claim_is_not_a_change() -> None:
    metadata = {"name": "c", "namespace": "n", "uid": "u", "labels": {"pstraining.dev/job-uid": UID}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {}}
    bound = {
        **claim,
        "metadata": {**metadata, "annotations": {"pv.kubernetes.io/bind-completed": "yes"}, "finalizers": ["f"]},
        "spec": {"volumeName": "v"},
        "status": {"phase": "Bound"},
    }
    assert transform(claim) == transform(bound)
