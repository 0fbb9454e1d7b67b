"""Settings: the job's fields override the program's, and an invalid one is named in one clear error."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.api.models import PSTrainingJob
from pstraining.api.summary import HistoryPolicy
from pstraining.api.training import Codec, CompressionSpec, Mode, TrainingSpec
from pstraining.resources import cluster_map
from pstraining.runtime.config.settings import (
    CheckpointSettings,
    CompressionSettings,
    SettingsError,
    TrainingSettings,
    is_object_store,
    resolve,
)


@pytest.mark.parametrize(
    ("script", "job", "expected"),
    [
        ({"steps": 10}, {}, TrainingSettings(steps=10)),
        ({"steps": 10}, {"steps": 20}, TrainingSettings(steps=20)),
        ({"steps": 10}, {"mode": "Async"}, TrainingSettings(steps=10, mode=Mode.ASYNC)),
    ],
)
def test_the_jobs_fields_override_the_programs(
    script: dict[str, Any], job: dict[str, Any], expected: TrainingSettings
) -> None:
    assert resolve("training", TrainingSettings, script, job) == expected


def test_a_value_that_json_cannot_contain_is_named() -> None:
    """Such as a dataset's cardinality, which is a tensor."""
    with pytest.raises(SettingsError, match=r"^training\.steps: give one of Python's values, .*, of the type float32$"):
        resolve("training", TrainingSettings, {"steps": np.float32(5)}, {})


