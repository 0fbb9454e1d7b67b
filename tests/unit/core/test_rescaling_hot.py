"""Changes of the number of shards with hot standbys, in a simulated world: no state is deleted before it is saved
completely.
"""

from typing import Any

import pytest

from pstraining.api import contract, names
from pstraining.resources.installation import Installation, ProgressEndpoint
from tests.support.builders import deep_merge, job
from tests.support.cluster_maps import cluster_map, layout
from tests.support.simulation import World, phase, running
from tests.unit.core.test_rescaling import CHECKPOINT, HOT, hold, release, reported, rescaling, uids

SPEC: dict[str, Any] = deep_merge(
    {"ps": {"replicas": 2}, "checkpoint": CHECKPOINT, "runPolicy": {"backoffLimit": 0}}, HOT
)


def save(world: World) -> None:
    """Let the chief save the whole state, exclude updates, and end."""
    assert cluster_map(world)["nextLayout"] == layout(world)[0] + 1, "it was asked to"
    term = max(int(name.rpartition("-")[2]) for name in world.names_of("Job"))
    world.end("chief", code=contract.EXIT_SAVED, term=term)


REPORTS = Installation(progress=ProgressEndpoint("https://operator", "authority"))


def reporting() -> World:
    """Return a job of two shards whose chief reports to the operator."""
    world = World(job(spec=SPEC), installation=REPORTS)
    world.settle()
    return world


def announced() -> World:
    """Return a job of two shards whose chief may lead training to three."""
    world = reporting()
    world.edit({"ps": {"replicas": 3}})
    world.settle()
    assert len(cluster_map(world)["nextServers"]) == 6
    return world


def asked(**spec: Any) -> World:
    """Return a job of two shards whose chief is asked to save for three."""
    world = running(**deep_merge(SPEC, spec))
    world.edit({"ps": {"replicas": 3}})
    world.settle()
    assert rescaling(world) == ("True", "Checkpointing")
    return world


def test_servers_keep_what_they_serve_until_the_chief_has_saved_it() -> None:
    world = running(**SPEC)
    before = uids(world, "ps", "worker")
    world.edit({"ps": {"replicas": 3}})
    world.reconcile()
    world.controllers()
    hold(world, 2)
    hold(world, 2, member="standby")
    world.settle()
    assert (rescaling(world), phase(world)) == (("True", "StartingServers"), "Running")
    assert {"digits-ps-2", "digits-standby-2"} <= set(world.names_of("Service"))
    assert "nextLayout" not in cluster_map(world)
    release(world, 2)
    world.settle()
    assert rescaling(world) == ("True", "Checkpointing")
    assert [s["index"] for s in (world.job or {})["status"]["shards"]] == [0, 1]
    assert (world.names_of("Job"), layout(world)) == (["digits-chief-1"], (1, 4)), "training continues"
    save(world)
    assert [a.name for a in world.plan().actions] == ["digits-ps"], "one write records the next layout"
    world.reconcile()
    made = [a.name for a in world.reconcile().actions]
    assert made[:3] == ["digits-standby", "digits", "digits-chief-2"], "the copy, the map, and then the chief"
    found = cluster_map(world)
    assert (found["layout"], found["layoutTerm"], len(found["cluster"]["ps"])) == (2, 2, 6)
    assert "nextLayout" not in found
    world.settle()
    assert rescaling(world)[1] in ("Resuming", "Rescaled")
    assert uids(world, "ps", "worker").items() >= before.items(), "no pod is replaced"
    status = (world.job or {})["status"]
    assert (status["restarts"], sum(r["failures"] for r in status["replicaRecords"])) == (0, 0), "to save is no failure"
    assert reported(world)[:3] == ["StartingServers", "Checkpointing", "Resuming"]


