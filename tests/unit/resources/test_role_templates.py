"""The pods of a role get the role's settings, field by field."""

import copy
import json
from typing import Any

import pytest

from pstraining.cli.validation.documents import wrong_with
from pstraining.resources import cluster_map, pods
from pstraining.resources.launcher import LauncherMap
from pstraining.resources.pods import PodTask
from tests.support.builders import TEMPLATE, job, typed

TASKS = {"ps": PodTask("ps"), "chief": PodTask("chief", term=1), "evaluator": PodTask("evaluator", term=1)}
WORKER = PodTask("worker", 0)


def container(task: PodTask, spec: dict[str, Any]) -> dict[str, Any]:
    return pods.main_container(pods.build(typed(job(spec=spec)), task, LauncherMap("l"))["spec"])


def env(task: PodTask, spec: dict[str, Any]) -> dict[str, Any]:
    return {e["name"]: e.get("value") for e in container(task, spec)["env"]}


@pytest.mark.parametrize("role", TASKS)
def test_a_role_has_its_own_template(role: str) -> None:
    own = copy.deepcopy(TEMPLATE)
    own["spec"]["containers"][0]["image"] = "own:1"
    for other, task in {**TASKS, "worker": WORKER}.items():
        assert container(task, {role: {"template": own}})["image"] == ("own:1" if other == role else "img:1")


def test_the_probes_of_the_workers_program_are_not_copied() -> None:
    """A PS or a chief that fails a probe of the worker's program would be restarted again and again."""
    own: dict[str, Any] = copy.deepcopy(TEMPLATE)
    alive = {"httpGet": {"path": "/", "port": 8080}}
    hooks = {"postStart": {"exec": {"command": ["mkdir", "/tmp/x"]}}}
    own["spec"]["containers"][0] |= {"livenessProbe": alive, "startupProbe": alive, "lifecycle": hooks}
    own["spec"]["containers"][0]["readinessProbe"] = alive
    own["spec"]["containers"].append({"name": "proxy", "image": "i", "livenessProbe": alive})
    worker = container(WORKER, {"worker": {"template": own}})
    assert [worker[f"{kind}Probe"] for kind in ("liveness", "startup", "readiness")] == [alive] * 3
    for role, task in TASKS.items():
        copied = container(task, {"worker": {"template": own}})
        assert not {"livenessProbe", "startupProbe"} & copied.keys(), role
        assert copied["readinessProbe"]["httpGet"]["port"] == "status"
        assert copied["lifecycle"] == hooks
        mine = container(task, {"worker": {"template": own}, role: {"template": own}})
        assert mine["livenessProbe"] == mine["readinessProbe"] == alive, "a template of its own is kept"
        built = pods.build(typed(job(spec={"worker": {"template": own}})), task, LauncherMap("l"))
        assert built["spec"]["containers"][1]["livenessProbe"] == alive, "it tests the sidecar, which is the same"


@pytest.mark.parametrize("role", [*TASKS, "worker"])
def test_resources_of_a_role(role: str) -> None:
    own = {"limits": {"memory": "1Gi"}, "requests": {"cpu": "1"}}
    for other, task in {**TASKS, "worker": WORKER}.items():
        assert container(task, {role: {"resources": own}}).get("resources") == (own if other == role else None)


def test_a_container_keeps_its_resource_claims_in_another_size() -> None:
    own: dict[str, Any] = copy.deepcopy(TEMPLATE)
    own["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    own["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}], "limits": {"memory": "1Gi"}}
    size = {"limits": {"memory": "2Gi"}}
    roles = {"worker": {"template": own, "resources": size}, "chief": {"resources": size}}
    assert container(WORKER, roles)["resources"] == size | {"claims": [{"name": "gpu"}]}
    assert container(TASKS["chief"], roles)["resources"] == size, "a copy of the workers' template has no devices"


def test_the_container_that_runs_the_server() -> None:
    assert env(TASKS["ps"], {})["PSTRAINING_SERVER"] == "Program"
    assert env(TASKS["ps"], {"ps": {"server": "Builtin"}})["PSTRAINING_SERVER"] == "Builtin"
    assert "PSTRAINING_SERVER" not in env(WORKER, {"ps": {"server": "Builtin"}})