def test_a_programs_names_are_pythons_and_a_jobs_names_are_the_apis() -> None:
    script = CheckpointSettings(path="/here", interval_seconds=5).model_dump()
    found = resolve("checkpoint", CheckpointSettings, script, {"intervalSeconds": 30, "path": "/there"})
    assert found == CheckpointSettings(path="/there", keep=3, interval_seconds=30)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"steps": 0}, "training.steps: input should be greater than or equal to 1"),
        ({"steps": "many"}, "training.steps: input should be a valid integer"),
        ({"steps": 10, "mode": "sync"}, "training.mode: input should be 'Async', 'Sync' or 'Hybrid'"),
        ({"steps": 10, "backupWorkers": 1}, "training: backupWorkers and orderedSums need mode Sync"),
        ({"steps": 10, "mode": "Sync", "maxStaleness": 1}, "training: maxStaleness needs mode Async"),
        (
            {"steps": 10, "mode": "Sync", "overlapCommunication": True},
            "training: overlapCommunication needs mode Async without localSteps",
        ),
        (
            {"steps": 10, "localSteps": 2, "overlapCommunication": True},
            "training: overlapCommunication needs mode Async without localSteps",
        ),
        ({"steps": 10, "maxStaleness": 0}, "training.maxStaleness: input should be greater than or equal to 1"),
        ({"steps": 10, "mode": "Hybrid", "backupWorkers": 1}, "training: backupWorkers and orderedSums need mode Sync"),
        (
            {"steps": 10, "mode": "Hybrid", "localSteps": 2},
            "training: localSteps and compression cannot be used with mode Hybrid",
        ),
        (
            {"steps": 10, "mode": "Hybrid", "compression": {"push": "Int8"}},
            "training: localSteps and compression cannot be used with mode Hybrid",
        ),
        (
            {"steps": 10, "mode": "Hybrid", "compression": {"pull": "Bf16"}},
            "training: localSteps and compression cannot be used with mode Hybrid",
        ),
        (
            {"steps": 10, "compression": {"push": "Zip"}},
            "training.compression.push: input should be 'None', 'Bf16', 'Int8', 'OneBit', 'TopK' or 'Auto'",
        ),
        (
            {"steps": 10, "mode": "Sync", "backupWorkers": 1, "orderedSums": True},
            "training: orderedSums waits for every worker and cannot be used with backupWorkers",
        ),
        (
            {"steps": 10, "mode": "Sync", "orderedSums": True, "compression": {"push": "Auto"}},
            "training: orderedSums repeats a run bit for bit, and cannot be used with compression Auto, which depends "
            "on measured times; choose a fixed codec",
        ),
        (
            {"steps": 10, "compression": {"pull": "Int8"}},
            "training: compression.pull may be None, Bf16 or Auto in mode Async: other codecs need mode Sync",
        ),
        ({"steps": 10, "stepz": 1}, "training.stepz: unknown field"),
        ({}, "training: one of steps and epochs must be given"),
    ],
)
def test_an_invalid_field_is_named(job: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        resolve("training", TrainingSettings, {}, job)
    assert str(raised.value) == message


def test_a_python_name_in_the_jobs_fields_is_unknown() -> None:
    with pytest.raises(SettingsError, match=r"checkpoint\.interval_seconds: unknown field"):
        resolve("checkpoint", CheckpointSettings, {}, {"interval_seconds": 3})


def test_nested_fields_are_merged() -> None:
    script = {"steps": 1, "mode": "Sync", "compression": {"push": "Int8", "top_k_permille": 3}}
    found = resolve("training", TrainingSettings, script, {"compression": {"pull": "OneBit", "push": "TopK"}})
    assert found.compression == CompressionSettings(push=Codec.TOP_K, pull=Codec.ONE_BIT, top_k_permille=3)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        TrainingSettings(steps=1).steps = 2  # type: ignore[misc]


@pytest.mark.parametrize("spec", [{}, {"training": {"steps": 7}, "checkpoint": {}}])
def test_the_runtime_reads_what_the_operator_writes(spec: dict[str, Any]) -> None:
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
    assert (checkpoint.keep, checkpoint.interval_seconds) == (3, None)


@pytest.mark.parametrize(("job", "runtime"), [(TrainingSpec, TrainingSettings), (CompressionSpec, CompressionSettings)])
def test_every_field_of_the_job_is_one_of_the_runtimes_within_the_same_bounds(job: Any, runtime: Any) -> None:
    spec, own = job.model_json_schema(), runtime.model_json_schema()
    assert spec["properties"].keys() == own["properties"].keys()
    for name, field in spec["properties"].items():
        (value,) = [option for option in field["anyOf"] if option != {"type": "null"}]
        described = own["properties"][name]
        described = next((one for one in described.get("anyOf", ()) if one != {"type": "null"}), described)
        assert value.keys() <= described.keys(), name
        assert all(described[key] == wanted for key, wanted in value.items() if key != "$ref"), name


def test_settings_of_checkpoints_may_be_numbers_of_numpy_and_a_path() -> None:
    made: Any = CheckpointSettings
    found = made(path=Path("/checkpoints"), keep=np.int32(2), interval_seconds=np.int64(60))
    assert json.loads(json.dumps(found.model_dump(mode="json"))) == {
        "path": "/checkpoints",
        "keep": 2,
        "interval_seconds": 60,
        "full_every": 1,
        "history": "Keep",
    }
    for wrong in ({"keep": True}, {"keep": 2.0}, {"path": 5}, {"path": Path("s3://bucket/a")}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            made(**wrong)


@pytest.mark.parametrize("path", ["s3:/bucket/a", "gs:/bucket/a", "az://a/b"])
def test_a_uri_that_is_none_of_an_object_store_is_no_folder(path: str) -> None:
    """Such as one that went through a Path, which keeps one slash: the folder would be lost with the pod."""
    with pytest.raises(SettingsError, match=rf"^checkpoint\.path: {path} must be a folder, or begin with s3://"):
        is_object_store(path)
    assert [is_object_store(path) for path in (None, "/a", "a:b/c", "s3://a", "./s3:/a")] == [False] * 3 + [True, False]


def test_a_program_turns_the_history_off_by_its_text() -> None:
    made: Any = CheckpointSettings
    own = made(history="None")
    assert own.history is HistoryPolicy.NONE
    assert resolve("checkpoint", CheckpointSettings, own.model_dump(), {}) == own
    with pytest.raises(ValueError, match="input should be 'Keep' or 'None'"):
        resolve("checkpoint", CheckpointSettings, {}, {"history": "none"})


def test_a_setting_under_two_names_is_given_twice() -> None:
    script = {"steps": 1, "mode": "Sync", "backup_workers": 1, "backupWorkers": 2}
    with pytest.raises(SettingsError, match=r"^backupWorkers: it is 2, and under another name 1; leave one of them"):
        resolve("training", TrainingSettings, script, {})
    same = resolve("training", TrainingSettings, {**script, "backupWorkers": 1}, {"backupWorkers": 3})
    assert same.backup_workers == 3
