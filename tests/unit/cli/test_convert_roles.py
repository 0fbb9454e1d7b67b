"""`convert` of the roles of a TFJob: their numbers of tasks."""

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
