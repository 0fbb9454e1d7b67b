"""Creations of one stage are sent together, so the operator may crash after any subset of them."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pstraining.core.actions import Plan
from pstraining.kube.write_order import stages
from tests.support.builders import job
from tests.support.simulation import World
from tests.support.soak_marks import examples

SPECS = st.fixed_dictionaries(
    {
        "ps": st.fixed_dictionaries({"replicas": st.integers(1, 3)}),
        "worker": st.fixed_dictionaries({"replicas": st.integers(1, 4)}),
        "chief": st.fixed_dictionaries({"enabled": st.booleans()}),
    }
)


def interrupted(world: World, random: Any) -> Plan:
    """Run one pass that crashes at a random place: earlier stages are complete, and one is done in part."""
    made = world.plan()
    order = list(stages(made.actions))
    whole = random.randint(0, len(order))
    done = [position for stage in order[:whole] for position in stage]
    if whole < len(order):
        done += random.sample(order[whole], random.randint(0, len(order[whole])))
    world._execute(tuple(made.actions[position] for position in done))
    return replace(made, actions=tuple(made.actions[position] for position in done))


@settings(max_examples=examples(200), deadline=None)
@given(spec=SPECS, random=st.randoms(use_true_random=False), deaths=st.integers(1, 4))
def test_any_partial_stage_converges_to_the_same_result(spec: dict[str, Any], random: Any, deaths: int) -> None:
    undisturbed, disturbed = World(job(spec=spec)), World(job(spec=spec))
    for _ in range(deaths):
        interrupted(disturbed, random)
        disturbed.controllers()
    undisturbed.settle()
    disturbed.settle()
    assert set(undisturbed.children) == set(disturbed.children)
    creations = [w for w in disturbed.writes if w[0] == "Create"]
    assert len(creations) == len(set(creations)), "something was created twice"
    assert undisturbed.job is not None
    assert disturbed.job is not None
    for field in ("phase", "ps", "worker", "chief", "restarts", "term", "replicaRecords"):
        assert undisturbed.job["status"].get(field) == disturbed.job["status"].get(field)
    assert disturbed.plan().actions == ()