def test_surplus_shards_are_deleted_after_the_save() -> None:
    world = running(**SPEC)
    world.edit({"ps": {"replicas": 1}})
    world.settle()
    assert (rescaling(world), layout(world)) == (("True", "Checkpointing"), (1, 4))
    save(world)
    world.settle()
    assert (rescaling(world), layout(world)) == (("False", "Rescaled"), (2, 2))
    assert set(uids(world, "ps")) == {"digits-ps-0", "digits-standby-0"}
    assert world.names_of("Service") == ["digits-hs", "digits-ps-0", "digits-standby-0"]
    assert [s["index"] for s in (world.job or {})["status"]["shards"]] == [0]


@pytest.mark.parametrize("code", [1, 143, 0])
def test_a_chief_that_ends_without_the_evidence_gives_no_other_layout(code: int) -> None:
    world = asked(runPolicy={"backoffLimit": 5})
    if code:
        world.end("chief", code=code)
    else:  # the evidence is lost
        save(world)
        del world.children["Job", "digits-chief-1"]
        world.pods = {n: p for n, p in world.pods.items() if "-chief-" not in n}
    world.settle()
    assert (rescaling(world), layout(world)) == (("True", "Checkpointing"), (1, 4))
    assert "digits-chief-2" in world.names_of("Job"), "training continues with the state that the servers hold"
    save(world)
    world.settle()
    assert (layout(world), cluster_map(world)["layoutTerm"]) == ((2, 6), 3)
    assert (world.job or {})["status"]["restarts"] == 0, "neither the end for the change nor the save is a failure"


@pytest.mark.parametrize("saved", [False, True])
def test_a_change_that_is_withdrawn_leaves_the_layout_as_it_was(saved: bool) -> None:
    world = asked()
    before = uids(world, "ps", "worker")
    if saved:
        save(world)
    world.edit({"ps": {"replicas": 2}})
    world.settle()
    assert (rescaling(world), layout(world), phase(world)) == (("False", "Rescaled"), (1, 4), "Running")
    assert "nextLayout" not in cluster_map(world)
    assert world.names_of("Job") == ["digits-chief-2" if saved else "digits-chief-1"]
    assert uids(world, "ps", "worker").items() <= before.items()


@pytest.mark.parametrize("saved", [False, True])
def test_a_change_that_is_withdrawn_is_completed_and_then_reversed(saved: bool) -> None:
    """The state may already be on the servers of the next layout alone, so the chief completes the change."""
    world = announced()
    before = uids(world, "ps", "worker")
    if saved:
        save(world)
    world.edit({"ps": {"replicas": 2}})
    world.settle()
    if not saved:
        assert cluster_map(world)["nextLayout"] == 2
        save(world)
        world.settle()
    assert (rescaling(world), layout(world), phase(world)) == (("False", "Rescaled"), (3, 4), "Running")
    assert "nextLayout" not in cluster_map(world)
    assert uids(world, "ps", "worker").items() <= before.items()


def test_a_change_is_withdrawn_before_the_chief_may_read_it() -> None:
    world = reporting()
    world.edit({"ps": {"replicas": 3}})
    world.reconcile()
    world.edit({"ps": {"replicas": 2}})
    world.settle()
    assert (rescaling(world), layout(world), phase(world)) == (("False", "Rescaled"), (1, 4), "Running")
    assert "nextServers" not in cluster_map(world)
    assert world.names_of("Job") == ["digits-chief-1"]


def lead(world: World, *, layout: int, term: int = 1) -> None:
    """Let a chief report the layout in which training continues."""
    (world.job or {})["status"]["training"] = {"layout": layout, "term": term}


