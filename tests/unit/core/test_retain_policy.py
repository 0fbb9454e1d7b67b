"""The claim of the checkpoints outlives its job or is deleted with it, by the final spec.checkpoint.retainPolicy."""

import copy
from datetime import timedelta
from typing import Any

import pytest
from kubernetes.client import V1PersistentVolumeClaim

from pstraining.api import names
from pstraining.core.actions import Apply, Delete, Kind, Replace
from pstraining.core.observe import observe
from pstraining.core.policies.retain_policy import owner_changes
from pstraining.resources import fixed_fields, workloads
from pstraining.resources.metadata import labels, owner
from tests.support.builders import UID, job, typed
from tests.support.simulation import StaleError, World, phase, running

SPEC = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
NAME = ("PersistentVolumeClaim", "digits-checkpoint")


def checkpoint(policy: str | None, **more: Any) -> dict[str, Any]:
    found = {"volumeClaimTemplate": SPEC, **more}
    return {"checkpoint": found if policy is None else {**found, "retainPolicy": policy}}


def owners(world: World) -> list[str]:
    return [o["uid"] for o in world.children[NAME]["metadata"].get("ownerReferences") or ()]


def change(world: World, policy: str) -> None:
    world.edit({"checkpoint": {"retainPolicy": policy}})


@pytest.mark.parametrize(("policy", "owned"), [(None, []), ("Retain", []), ("Delete", [UID])])
def test_a_claims_owner_at_creation(policy: str | None, owned: list[str]) -> None:
    claim = workloads.build_checkpoint_claim(typed(job(spec=checkpoint(policy))))
    assert claim is not None
    V1PersistentVolumeClaim.model_validate(claim)
    assert [o["uid"] for o in claim["metadata"].get("ownerReferences", [])] == owned
    found = claim["metadata"]["labels"]
    assert (found[names.LABEL_JOB], found[names.LABEL_JOB_UID]) == ("digits", UID), "by these it is found"
    assert names.LABEL_APP_INSTANCE not in found, "Argo CD would take a claim without an owner for its own"


@pytest.mark.parametrize(("policy", "left"), [("Retain", True), ("Delete", False)])
@pytest.mark.parametrize("expires", [True, False])
def test_claims_that_outlive_the_job(policy: str, left: bool, expires: bool) -> None:
    world = running(**checkpoint(policy), runPolicy={"ttlSecondsAfterFinished": 60})
    world.end("chief")
    world.settle()
    assert NAME in world.children
    if expires:
        world.now += timedelta(seconds=61)
        world.settle()
        assert world.job is None
    else:
        world.collect_garbage(UID)
    assert (NAME in world.children) is left
    assert world.children.keys() <= {NAME}


@pytest.mark.parametrize("state", ["running", "suspended", "ended"])
def test_a_change_reaches_the_claim_in_every_state(state: str) -> None:
    world = running(**checkpoint("Retain"))
    if state == "suspended":
        world.edit({"runPolicy": {"suspend": True}})
    elif state == "ended":
        world.end("chief", code=1)
        world.edit({"failurePolicy": {"rules": [{"action": "FailJob"}]}})
    world.settle()
    before = phase(world)
    for policy, owned in (("Delete", [UID]), ("Retain", []), ("Delete", [UID]), ("Retain", [])):
        change(world, policy)
        writes = len(world.writes)
        world.settle()
        assert owners(world) == owned
        assert [w[1:] for w in world.writes[writes:]] == [NAME], "nothing else is touched"
    assert phase(world) == before


@pytest.mark.parametrize("pass_is_cut", [False, True])
def test_an_expiring_job_releases_its_claim_first(pass_is_cut: bool) -> None:
    """An expiring job releases its claim first, if the policy was changed while no operator ran, and is noticed only at
    the deletion.
    """
    world = running(**checkpoint("Delete"), runPolicy={"ttlSecondsAfterFinished": 60})
    world.end("chief")
    world.settle()
    world.now += timedelta(seconds=61)
    change(world, "Retain")
    (released,) = world.plan().actions
    assert isinstance(released, Replace)
    if pass_is_cut:
        world.reconcile(stop_after=1)
    world.settle()
    assert world.job is None
    assert NAME in world.children


def test_a_claim_changed_since_is_not_released_blindly() -> None:
    """A claim that has changed since is not released blindly, because another client may have added an owner."""
    world = running(**checkpoint("Delete"))
    change(world, "Retain")
    snapshot = world.snapshot()
    (released,) = owner_changes(typed(world.job or {}), snapshot)
    world.children[NAME]["metadata"]["resourceVersion"] = "later"
    with pytest.raises(StaleError):
        world._execute([released])


