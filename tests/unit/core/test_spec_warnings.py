"""Fields without an effect are a condition and one event, also for jobs that no plugin has checked."""

from typing import Any

import pytest

from pstraining.api.models import PSTrainingJob
from pstraining.cli.validation.documents import wrong_with
from pstraining.cli.validation.schema import with_defaults
from pstraining.core.policies.ineffective import SHOWN, ineffective, message_about
from tests.support.builders import TEMPLATE, job
from tests.support.simulation import World

CONDITION = "FieldsWithoutEffect"
URI = {"checkpoint": {"uri": "s3://bucket/a"}}
STANDBYS = {"ps": {"standby": {"replicasPerShard": 2}}}
OTHERS = (
    STANDBYS,
    {"evaluator": {"restartPolicy": "Never"}},
    {"chief": {"enabled": False, "resources": {"limits": {"cpu": 1}}}, "ps": {"onChiefRestart": "Keep"}},
    {"runPolicy": {"maxRestarts": 5}},
    {"failurePolicy": {"rules": [{"role": "evaluator", "action": "Ignore"}]}},
    {"autoscaling": {"mode": "Grow", "rolePolicies": [{"role": "chief", "maxAllowed": {"memory": "1Gi"}}]}},
)


def test_fields_without_an_effect_are_reported_once_until_corrected() -> None:
    world = World(with_defaults(job(spec={**URI, **STANDBYS, "runPolicy": {"suspend": True}})))
    world.settle()
    found = world.condition(CONDITION)
    assert (found["status"], found["reason"]) == ("True", "OtherFieldsPrevail")
    assert found["message"] == (
        "spec.ps.standby.replicasPerShard: is 2, but mode None has no standbys: set spec.ps.standby.mode to Warm or "
        "Hot, or remove it."
    )
    assert [(e.type, e.message) for e in world.reported if e.reason == CONDITION] == [("Warning", found["message"])]
    writes = world.status_writes
    for _ in range(3):
        world.reconcile()
    assert world.status_writes == writes, "an unchanged job causes no write"
    world.edit({"ps": {"standby": {"replicasPerShard": 1}}})
    world.settle()
    assert (world.condition(CONDITION)["status"], world.condition(CONDITION)["reason"]) == ("False", "FieldsCorrected")
    assert [e.reason for e in world.reported].count(CONDITION) == 1


def test_a_job_whose_fields_have_an_effect_has_no_such_condition() -> None:
    world = World(with_defaults(job(spec=URI)))
    world.settle()
    assert world.job is not None
    assert CONDITION not in {c["type"] for c in world.job["status"]["conditions"]}


def test_a_job_that_has_ended_gets_no_new_warning() -> None:
    world = World(job(spec={**URI, **STANDBYS}))
    world.settle()
    world.end("chief")
    world.settle()
    assert world.job is not None
    status = world.job["status"]
    status["conditions"] = [c for c in status["conditions"] if c["type"] != CONDITION]
    writes = world.status_writes
    world.settle()
    assert world.status_writes == writes


@pytest.mark.parametrize("spec", OTHERS)
def test_the_operator_and_the_plugin_name_the_same_fields(spec: dict[str, Any]) -> None:
    """The operator sees the defaults of the API server, and the plugin the manifest."""
    made = job(spec={**URI, **spec})
    world = World(with_defaults(made))
    world.settle()
    findings = [f for f in wrong_with(made) if f"{f.field}: {f.message}." in world.condition(CONDITION)["message"]]
    assert len(findings) == len(wrong_with(made)) >= 1


def test_many_fields_make_a_message_of_limited_length() -> None:
    rules = [{"action": "Ignore"}] * (SHOWN + 3)
    found = ineffective(PSTrainingJob.model_validate(job(spec={**URI, "failurePolicy": {"rules": rules}})))
    message = message_about(found)
    assert len(found) == SHOWN + 2
    assert message.count("decides nothing") == SHOWN
    assert message.endswith("`kubectl pstraining validate` names 2 more.")


@pytest.mark.parametrize(
    "container",
    [
        {"resources": {"limits": {"memory": "8 GB"}}},
        {"volumeMounts": [{"mountPath": "/no-name"}]},
        {"volumeDevices": "shard"},
    ],
)
def test_values_that_kubernetes_refuses_do_no_harm(container: dict[str, Any]) -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    template = {"spec": {"containers": [{**TEMPLATE["spec"]["containers"][0], **container}]}}
    servers = {"volumeClaimTemplates": [{"metadata": {"name": "shard"}, "spec": claim}]}
    growth = {"mode": "Grow", "rolePolicies": [{"role": "worker", "maxAllowed": {"memory": "8Gi"}}]}
    world = World(job(spec={**URI, "ps": servers, "worker": {"template": template}, "autoscaling": growth}))
    world.reconcile()
    reported = "InvalidTemplate" if "volumeDevices" in container else CONDITION
    assert world.condition(reported)["status"] == "True"
