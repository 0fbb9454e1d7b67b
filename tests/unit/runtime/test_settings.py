"""Settings: the job's fields over the program's, one clear error for a wrong one."""

import json
from typing import Any

import pytest

from pstraining.api.models import PSTrainingJob
from pstraining.resources import cluster_map
from pstraining.runtime.settings import CheckpointSettings, SettingsError, TrainingSettings, resolve


@pytest.mark.parametrize(
    ("script", "job", "expected"),
    [
        ({"steps": 10}, {}, TrainingSettings(steps=10)),
        ({"steps": 10}, {"steps": 20}, TrainingSettings(steps=20)),
        ({"steps": 10}, {"mode": "Async"}, TrainingSettings(steps=10, mode="Async")),
    ],
)
def test_the_jobs_fields_override_the_programs(
    script: dict[str, Any], job: dict[str, Any], expected: TrainingSettings
) -> None:
    assert resolve("training", TrainingSettings, script, job) == expected


def test_a_programs_names_are_pythons_and_a_jobs_names_are_the_apis() -> None:
    script = CheckpointSettings(path="/here", interval_seconds=5).model_dump()
    found = resolve("checkpoint", CheckpointSettings, script, {"intervalSeconds": 30, "path": "/there"})
    assert found == CheckpointSettings(path="/there", keep=3, interval_seconds=30)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"steps": 0}, "training.steps: input should be greater than 0"),
        ({"steps": "many"}, "training.steps: input should be a valid integer"),
        ({"steps": 10, "mode": "Sync"}, "training.mode: input should be 'Async'"),
        ({"steps": 10, "stepz": 1}, "training.stepz: unknown field"),
        ({}, "training.steps: field required"),
    ],
)
def test_a_wrong_field_is_named(job: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        resolve("training", TrainingSettings, {}, job)
    assert str(raised.value) == message


def test_a_python_name_in_the_jobs_fields_is_unknown() -> None:
    with pytest.raises(SettingsError, match=r"checkpoint\.interval_seconds: unknown field"):
        resolve("checkpoint", CheckpointSettings, {}, {"interval_seconds": 3})


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        TrainingSettings(steps=1).steps = 2  # type: ignore[misc]


@pytest.mark.parametrize("spec", [{}, {"training": {"steps": 7}, "checkpoint": {}}])
def test_what_the_operator_writes_is_what_the_runtime_reads(spec: dict[str, Any]) -> None:
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "i", "command": ["c"]}]}}
    job = PSTrainingJob.model_validate(
        {
            "metadata": {"name": "digits", "namespace": "default", "uid": "1"},
            "spec": {"ps": {"replicas": 1}, "worker": {"replicas": 1, "template": template}, **spec},
        }
    )
    written = json.loads(cluster_map.document(job))
    training = resolve("training", TrainingSettings, {"steps": 5}, written["training"])
    assert training.steps == (7 if spec else 5)
    checkpoint = resolve("checkpoint", CheckpointSettings, {}, written.get("checkpoint", {}))
    assert (checkpoint.keep, checkpoint.interval_seconds) == (3, 60)