def claim(*owner_references: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    own = {"name": NAME[1], "namespace": "default", "uid": "c", "resourceVersion": "7"}
    marks = {"labels": labels(typed(job()), "checkpoint"), "ownerReferences": list(owner_references)}
    return {"apiVersion": "v1", "kind": NAME[0], "metadata": {**own, **marks, **metadata}}


def changes(policy: str | None, found: dict[str, Any], spec: dict[str, Any] | None = None) -> list[Apply | Replace]:
    made = job(spec=checkpoint(policy) if spec is None else spec)
    return list(owner_changes(typed(made), observe(made, [found], [])))


OURS = owner(typed(job()))
OTHER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}


def test_a_claim_of_an_older_operator_is_released_by_default() -> None:
    (action,) = changes(None, claim(OURS, OTHER))
    assert isinstance(action, Replace)
    assert action.parts["/metadata/ownerReferences"] == [OTHER], "another owner stays"
    assert action.parts["/metadata/resourceVersion"] == "7"
    assert names.LABEL_APP_INSTANCE not in action.parts["/metadata/labels"]
    assert action.parts["/metadata/labels"][names.LABEL_JOB_UID] == UID


def test_the_owner_is_added_beside_others() -> None:
    (action,) = changes("Delete", claim(OTHER))
    assert isinstance(action, Apply)
    assert action.body["metadata"]["ownerReferences"] == [OURS], "an apply leaves the owners that it does not name"
    assert action.body.keys() == {"apiVersion", "kind", "metadata"}


@pytest.mark.parametrize(
    "found",
    [
        claim(OURS),
        claim({**OTHER, "controller": True}),
        claim(labels={}),
        claim(labels=labels(typed(job()), "checkpoint") | {names.LABEL_JOB_UID: "an earlier job of this name"}),
        claim(deletionTimestamp="2030-01-01T12:00:00Z"),
        claim(name="another-checkpoint"),
    ],
    ids=["owned already", "another controller", "a user's", "an earlier job's", "going", "another name"],
)
def test_claims_that_never_get_an_owner(found: dict[str, Any]) -> None:
    assert changes("Delete", found) == []


def test_claims_that_are_never_released() -> None:
    assert changes("Retain", claim(OTHER)) == []
    assert changes("Retain", claim({**OURS, "uid": "an earlier job"})) == []


@pytest.mark.parametrize("spec", [{}, {"checkpoint": {"volume": {"emptyDir": {}}}}])
def test_without_a_template_the_earlier_claim_is_kept(spec: dict[str, Any]) -> None:
    (action,) = changes(None, claim(OURS), spec)
    assert isinstance(action, Replace)


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_an_existing_claim_is_used_unchanged(policy: str) -> None:
    world = World(job(spec=checkpoint(policy)))
    world.foreign.add(NAME)
    theirs = claim(labels={names.LABEL_JOB: "digits", names.LABEL_JOB_UID: "an earlier job of this name"})
    world.settle()
    assert phase(world) == "Running"
    assert world.condition("Created")["status"] == "True"
    assert "digits-checkpoint existed before the job: the chief resumes" in world.condition("Created")["message"]
    assert any("existed before the job" in event.message for event in world.reported), "a used claim is reported"
    assert not [c for c in (world.job or {})["status"]["conditions"] if c["type"] == "NameConflict"]
    world.children[NAME] = copy.deepcopy(theirs)
    for suspend in (True, False):
        world.edit({"runPolicy": {"suspend": suspend}})
        world.foreign.add(NAME)
        world.settle()
    world.end("chief")
    world.settle()
    assert world.children[NAME] == theirs
    assert not [w for w in world.writes if w[0] != "Create" and w[1:] == NAME]


def test_nothing_else_deletes_a_claim() -> None:
    world = running(**checkpoint("Delete"), ps={"replicas": 2})
    for edit in ({"runPolicy": {"suspend": True}}, {"runPolicy": {"suspend": False}}, {"ps": {"replicas": 1}}):
        world.edit(edit)
        world.settle()
    world.end("chief")
    world.settle()
    assert NAME in world.children
    assert not [w for w in world.writes if w[0] == Delete.__name__ and w[1] == Kind.CLAIM]


def test_a_change_restarts_nothing() -> None:
    kept, deleted = (fixed_fields.digest(typed(job(spec=checkpoint(p)))) for p in ("Retain", "Delete"))
    assert kept == deleted


def test_a_rejected_change_is_not_an_update_of_servers() -> None:
    spec = {"ps": {"standby": {"mode": "Hot"}}, "training": {"mode": "Sync"}, "worker": {"replicas": 3}}
    world = running(**checkpoint("Delete"), **spec)
    change(world, "Retain")
    world.refuse = lambda action: "no"
    world.reconcile()
    assert owners(world) == [UID]
    assert "Updating" not in {c["type"] for c in (world.job or {})["status"]["conditions"]}
    world.refuse = None
    world.settle()
    assert owners(world) == []
