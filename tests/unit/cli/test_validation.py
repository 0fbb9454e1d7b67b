"""Offline validation agrees with the API server; other tests hold its messages to the same table."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from pstraining.api import contract
from pstraining.api.cel_rules import FIXED_WHILE_RUNNING, FREE_WITH_HOT_STANDBYS
from pstraining.api.models import CheckpointSpec
from pstraining.api.values import path_of
from pstraining.cli.validation.documents import wrong_with
from pstraining.cli.validation.schema import Finding, Severity, defaulted, did_you_mean, validate
from pstraining.resources import fixed_fields
from tests.support.builders import job, typed
from tests.support.refused import REFUSED, edit, simple
from tests.tfjob.cases import CASES
from tests.tfjob.table import Case

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*/job.yaml"))
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def said(found: list[Finding]) -> list[str]:
    return [f"{f.severity} {f}" for f in found]


def means(found: Finding, words: str) -> bool:
    """Whether the message differs from the API server's in its wording only."""
    if words.startswith("unknown field"):
        return f'"{found.field}"' in words and "is not a field" in found.message
    return words.replace(":", " ").split()[0] == found.field or words in str(found)


@pytest.mark.parametrize("name", REFUSED)
def test_jobs_that_the_api_server_rejects(name: str) -> None:
    made = simple("default")
    assert not validate(made)
    change, words = REFUSED[name]
    change(made)
    assert any(means(f, words) for f in validate(made)), said(validate(made))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_manifests_of_users_are_accepted_or_rejected(case: Case) -> None:
    found = validate(case.manifest())
    if case.refused:
        assert any(means(f, case.refused) for f in found), said(found)
    else:
        assert not found


def test_a_template_may_set_its_own_fields() -> None:
    made = copy.deepcopy(job())
    made["spec"]["worker"]["template"]["spec"]["containers"][0]["env"] = [
        {"name": name, "value": "0"} for name in contract.ENV_OF_TEMPLATES
    ]
    assert not validate(made)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_examples_are_valid(path: Path) -> None:
    assert not wrong_with(yaml.safe_load(path.read_text())), "nor is there anything to warn of"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("spec.ps.replicas", "2", "error spec.ps.replicas: must be an integer, is '2'"),
        ("spec.ps.replicas", True, "error spec.ps.replicas: must be an integer, is True"),
        ("spec.ps.replicas", 1.5, "error spec.ps.replicas: must be an integer, is 1.5"),
        ("spec.ps.replicas", 1001, "error spec.ps.replicas: must be at most 1000, is 1001"),
        ("spec.ps", [], "error spec.ps: must be an object, is []"),
        ("spec.chief.enabled", "yes", "error spec.chief.enabled: must be a boolean, is 'yes'"),
        (
            "spec.ps.server",
            "builtin",
            "error spec.ps.server: must be one of Program, Builtin, is 'builtin'; did you mean Builtin?",
        ),
        (
            "spec.worker.replica",
            2,
            "warning spec.worker.replica: is not a field of this version; did you mean replicas?",
        ),
        ("spec.zzz", 2, "warning spec.zzz: is not a field of this version"),
        ("spec.network.topologyKey", "", "error spec.network.topologyKey: must have at least 1 characters: ''"),
        ("spec.checkpoint.path", "c", "error spec.checkpoint.path: must match ^/[^:]*$: 'c'"),
        (
            "spec.checkpoint",
            {"uri": "s3://bucket/a\n"},
            "error spec.checkpoint.uri: must match ^(s3|gs)://[a-z0-9][a-z0-9._-]*[a-z0-9](/[A-Za-z0-9!_.*'()-]+)*$: "
            "'s3://bucket/a\\n'",
        ),
        ("spec.failurePolicy.rules", [{}], "error spec.failurePolicy.rules[0].action: is required"),
        (
            "spec.failurePolicy.rules",
            [{"action": "Ignore", "exitCodes": {"values": [1, 1]}}],
            "error spec.failurePolicy.rules[0].exitCodes.values: has 1 twice",
        ),
        (
            "spec.ps.resources.limits.cpu",
            [],
            "error spec.ps.resources.limits.cpu: must be an integer or a string, is []",
        ),
        (
            "spec.autoscaling.rolePolicies",
            [{"role": "ps", "maxAllowed": {"memory": "1Gi"}}, "ps"],
            "error spec.autoscaling.rolePolicies[1]: must be an object, is 'ps'",
        ),
        (
            "spec.ps.standby",
            {"mode": "Warm", "placement": {"nodeSelector": dict.fromkeys("abcdefghijklmnopq", "v")}},
            "error spec.ps.standby.placement.nodeSelector: must have at most 16 fields: {'a': 'v', 'b': 'v', 'c': 'v', "
            "'d': 'v', 'e': 'v', 'f': 'v', 'g': 'v', 'h': '...",
        ),
        ("metadata.name", None, "error metadata.name: is required"),
        ("spec", None, "error spec: is required"),
    ],
)
def test_an_invalid_field_is_named(path: str, value: Any, message: str) -> None:
    made = job()
    edit(path, value)(made)
    assert said(validate(made)) == [message]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.ps.replicas", 2.0),  # as programs write it
        ("spec.checkpoint", {"volumeClaimTemplate": CLAIM}),
        ("spec.checkpoint", {"uri": "s3://my-bucket/jobs/digits"}),
        ("spec.checkpoint", {"uri": "gs://my.bucket"}),
        ("spec.ps.resources", {"limits": {"cpu": 1, "memory": "1Gi"}}),
        ("spec.worker.template.spec.anything", 1),
        ("spec.runPolicy.schedulingPolicy", {"gang": "Volcano", "queue": "q", "minAvailable": 4}),
        ("spec.runPolicy.schedulingPolicy", {"gang": "SchedulerPlugins", "timeoutSeconds": 9}),
        ("metadata.labels", {"a": "b"}),
        ("status", {"phase": "Nonsense", "other": 1}),
    ],
)
def test_valid_jobs_are_accepted(path: str, value: Any) -> None:
    made = job()
    edit(path, value)(made)
    assert not validate(made)