@pytest.mark.parametrize(("shards", "servers"), [(3, 6), (1, 2)])
def test_training_that_continues_in_the_next_layout_is_recorded_without_a_restart(shards: int, servers: int) -> None:
    world = reporting()
    before = uids(world, "ps", "worker", "chief")
    world.edit({"ps": {"replicas": shards}})
    world.settle()
    assert len(cluster_map(world)["nextServers"]) == servers
    lead(world, layout=2)
    assert [a.name for a in world.plan().actions] == ["digits-ps"], "one write records the layout"
    world.settle()
    found = cluster_map(world)
    assert (found["layout"], found.get("layoutTerm", 1), len(found["cluster"]["ps"])) == (2, 1, servers)
    assert "nextServers" not in found
    assert (rescaling(world), phase(world)) == (("False", "Rescaled"), "Running")
    assert world.names_of("Job") == ["digits-chief-1"], "the chief continues"
    kept = {name: uid for name, uid in before.items() if not name.endswith(tuple(f"-{n}" for n in range(shards, 3)))}
    assert uids(world, "ps", "worker", "chief").items() >= kept.items() or shards == 1
    assert (world.job or {})["status"]["restarts"] == 0


@pytest.mark.parametrize(("number", "term"), [(2, 7), (3, 1), (1, 1)])
def test_a_report_of_another_chief_or_layout_records_nothing(number: int, term: int) -> None:
    world = announced()
    lead(world, layout=number, term=term)
    world.settle()
    assert (rescaling(world), layout(world)) == (("True", "Checkpointing"), (1, 4))


def test_a_new_server_that_is_lost_after_the_save_lets_training_continue() -> None:
    world = asked()
    save(world)
    hold(world, 2)
    hold(world, 2, member="standby")
    world.settle()
    assert (rescaling(world), layout(world)) == (("True", "StartingServers"), (1, 4))
    assert world.names_of("Job") == ["digits-chief-2"]


def test_only_the_chief_is_woken_to_save() -> None:
    world = running(**SPEC)
    world.edit({"ps": {"replicas": 1}})
    woken = [a.name for a in world.reconcile().actions]
    chief = next(name for name in world.pods if "-chief-" in name)
    assert woken == ["digits", chief]


def test_the_change_is_recorded_before_the_programs_are_woken_for_it() -> None:
    world = reporting()
    world.edit({"ps": {"replicas": 1}})
    assert [a.name for a in world.reconcile().actions] == ["digits-ps", "digits-standby"]
    woken = [a.name for a in world.reconcile().actions]
    assert woken[0] == "digits"
    assert set(world.pods) == set(woken[1:])


def test_a_job_without_hot_standbys_has_no_evidence() -> None:
    world = running(runPolicy={"backoffLimit": 5})
    world.end("chief", code=contract.EXIT_SAVED)
    world.settle()
    assert (world.job or {})["status"]["restarts"] == 1
    recorded = world.children["StatefulSet", "digits-ps"]["metadata"]["annotations"]
    assert names.ANNOTATION_LAYOUT_TERM not in recorded


@pytest.mark.parametrize("servers", [1, 3])
def test_a_chief_that_has_succeeded_leads_again_on_other_servers(servers: int) -> None:
    """Its last checkpoint has the whole state, and it saves no other one."""
    world = running(**deep_merge(SPEC, {"successPolicy": "AllWorkers"}))
    world.end("chief")
    world.settle()
    world.edit({"ps": {"replicas": servers}})
    world.settle()
    assert (layout(world), world.names_of("Job")) == ((2, 2 * servers), ["digits-chief-2"])
    assert (rescaling(world), phase(world)) == (("False", "Rescaled"), "Running")
    world.end("chief", term=2)
    world.settle()
    assert world.job is not None
    assert (world.job["status"]["chief"]["succeeded"], world.names_of("Job")) == (1, ["digits-chief-2"])


def test_a_chief_that_has_succeeded_leads_again_although_its_pod_is_gone() -> None:
    world = running(**deep_merge(SPEC, {"successPolicy": "AllWorkers"}))
    world.end("chief")
    world.settle()
    world.children["Job", "digits-chief-1"]["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    world.pods = {n: p for n, p in world.pods.items() if p["metadata"]["labels"][names.LABEL_ROLE] != "chief"}
    world.edit({"ps": {"replicas": 1}})
    for _ in range(4):
        world.reconcile()
    assert layout(world) == (2, 2)
    assert "digits-chief-2" in world.names_of("Job")
