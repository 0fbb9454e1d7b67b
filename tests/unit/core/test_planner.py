"""The reason of every write, the order of writes, and the time of the next pass, in a simulated world."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.core.actions import Action, Apply, Create, Delete, Kind, Plan
from pstraining.core.policies.node_loss import OVERDUE
from pstraining.resources.installation import Installation
from tests.support.builders import UID, job, stamp
from tests.support.simulation import World, phase, running

EVALUATED = {"evaluator": {"enabled": True}}
RESTARTED = {"failurePolicy": {"rules": [{"role": "chief", "action": "RestartJob"}]}}
ALL_GO = {"runPolicy": {"cleanPodPolicy": {"onSuccess": "All"}}}
PLATFORM_IDS = Installation(sets_ids=False)
SUSPENDED: dict[str, Any] = {"runPolicy": {"suspend": True}}


def reasons(actions: tuple[Action, ...], kind: type[Action]) -> dict[str, Reason]:
    """Return the reasons of the actions of a kind, by the object's name."""
    return {a.name: a.reason for a in actions if isinstance(a, kind)}


def uid(world: World, kind: Kind, name: str) -> str:
    return str(world.children[str(kind), name]["metadata"]["uid"])


def terminating(world: World, role: str) -> datetime:
    """Start the deletion of a role's pod on a lost node; return the end of its grace period."""
    found = next(p for p in world.pods.values() if p["metadata"]["labels"][names.LABEL_ROLE] == role)
    end = world.now + timedelta(seconds=30)
    found["metadata"] |= {"deletionTimestamp": stamp(end), "deletionGracePeriodSeconds": 30}
    found["spec"]["nodeName"] = "gone"
    return end


@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        ([SUSPENDED], Reason.SUSPENDED),
        ([{"ps": {"replicas": 1}}], Reason.SWITCH_LAYOUT),
        ([SUSPENDED, {"training": {"mode": "Sync"}}, {"runPolicy": {"suspend": False}}], Reason.SPEC_CHANGED),
    ],
)
def test_a_stop_deletes_the_leader_first_and_gives_its_reason(edits: list[dict[str, Any]], reason: Reason) -> None:
    world = running(ps={"replicas": 2})
    for spec in edits:
        world.edit(spec)
    leader = Delete(Kind.JOB, "digits-chief-1", uid(world, Kind.JOB, "digits-chief-1"), reason)
    assert world.plan() == Plan((leader,))


def test_a_restart_of_the_whole_job_is_counted_and_gives_its_reason() -> None:
    world = running(**RESTARTED)
    world.end("chief", code=3)
    assert world.plan() == Plan(), "status counts the restart first"
    world.reconcile()
    assert reasons(world.plan().actions, Delete)["digits-chief-1"] is Reason.JOB_RESTARTED


def test_an_expired_job_is_deleted_by_its_name_and_uid() -> None:
    world = running(runPolicy={"ttlSecondsAfterFinished": 60})
    world.end("chief")
    world.settle()
    expiry = world.plan().requeue_at
    assert expiry is not None
    world.now = expiry
    assert world.plan() == Plan((Delete(Kind.PS_TRAINING_JOB, "digits", UID, Reason.TTL_EXPIRED),))


def test_deletions_after_the_end_have_the_end_as_reason() -> None:
    world = running()
    world.end("chief")
    assert world.plan() == Plan(), "status records the end first"
    world.reconcile()
    found = reasons(world.plan().actions, Delete)
    assert found.keys() >= {"digits-ps", "digits-worker-0", "digits-worker-1"}
    assert set(found.values()) == {Reason.JOB_FINISHED}


def test_a_pod_deleted_with_its_job_gets_no_other_write() -> None:
    world = World(job(spec=ALL_GO), beside=True)
    world.settle()
    world.end("chief")
    world.reconcile()
    actions = world.plan().actions
    assert reasons(actions, Delete)["digits-chief-1"] is Reason.JOB_FINISHED
    assert reasons(actions, Apply) == {}