@pytest.mark.parametrize(
    ("path", "is_free"),
    [
        *((path, False) for path in ("/", "//", "/..", "/./", "/pstraining", "//pstraining/c", "/run//pstraining/")),
        *((path, True) for path in ("/c", "/.c", "/...c/", "/run", "/runs/pstraining", "/pstraining-run", "/a/..c")),
    ],
)
def test_the_checkpoint_is_not_mounted_over_the_image_or_the_launcher(path: str, is_free: bool) -> None:
    found = said(validate(job(spec={"checkpoint": {"path": path, "volumeClaimTemplate": CLAIM}})))
    assert bool(found) is not is_free
    assert all("reserved for the image and the launcher; choose another path" in one for one in found)


@pytest.mark.parametrize(
    ("memory", "is_positive"),
    [
        *((text, True) for text in ("16Gi", "0.5Gi", ".5Gi", "1.", "1e9", "100M", "00.10k", "9" * 20, 1, 2**31)),
        *((text, False) for text in ("", "0", "0Gi", "0.0", "00e3", "-1Gi", "1.2.3", "1m", "Gi", ".", 0, -5)),
    ],
)
def test_memory_grows_to_a_positive_maximum(memory: str | int, is_positive: bool) -> None:
    policies = [{"role": "ps", "maxAllowed": {"memory": memory}}]
    found = said(validate(job(spec={"autoscaling": {"mode": "Grow", "rolePolicies": policies}})))
    assert bool(found) is not is_positive
    assert all(one.startswith("error spec.autoscaling.rolePolicies[0].maxAllowed.memory: must ") for one in found)


def test_nulls_are_treated_as_absent() -> None:
    made = job(spec={"checkpoint": None, "chief": None, "training": {"mode": None}})
    assert not validate(made)
    made["spec"]["ps"]["replicas"] = None
    assert said(validate(made)) == ["error spec.ps.replicas: is required"]


def test_defaults_are_filled_in_on_every_level() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"default": {}, "properties": {"b": {"default": 1}}}, "c": {"default": 2}, "d": {}},
    }
    assert defaulted(schema, {"c": None, "d": None}) == {"a": {"b": 1}, "c": 2}
    assert defaulted({"items": schema}, [{"c": 3}]) == [{"a": {"b": 1}, "c": 3}]


def test_a_generated_name_is_checked_with_its_full_length() -> None:
    made = job()
    made["metadata"] = {"generateName": "a" * 35}
    assert not validate(made)
    made["metadata"] = {"generateName": "a" * 36}
    assert "at most 40 characters" in said(validate(made))[0]


@pytest.mark.parametrize("path", [*FIXED_WHILE_RUNNING, *FREE_WITH_HOT_STANDBYS])
def test_immutable_fields_are_mutable_while_suspended(path: str) -> None:
    old = job(spec={"checkpoint": {"volume": {"emptyDir": {}}}} if path.startswith("checkpoint") else {})
    path = f"spec.{path.rstrip('?')}"
    new = copy.deepcopy(old)
    edit(path, OTHER[path])(new)
    (finding,) = [f for f in validate(new, old) if "immutable" in f.message]
    while_ = "runs without hot standbys" if f"{path.removeprefix('spec.')}?" in FREE_WITH_HOT_STANDBYS else "runs"
    assert finding == Finding(
        path, f"{path} is immutable while the job {while_}: set runPolicy.suspend to true, change it and resume"
    )
    assert not validate(old, old)
    new["spec"]["runPolicy"] = {**new["spec"].get("runPolicy", {}), "suspend": True}
    assert not [f for f in validate(new, old) if "immutable" in f.message]


