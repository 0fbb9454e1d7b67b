"""Every case of the table of TFJob's features, on the planner and on rendered objects, without a cluster."""

import json
from typing import Any

import pytest

from tests.tfjob.cases import CASES
from tests.tfjob.simulated import all_tasks, play, templates, tf_config, training_container
from tests.tfjob.table import MANIFESTS, Case

TAKEN = [c for c in CASES if not c.refused]


def named(case: Case) -> str:
    return case.name


def holds(wanted: Any, found: Any) -> bool:
    """Whether `found` has all of `wanted`: nested maps in part, each item of a list at any place, tuples exactly."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(k in found and holds(v, found[k]) for k, v in wanted.items())
    if isinstance(wanted, tuple):
        return bool(list(wanted) == found)
    if isinstance(wanted, list):
        return isinstance(found, list) and all(any(holds(w, f) for f in found) for w in wanted)
    return bool(wanted == found)


def test_every_manifest_belongs_to_a_case() -> None:
    assert len(TAKEN) >= 30
    assert len([c for c in CASES if c.real]) >= 12
    assert len({c.name for c in CASES}) == len(CASES)
    assert {p.stem for p in MANIFESTS.iterdir()} == {c.name for c in CASES}
    assert all(c.manifest()["metadata"]["name"] == c.name for c in CASES)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_case_claims_something(case: Case) -> None:
    assert bool(case.refused) is not bool(case.play or case.cluster or case.renders or case.lacks or case.absent)
    assert case.tfjob
    assert case.source
    assert case.ours
    assert case.play or not case.real


@pytest.mark.parametrize("case", [c for c in TAKEN if c.play], ids=named)
def test_a_job_behaves_as_its_case_states(case: Case) -> None:
    play(case)


@pytest.mark.parametrize("case", [c for c in TAKEN if c.cluster is not None], ids=named)
def test_tf_config(case: Case) -> None:
    assert case.cluster is not None
    cluster = {role: list(addresses) for role, addresses in case.cluster.items()}
    for task in all_tasks(case):
        role, _, index = task.rpartition("-")
        assert tf_config(case, task) == {
            "cluster": cluster,
            "task": {"type": role, "index": int(index)},
            "environment": "cloud",
        }


@pytest.mark.parametrize("case", [c for c in TAKEN if c.renders or c.lacks or c.absent], ids=named)
def test_pods_are_rendered_as_their_case_states(case: Case) -> None:
    made = templates(case)
    for role, wanted in case.renders.items():
        assert holds(wanted, made[role]), f"{role}: {json.dumps(wanted)} is not in {json.dumps(made[role], indent=1)}"
    for role, words in case.lacks.items():
        text = json.dumps(training_container(made[role]))
        assert not [w for w in words if w in text], role
    assert not set(case.absent) & set(made)