def test_the_evidence_of_a_failure_is_kept_until_it_is_recorded() -> None:
    world = World(job(), beside=True)
    world.settle()
    world.end("chief", code=3)
    first = world.plan().actions
    assert reasons(first, Create) == {"digits-chief-2": Reason.NEXT_TERM}
    assert Reason.PROGRAM_ENDED not in reasons(first, Apply).values()
    assert reasons(first, Delete) == {}
    world.reconcile()
    assert reasons(world.plan().actions, Delete) == {"digits-chief-1": Reason.OLD_TERM}


@pytest.mark.parametrize(("role", "reason"), [(names.CHIEF, Reason.NEXT_TERM), (names.EVALUATOR, Reason.NEXT_ATTEMPT)])
def test_only_a_later_attempt_has_another_reason_than_the_spec(role: str, reason: Reason) -> None:
    world = World(job(spec=EVALUATED))
    assert reasons(world.plan().actions, Create)[f"digits-{role}-1"] is Reason.DESIRED
    world.settle()
    world.end(role, code=3)
    assert reasons(world.plan().actions, Create) == {f"digits-{role}-2": reason}


def test_children_of_a_rejected_spec_are_deleted_when_the_spec_changes() -> None:
    world = World(job(), refuse=lambda c: "bad" if c.kind == "StatefulSet" else "")
    world.settle()
    assert world.names_of("Deployment") == ["digits-worker-0"]
    assert world.plan() == Plan(), "the spec is still the refused one"
    world.refuse = None
    world.edit({"worker": {"replicas": 3}})
    created = uid(world, Kind.DEPLOYMENT, "digits-worker-0")
    assert world.plan() == Plan((Delete(Kind.DEPLOYMENT, "digits-worker-0", created, Reason.NOT_DESIRED),))
    world.settle()
    assert phase(world) == "Running"
    assert uid(world, Kind.DEPLOYMENT, "digits-worker-0") != created


def test_no_chief_starts_while_servers_of_its_first_start_are_refused() -> None:
    spec = {"ps": {"standby": {"mode": "Warm"}}}
    world = World(job(spec=spec), refuse=lambda c: "bad" if c.name == "digits-standby" else "")
    world.settle()
    assert world.names_of("StatefulSet") == ["digits-ps"]
    assert (world.plan(), world.names_of("Job")) == (Plan(), [])


def test_no_chief_starts_while_all_servers_are_refused_after_a_suspension() -> None:
    world = running()
    world.edit(SUSPENDED)
    world.settle()
    world.refuse = lambda c: "bad" if c.kind == "StatefulSet" else ""
    world.edit({"runPolicy": {"suspend": False}, "ps": {"resources": {"limits": {"memory": "1Gi"}}}})
    world.settle()
    assert world.names_of("ConfigMap"), "from before the suspension"
    assert (phase(world), world.plan(), world.names_of("Job")) == ("Invalid", Plan(), [])


def test_a_worker_that_gets_another_size_by_a_restart_is_rendered_as_a_new_one() -> None:
    spec = {"worker": {"resources": {"limits": {"nvidia.com/gpu": "2"}}}}
    world = World(job(), installation=PLATFORM_IDS)
    world.settle()
    world.edit(spec)
    world.settle()
    new = World(job(spec=spec), installation=PLATFORM_IDS)
    new.settle()
    for name in ("digits-worker-0", "digits-worker-1"):
        made, wanted = (w.children["Deployment", name]["spec"]["template"] for w in (world, new))
        assert made == wanted


@pytest.mark.parametrize("role", [names.WORKER, names.CHIEF])
def test_the_next_pass_is_when_a_deletion_on_a_lost_node_is_overdue(role: str) -> None:
    world = World(job(), nodes={"node-0": "True"})
    world.settle()
    if role == names.CHIEF:
        world.lingering = {names.CHIEF}
        world.edit(SUSPENDED)
        world.settle()
    end = terminating(world, role)
    assert world.plan().requeue_at == end + OVERDUE
