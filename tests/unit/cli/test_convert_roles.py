"""`convert` of the roles of a TFJob: their numbers of tasks."""

from typing import Any

import pytest

from pstraining.cli.tfjob.job import converted
from tests.support.tfjobs import replica, tfjob


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"PS": 0, "Worker": 0}, "all of its roles have replicas: 0, so it has no task."),
        ({"Worker": 0}, "all of its roles have replicas: 0, so it has no task."),
        ({"PS": 0, "Worker": 1}, "the TFJob has no PS (replicas: 0) and a single task, which trains alone."),
        ({"Worker": 1, "Evaluator": 1}, "the TFJob has no PS and a single task, which trains alone."),
        ({"PS": 0, "Worker": 2}, "the TFJob has no PS (replicas: 0): its tasks train by all-reduce"),
        ({"PS": 1, "Worker": 0, "Chief": 1}, "the TFJob has no Worker (replicas: 0)."),
    ],
)
def test_a_tfjob_without_tasks_of_a_role_is_refused_for_this_reason(numbers: dict[str, int], message: str) -> None:
    roles = {role: replica(replicas=number) for role, number in numbers.items()}
    found = converted(tfjob(**{"PS": None, "Worker": None, **roles}))
    assert found.manifest is None
    [note] = found.notes
    assert note.message.startswith(message)


def test_workers_that_never_end_stay_so_beside_a_chief() -> None:
    """In TFJob, the chief alone decides on the success, where there is one."""
    job = tfjob({"successPolicy": "AllWorkers"}, Chief=replica(), Worker=replica(2, policy="Always"))
    found = converted(job)
    assert found.manifest is not None
    spec = found.manifest["spec"]
    assert ("successPolicy" in spec, spec["worker"]["restartPolicy"]) == (False, "Always")
    [note] = [note for note in found.notes if note.path == "spec.successPolicy"]
    assert note.message.startswith("in TFJob the chief alone decides")


@pytest.mark.parametrize(
    ("role", "policy"),
    [
        ({"restartPolicy": 1}, {}),
        ({"restartPolicy": "never"}, {}),
        ({}, {"backoffLimit": -1}),
        ({}, {"backoffLimit": "3"}),
        ({}, {"cleanPodPolicy": {}}),
        ({}, {"cleanPodPolicy": "none"}),
    ],
)
def test_a_field_that_is_refused_is_not_said_to_be_missing(role: dict[str, Any], policy: dict[str, Any]) -> None:
    found = converted(tfjob({"runPolicy": policy}, Worker={**replica(2), **role})).notes
    assert any(note.refused for note in found)
    assert not [note for note in found if "it is not set" in note.message]


@pytest.mark.parametrize("given", [{"restartPolicy": ""}, {}])
def test_a_policy_that_is_missing_or_empty_gets_the_default(given: dict[str, str]) -> None:
    worker = {name: value for name, value in replica(2).items() if name != "restartPolicy"}
    found = converted(tfjob(Worker={**worker, **given}))
    assert found.manifest is not None
    assert found.manifest["spec"]["worker"]["restartPolicy"] == "Never"
    assert [note.path for note in found.notes if "it is not set" in note.message] == [
        "spec.tfReplicaSpecs.Worker.restartPolicy"
    ]


def test_a_refused_role_or_number_has_the_way_out() -> None:
    """Templates of other tools render numbers in quotes, and roles by similar names."""
    job = tfjob(
        {"runPolicy": {"suspend": "false", "backoffLimit": "3 "}},
        Evaluators=replica(),
        Chief=replica(),
        Master=replica(),
        PS={**replica(), "replicas": "2"},
    )
    found = {note.path: f"{note.message} {note.todo}".strip() for note in converted(job).notes if note.refused}
    roles = "spec.tfReplicaSpecs"
    assert found == {
        f"{roles}.PS.replicas": 'it must be a whole number, is "2". Remove its quotes.',
        f"{roles}.Evaluators": "a TFJob has Chief or Master, PS, Worker and Evaluator; did you mean Evaluator?",
        f"{roles}.Master": f"{roles}.Chief is the same role. Remove one of them.",
        "spec.runPolicy.suspend": 'it must be true or false, is "false". Remove its quotes.',
        "spec.runPolicy.backoffLimit": 'it must be a whole number, is "3 ".',
    }
