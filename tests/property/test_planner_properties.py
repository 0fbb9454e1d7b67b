"""Invariants of every history of a job: random faults and edits, an operator that crashes anywhere, stale retries."""

import os
from typing import Any

from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st

from pstraining.api import names
from tests.support.builders import job
from tests.support.simulation import World
from tests.support.soak_marks import ALL

SPECS = st.fixed_dictionaries(
    {},
    optional={
        "chief": st.fixed_dictionaries({"enabled": st.booleans()}),
        "runPolicy": st.fixed_dictionaries(
            {
                "backoffLimit": st.integers(0, 3),
                "cleanPodPolicy": st.fixed_dictionaries({"onSuccess": st.sampled_from(["Running", "All", "None"])}),
                "schedulingPolicy": st.fixed_dictionaries({"gang": st.sampled_from(["None", "SchedulerPlugins"])}),
            }
        ),
        "checkpoint": st.sampled_from([{"volume": {"emptyDir": {}}}, {"volume": {"hostPath": {"path": "/x"}}}]),
    },
)
STEPS = st.one_of(
    st.tuples(st.just("end"), st.sampled_from(["chief", "worker", "ps"]), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("delete"), st.sampled_from(["chief", "worker", "ps"]), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("suspend"), st.sampled_from(["True", "False"]), st.just(0), st.just(0)),
    st.tuples(st.just("scale"), st.just("worker"), st.integers(1, 4), st.just(0)),
    st.tuples(st.just("scale"), st.just("ps"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("drop"), st.sampled_from(["Service", "ConfigMap", "Deployment", "StatefulSet", "Job"]),
              st.integers(0, 9), st.just(0)),
    st.tuples(st.just("die"), st.just(""), st.integers(0, 6), st.just(0)),
    st.tuples(st.just("reconcile"), st.just(""), st.just(0), st.just(0)),
)  # fmt: skip
HISTORIES = st.lists(STEPS, max_size=12)
EXAMPLES = int(os.environ.get("PSTRAINING_EXAMPLES", "50" if ALL else "25"))
"""Histories that each test tries; a soak tries thousands."""
THOROUGH = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)


def play(world: World, step: tuple[str, str, int, int]) -> None:
    verb, subject, number, code = step
    if verb == "end":
        world.end(subject, number if subject != "chief" else 0, code)
    elif verb == "delete":
        world.delete_pod(subject, number if subject != "chief" else 0)
    elif verb == "suspend":
        world.edit({"runPolicy": {"suspend": subject == "True"}})
    elif verb == "scale":
        world.edit({subject: {"replicas": number}})
    elif verb == "drop":
        found = world.names_of(subject)
        if found:
            del world.children[subject, found[number % len(found)]]
    elif verb == "die":
        world.reconcile(stop_after=number)
    else:
        world.reconcile()
    if verb != "end":
        world.controllers()


def check(world: World) -> None:
    """Check the invariants after every step."""
    alive = [
        p
        for p in world.pods.values()
        if p["metadata"]["labels"][names.LABEL_ROLE] == names.CHIEF and p["status"]["phase"] == "Running"
    ]
    assert len(alive) <= 1, "two attempts of the chief live"


@THOROUGH
@given(spec=SPECS, history=HISTORIES)
@example(spec={}, history=[("die", "", 5, 0), ("end", "chief", 0, 1), ("die", "", 1, 0), ("delete", "chief", 0, 0)])
def test_every_history_converges_and_then_costs_no_write(spec: dict[str, Any], history: list[Any]) -> None:
    world = World(job(spec=spec))
    for step in history:
        note(str(step))
        play(world, step)
        check(world)
    world.settle(40)
    check(world)
    status_writes = world.status_writes
    assert world.plan().actions == (), "the plan on the result of a plan is empty"
    world.reconcile()
    assert world.status_writes == status_writes, "an unchanged job costs no status write"


@THOROUGH
@given(spec=SPECS, history=HISTORIES, dies=st.lists(st.integers(0, 3), max_size=6))
def test_an_operator_crash_anywhere_leads_to_the_same_result(
    spec: dict[str, Any], history: list[Any], dies: list[int]
) -> None:
    undisturbed, disturbed = World(job(spec=spec)), World(job(spec=spec))
    for after in dies:
        disturbed.reconcile(stop_after=after)
    for world in (undisturbed, disturbed):
        world.settle()
        for step in history:
            if step[0] != "die":
                play(world, step)
            world.settle(40)
    assert set(undisturbed.children) == set(disturbed.children)
    assert undisturbed.job is not None
    assert disturbed.job is not None
    for key in ("phase", "term", "restarts"):
        assert undisturbed.job["status"][key] == disturbed.job["status"][key]


@THOROUGH
@given(spec=SPECS, history=HISTORIES)
def test_an_end_is_final(spec: dict[str, Any], history: list[Any]) -> None:
    world = World(job(spec={**spec, "chief": {"enabled": True}}))
    world.settle()
    world.end("chief")
    world.settle()
    assert world.job is not None
    assert world.job["status"]["phase"] == "Succeeded"
    done = world.job["status"]["completionTime"]
    for step in history:
        play(world, step)
        creates = [w for w in world.writes if w[0] == "Create"]
        world.reconcile()
        assert [w for w in world.writes if w[0] == "Create"] == creates, "a finished job creates nothing"
        assert world.job["status"]["phase"] == "Succeeded"
        assert world.job["status"]["completionTime"] == done


@THOROUGH
@given(failures=st.integers(0, 5), limit=st.integers(0, 4), watched=st.lists(st.booleans(), min_size=5, max_size=5))
def test_the_budget_counts_every_failure_exactly_once(failures: int, limit: int, watched: list[bool]) -> None:
    """The budget counts every failure exactly once, also restarts of a container that the operator did not observe."""
    world = World(job(spec={"runPolicy": {"backoffLimit": limit}}))
    world.settle()
    for number in range(failures):
        world.end("worker", 0, code=1)
        if watched[number]:
            world.reconcile()
    world.reconcile()
    assert world.job is not None
    expected = "Failed" if failures > limit else "Running"
    assert world.job["status"]["phase"] == expected