@pytest.mark.parametrize(("chief", "task"), [(True, TASKS["chief"]), (False, PodTask("worker", 0))])
def test_the_chiefs_work_knows_its_grace_period(chief: bool, task: PodTask) -> None:
    """Its last save ends within it. A template without one has the default of Kubernetes."""
    own = copy.deepcopy(TEMPLATE)
    own["spec"]["terminationGracePeriodSeconds"] = 90
    roles = {"chief": {"enabled": chief}, "worker": {"template": own}}
    assert env(task, roles)["PSTRAINING_GRACE_SECONDS"] == "90"
    assert "PSTRAINING_GRACE_SECONDS" not in env(PodTask("worker", 1), roles)
    assert "PSTRAINING_GRACE_SECONDS" not in env(task, {"chief": {"enabled": chief}})


def test_a_container_knows_the_number_of_its_gpus() -> None:
    own = copy.deepcopy(TEMPLATE)
    own["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 2, "amd.com/gpu": "1", "cpu": "4"}}
    assert env(WORKER, {"worker": {"template": own}})["PSTRAINING_GPUS"] == "3"
    assert "PSTRAINING_GPUS" not in env(TASKS["chief"], {"worker": {"template": own}})
    for number in ("2000m", "2.0", "2e0", 2):
        limits = {"limits": {"nvidia.com/gpu": number}}
        spelt = {"spec": {"containers": [{"name": "tensorflow", "resources": limits}]}}
        assert env(WORKER, {"worker": {"template": spelt}})["PSTRAINING_GPUS"] == "2", number
    assert "PSTRAINING_GPUS" not in env(WORKER, {})


def test_the_runtimes_environment() -> None:
    spec = {
        "checkpoint": {"keep": 7, "intervalSeconds": 11, "fullEvery": 5, "history": "None", "volume": {"emptyDir": {}}}
    }
    reported = json.loads(cluster_map.document(typed(job(spec=spec))))["checkpoint"]
    assert reported == {"path": "/checkpoints", "keep": 7, "intervalSeconds": 11, "fullEvery": 5, "history": "None"}


def test_the_checkpoints_volume() -> None:
    def volume(checkpoint: dict[str, Any]) -> dict[str, Any]:
        spec = pods.build(typed(job(spec={"checkpoint": checkpoint})), TASKS["chief"], LauncherMap("l"))["spec"]
        (found,) = (v for v in spec["volumes"] if v["name"] == "pstraining-checkpoint")
        return {k: v for k, v in found.items() if k != "name"}

    assert volume({"volume": {"nfs": {"server": "s", "path": "/p"}}}) == {"nfs": {"server": "s", "path": "/p"}}
    for nothing in ({}, {"name": "copied"}, {"persistentVolumeClaim": None}):
        assert volume({"volume": nothing}) == {}, "an emptyDir in Kubernetes, and not a claim that nobody creates"
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {}}
    assert volume({"volumeClaimTemplate": claim}) == {"persistentVolumeClaim": {"claimName": "digits-checkpoint"}}


def test_the_role_decides_about_restarts_of_its_training_container() -> None:
    """A chief that its kubelet restarts would run the same attempt twice; a worker that ends would not come back."""
    own: dict[str, Any] = copy.deepcopy(TEMPLATE)
    beside = {"name": "proxy", "image": "i", "restartPolicy": "OnFailure"}
    rules = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]
    own["spec"]["containers"][0] |= {"restartPolicy": "Never", "restartPolicyRules": rules}
    own["spec"]["containers"].append(beside)
    spec = {"worker": {"template": own}}
    for task in (*TASKS.values(), WORKER):
        assert not {"restartPolicy", "restartPolicyRules"} & container(task, spec).keys()
        built = pods.build(typed(job(spec=spec)), task, LauncherMap("l"))
        assert built["spec"]["containers"][1]["restartPolicy"] == "OnFailure", "it is not the operator's"
    found = {f.field: f.message for f in wrong_with(job(spec={**spec, "checkpoint": {"uri": "s3://bucket/a"}}))}
    path = "spec.worker.template.spec.containers[0]"
    left_out = "is left out: use spec.worker.restartPolicy"
    assert found == {f"{path}.restartPolicy": left_out, f"{path}.restartPolicyRules": left_out}