CHECKPOINT: dict[str, Any] = {
    "path": "/d",
    "keep": 4,
    "intervalSeconds": 5,
    "fullEvery": 6,
    "uri": "s3://bucket/c",
    "volume": {"hostPath": {"path": "/c"}},
    "volumeClaimTemplate": CLAIM | {"storageClassName": "fast"},
    "retainPolicy": "Delete",
    "history": "None",
}


@pytest.mark.parametrize("field", CheckpointSpec.model_fields)
def test_checkpoint_fields_except_retain_policy_are_immutable(field: str) -> None:
    name = CheckpointSpec.model_fields[field].alias or field
    old = job(spec={"checkpoint": {"volumeClaimTemplate": CLAIM, "retainPolicy": "Retain"}})
    new = copy.deepcopy(old)
    new["spec"]["checkpoint"][name] = CHECKPOINT[name]
    if name in ("uri", "volume"):
        del new["spec"]["checkpoint"]["volumeClaimTemplate"]
    refused = [f.field for f in validate(new, old)]
    assert refused == ([] if name == "retainPolicy" else ["spec.checkpoint"])
    assert (fixed_fields.digest(typed(old)) == fixed_fields.digest(typed(new))) is (name == "retainPolicy")


@pytest.mark.parametrize("ordered", [True, False, None])
def test_the_workers_of_ordered_sums_change_only_while_suspended(ordered: bool | None) -> None:
    """Workers and servers would wait for the former number of gradients forever."""
    training = {"mode": "Sync"} | ({} if ordered is None else {"orderedSums": ordered})
    old = job(spec={"training": training, "worker": {"replicas": 2}})
    new = copy.deepcopy(old)
    edit("spec.worker.replicas", 3)(new)
    refused = [f for f in validate(new, old) if "orderedSums" in f.message]
    assert [f.field for f in refused] == (["spec.worker.replicas"] if ordered else [])
    assert (fixed_fields.digest(typed(old)) != fixed_fields.digest(typed(new))) is (ordered is True)
    edit("spec.runPolicy.suspend", True)(new)
    assert not validate(new, old)


@pytest.mark.parametrize("path", FREE_WITH_HOT_STANDBYS)
def test_the_spec_of_servers_with_hot_standbys_is_mutable(path: str) -> None:
    old = job(spec={"ps": {"replicas": 1, "standby": {"mode": "Hot"}}, "training": {"mode": "Sync"}})
    path = f"spec.{path.rstrip('?')}"
    new = copy.deepcopy(old)
    edit(path, OTHER[path])(new)
    assert not [f for f in validate(new, old) if "immutable" in f.message]
    new["spec"]["ps"]["standby"] = {"mode": "Warm"}
    assert [f for f in validate(new, old) if f.field == "spec.ps.standby"], "but not together with these"


POD = {"spec": {"containers": [{"name": "other", "image": "i", "command": ["c"]}]}}
OTHER: dict[str, Any] = {
    **{f"spec.{role}.template": POD for role in ("ps", "worker", "chief", "evaluator")},
    **{f"spec.{role}.resources": {"limits": {"cpu": 1}} for role in ("ps", "chief", "evaluator")},
    **{f"spec.{role}.restartPolicy": "Never" for role in ("ps", "worker", "chief", "evaluator")},
    "spec.ps.server": "Builtin",
    "spec.ps.standby": {"mode": "Warm"},
    "spec.ps.onChiefRestart": "Keep",
    "spec.ps.volumeClaimTemplates": [{"metadata": {"name": "shard"}, "spec": CLAIM}],
    "spec.ps.persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"},
    "spec.worker.addressing": "ClusterIP",
    "spec.chief.enabled": False,
    "spec.evaluator.enabled": True,
    "spec.evaluator.inCluster": True,
    "spec.checkpoint": {"volume": {"hostPath": {"path": "/c"}}},
    "spec.training": {"steps": 3},
    "spec.network.topologyKey": "zone",
    "spec.network.packTopologyKey": "zone",
    "spec.runPolicy.nodeLossSeconds": 7,
    "spec.runPolicy.schedulingPolicy": {"priorityClass": "high"},
}


def test_a_finding_names_its_field_once() -> None:
    assert str(Finding("spec.a", "must be b")) == "spec.a: must be b"
    assert str(Finding("spec.a", "spec.a and c do not go together")) == "spec.a and c do not go together"
    assert Finding("spec.a", "x").severity is Severity.ERROR


def test_hints_and_paths() -> None:
    assert did_you_mean("REPLICA", ["replicas", "other"]) == "; did you mean replicas?"
    assert did_you_mean("zzz", ["replicas"]) == ""
    assert path_of(("spec", "rules", 0, "action")) == "spec.rules[0].action"
