"""A task's pod: the user's template with the launcher around it, and no other additions."""

import copy
import re
from collections.abc import Mapping
from typing import Any

import pytest

from pstraining.api import contract
from pstraining.launcher.contract import filled_in
from pstraining.resources import pods
from pstraining.resources.installation import Installation, ProgressEndpoint
from pstraining.resources.launcher import LauncherMap
from pstraining.resources.pods import PodTask
from tests.support.builders import job, typed

GPU: dict[str, Any] = {
    "metadata": {"labels": {"team": "vision"}, "annotations": {"note": "x"}},
    "spec": {
        "containers": [
            {
                "name": "tensorflow",
                "image": "img:gpu",
                "command": ["python"],
                "args": ["-m", "train"],
                "env": [{"name": "SEED", "value": "1"}, {"name": "CUDA_VISIBLE_DEVICES", "value": "0"}],
                "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "4"}, "requests": {"nvidia.com/gpu": 1}},
            },
            {"name": "sidecar", "image": "log:1", "resources": {"limits": {"example.com/fpga": 1}}},
        ]
    },
}


def template(role: str, spec: dict[str, Any] | None = None, **task: Any) -> dict[str, Any]:
    manifest = job(spec={"worker": {"template": GPU}} | (spec or {}))
    manifest["spec"]["worker"].setdefault("replicas", 2)
    return pods.build(typed(manifest), PodTask(role, **task), LauncherMap("digits-launcher-v1"))


def main(built: dict[str, Any]) -> dict[str, Any]:
    return pods.main_container(built["spec"])


def env(built: dict[str, Any]) -> dict[str, Any]:
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in main(built)["env"]}


PROGRESS = Installation(progress=ProgressEndpoint("https://progress.system.svc:8443", "the authority"))


@pytest.mark.parametrize(
    ("chief", "role", "index", "reports"),
    [
        (True, "chief", None, True),
        (True, "worker", 0, False),
        (True, "ps", None, False),
        (True, "evaluator", None, False),
        (False, "worker", 0, True),
        (False, "worker", 1, False),
    ],
)
def test_the_task_with_the_chiefs_duty_may_report_progress(
    chief: bool, role: str, index: int | None, reports: bool
) -> None:
    manifest = job(spec={"chief": {"enabled": chief}})
    task = PodTask(role, index, term=1)
    built = pods.build(typed(manifest), task, LauncherMap("map"), PROGRESS)
    given = {name: value for name, value in env(built).items() if name.startswith("PSTRAINING_PROGRESS_")}
    sources = [s for volume in built["spec"]["volumes"] for s in (volume.get("projected") or {}).get("sources", ())]
    tokens = [source["serviceAccountToken"] for source in sources if "serviceAccountToken" in source]
    if not reports:
        assert (given, tokens) == ({}, [])
        assert built == pods.build(typed(manifest), task, LauncherMap("map")), "and nothing else changes"
        return
    path = "/apis/pstraining.dev/v1alpha1/namespaces/default/pstrainingjobs/digits/progress"
    assert given == {
        contract.ENV_PROGRESS_URL: f"https://progress.system.svc:8443{path}",
        contract.ENV_PROGRESS_AUTHORITY: "the authority",
    }
    audience = f"pstraining.dev/progress/{manifest['metadata']['uid']}"
    assert tokens == [{"audience": audience, "path": contract.PROGRESS_TOKEN_FILE, "expirationSeconds": 3600}]
    assert built["spec"]["automountServiceAccountToken"] is False, "no rights in the API come with it"


@pytest.mark.parametrize("volume", [{"name": "pstraining", "emptyDir": {}}, {"emptyDir": {}}])
def test_a_volume_that_the_api_server_refuses_is_left_to_it(volume: dict[str, Any]) -> None:
    own = copy.deepcopy(GPU)
    own["spec"]["volumes"] = [volume]
    built = pods.build(typed(job(spec={"worker": {"template": own}})), PodTask("chief"), LauncherMap("map"), PROGRESS)
    assert built["spec"]["volumes"][0] == volume
    (sources,) = (v["projected"]["sources"] for v in built["spec"]["volumes"] if "projected" in v)
    assert any("serviceAccountToken" in source for source in sources)


COMMON = {
    "app.kubernetes.io/name": "recommender",
    "app.kubernetes.io/instance": "nightly",
    "app.kubernetes.io/component": "trainer",
    "app.kubernetes.io/managed-by": "Helm",
    "app.kubernetes.io/part-of": "shop",
}


@pytest.mark.parametrize("role", ["ps", "worker", "chief", "evaluator"])
def test_labels_of_a_template_are_kept_but_for_those_of_this_api(role: str) -> None:
    """Labels of a template are kept except for those of this API, because Services, PodMonitors and bills select by
    them.
    """
    mine = {"pstraining.dev/role": "x", "pstraining.dev/term": "7", "pstraining.dev/round": "3"}
    metadata = {"labels": COMMON | mine, "annotations": COMMON | {"pstraining.dev/container": "x"}}
    manifest = job(spec={"worker": {"template": {**GPU, "metadata": metadata}}})
    built = pods.build(typed(manifest), PodTask(role, 0, 1), LauncherMap("l"))["metadata"]
    assert built["labels"] == {**built["labels"], **COMMON, "pstraining.dev/role": role}
    assert built["annotations"] == {**built["annotations"], **COMMON, "pstraining.dev/container": "tensorflow"}
    assert "pstraining.dev/round" not in built["labels"]
    assert built["labels"].get("pstraining.dev/term") in (None, "1")


def test_without_labels_of_its_own_a_pod_has_the_recommended_ones() -> None:
    labels = template("worker", index=0)["metadata"]["labels"]
    assert (labels["app.kubernetes.io/name"], labels["app.kubernetes.io/instance"]) == ("pstraining", "digits")


@pytest.mark.parametrize(("role", "task"), [("ps", {}), ("chief", {"term": 1})])
def test_a_gpu_template_puts_no_gpu_on_chief_and_ps(role: str, task: dict[str, Any]) -> None:
    built = template(role, **task)
    for container in built["spec"]["containers"]:
        resources = container.get("resources", {})
        assert not [n for part in resources.values() for n in part if "/" in n]
    assert main(built)["resources"]["limits"] == {"cpu": "4"}
    assert env(built)["CUDA_VISIBLE_DEVICES"] == ""


def test_the_worker_keeps_its_gpu() -> None:
    built = template("worker", index=0)
    assert main(built)["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert env(built)["CUDA_VISIBLE_DEVICES"] == "0"


def test_a_custom_template_is_left_alone() -> None:
    built = template("ps", {"ps": {"replicas": 1, "template": GPU}})
    assert main(built)["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_resources_of_a_role_replace_those_of_the_borrowed_template() -> None:
    own = {"requests": {"cpu": "100m"}}
    assert main(template("ps", {"ps": {"replicas": 1, "resources": own}}))["resources"] == own
    assert main(template("chief", {"chief": {"resources": own}}, term=1))["resources"] == own


def test_the_launcher_wraps_the_whole_command() -> None:
    container = main(template("worker", index=0))
    assert container["command"] == ["python3", "/pstraining/launch.py", "--", "python", "-m", "train"]
    assert "args" not in container


@pytest.mark.parametrize(
    ("role", "task", "index"), [("worker", {"index": 3}, "3"), ("chief", {"term": 2}, "0"), ("ps", {}, None)]
)
def test_identity(role: str, task: dict[str, Any], index: str | None) -> None:
    found = env(template(role, **task))
    assert found["PSTRAINING_JOB"] == "digits"
    assert found["PSTRAINING_NAMESPACE"] == "default"
    assert found["PSTRAINING_TASK_TYPE"] == role
    expected = index or {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}}
    assert found["PSTRAINING_TASK_INDEX"] == expected
    assert found.get("PSTRAINING_TERM") == ("2" if role == "chief" else None)
    assert ("PSTRAINING_JOB_UID" in found) == (role == "chief"), "it distinguishes the terms of two jobs"
    assert found["SEED"] == "1"


@pytest.mark.parametrize(("role", "task"), [("ps", {}), ("chief", {"term": 1}), ("worker", {"index": 0})])
def test_no_token_no_service_variables_and_restricted(role: str, task: dict[str, Any]) -> None:
    spec = template(role, **task)["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_users_security_context_wins() -> None:
    mine = copy.deepcopy(GPU)
    mine["spec"]["securityContext"] = {"runAsUser": 0}
    spec = template("worker", {"worker": {"replicas": 1, "template": mine}}, index=0)["spec"]
    assert spec["securityContext"]["runAsUser"] == 0
    assert "runAsNonRoot" not in spec["securityContext"]


def test_checkpoints_are_mounted_where_the_chiefs_duty_is() -> None:
    checkpoint = {"path": "/ckpt", "volume": {"persistentVolumeClaim": {"claimName": "c"}}}

    def mounts(built: dict[str, Any]) -> list[str]:
        return [m["mountPath"] for m in main(built)["volumeMounts"]]

    assert "/ckpt" in mounts(template("chief", {"checkpoint": checkpoint}, term=1))
    worker = template("worker", {"checkpoint": checkpoint}, index=0)
    assert "/ckpt" not in mounts(worker)
    assert env(worker)["PSTRAINING_CHECKPOINT_DIR"] == "/ckpt"
    alone = {"checkpoint": checkpoint, "chief": {"enabled": False}}
    assert "/ckpt" in mounts(template("worker", alone, index=0))
    assert env(template("worker", alone, index=0))["PSTRAINING_TERM"] == "1"
    assert "/ckpt" not in mounts(template("worker", alone, index=1))


@pytest.mark.parametrize("is_read_only", [False, True])
def test_one_volume_of_a_claim_is_for_data_and_checkpoints(is_read_only: bool) -> None:
    """The kubelet never starts a pod with two volumes of one claim."""
    claim = {"persistentVolumeClaim": {"claimName": "c"}}
    pod = copy.deepcopy(GPU)
    readable = {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}} if is_read_only else claim
    pod["spec"]["volumes"] = [{"name": "data", **readable}]
    main({"spec": pod["spec"]})["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    spec = {"checkpoint": {"path": "/ckpt", "volume": claim}, "worker": {"replicas": 1, "template": pod}}
    for role, more in (("chief", {"term": 1}), ("evaluator", {})):
        built = template(role, {**spec, "evaluator": {"enabled": True}}, **more)
        own = [v for v in built["spec"]["volumes"] if "persistentVolumeClaim" in v]
        writes = role == "chief"
        assert own == [{"name": "data", **(claim if writes else readable)}]
        found = {m["mountPath"]: m for m in main(built)["volumeMounts"]}
        assert found["/ckpt"] == {"name": "data", "mountPath": "/ckpt", **({} if writes else {"readOnly": True})}
        assert found["/data"].get("readOnly", False) == (writes and is_read_only)
    assert pod["spec"]["volumes"] == [{"name": "data", **readable}], "the user's template stays"


def test_checkpoints_in_an_object_store_need_no_volume() -> None:
    checkpoint = {"uri": "s3://bucket/a"}
    for built in (
        template("chief", {"checkpoint": checkpoint}, term=1),
        template("evaluator", {"checkpoint": checkpoint, "evaluator": {"enabled": True}}),
    ):
        assert env(built)["PSTRAINING_CHECKPOINT_DIR"] == "s3://bucket/a"
        assert [volume["name"] for volume in built["spec"]["volumes"]] == ["pstraining", "pstraining-run"]
        assert {m["name"] for m in main(built)["volumeMounts"]} == {"pstraining", "pstraining-run"}


def test_workers_and_chiefs_declare_the_port_of_their_metrics() -> None:
    def ports(built: dict[str, Any]) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in main(built)["ports"]}

    metrics = {contract.METRICS_PORT_NAME: contract.METRICS_PORT}
    training = {contract.TF_PORT_NAME: contract.TF_PORT, contract.STATUS_PORT_NAME: contract.STATUS_PORT}
    assert ports(template("chief", term=1)) == ports(template("worker", index=0)) == training | metrics
    assert ports(template("ps")) == training


@pytest.mark.parametrize(
    ("role", "task"), [("chief", {"term": 1}), ("worker", {"index": 0}), ("evaluator", {"term": 1})]
)
def test_a_pod_is_ready_while_its_program_runs(role: str, task: dict[str, Any]) -> None:
    built = template(role, **task)
    assert main(built)["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "status"}
    assert {"name": "status", "containerPort": 2223, "protocol": "TCP"} in main(built)["ports"]
    assert env(built)["PSTRAINING_STATUS_PORT"] == "2223"


@pytest.mark.parametrize("role", ["worker", "ps"])
def test_the_templates_own_readiness_probe_wins(role: str) -> None:
    own = {"exec": {"command": ["true"]}}
    manifest = job()
    manifest["spec"][role]["template"] = copy.deepcopy(manifest["spec"]["worker"]["template"])
    manifest["spec"][role]["template"]["spec"]["containers"][0]["readinessProbe"] = own
    built = pods.build(typed(manifest), PodTask(role, 0), LauncherMap("l"))
    assert main(built)["readinessProbe"] == own


def test_hot_standbys_are_ready_only_by_the_operators_probe() -> None:
    """Hot standbys are ready only by the operator's probe: budgets and rolling updates count ready members, and would
    otherwise end the only one in sync.
    """
    made = job(spec={"ps": {"standby": {"mode": "Hot"}}, "training": {"mode": "Sync"}})
    made["spec"]["worker"]["template"]["spec"]["containers"][0]["readinessProbe"] = {"exec": {"command": ["true"]}}
    made["spec"]["ps"]["template"] = made["spec"]["worker"]["template"]
    for member in (0, 1):
        built = pods.build(typed(made), PodTask("ps", member=member), LauncherMap("l"))
        assert main(built)["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "status"}
    assert "exec" in main(pods.build(typed(made), PodTask("worker", 0), LauncherMap("l")))["readinessProbe"]


def test_a_port_of_another_protocol_is_kept() -> None:
    own = copy.deepcopy(GPU)
    numbers = {"protocol": "UDP", "containerPort": 2222}, {"protocol": "TCP", "containerPort": 2222}
    own["spec"]["containers"][0]["ports"] = [{"name": "stats", **numbers[0]}, {"name": "mine", **numbers[1]}]
    found = main(template("ps", {"ps": {"replicas": 1, "template": own}}))["ports"]
    assert [p for p in found if p["containerPort"] == 2222] == [
        {"name": "tf", **numbers[1]},
        {"name": "stats", **numbers[0]},
    ]


def test_a_launcher_that_reports_no_readiness_is_not_probed() -> None:
    """A launcher that reports no readiness is not probed: it belongs to an earlier version of the operator, and its pod
    would never become ready.
    """
    former = LauncherMap("digits-launcher-former", is_current=False)
    assert "readinessProbe" not in main(pods.build(typed(job()), PodTask("worker", 0), former))
    assert "readinessProbe" in main(pods.build(typed(job()), PodTask("ps"), former)), "servers have always had one"


def expanded(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the references that the kubelet expands; $$ is an escaped $, and unknown references stay."""

    def expand(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else values.get(found[1], found[0])

    return re.sub(r"\$(?:\$|\(([^)]*)\))", expand, text)


@pytest.mark.parametrize(
    "text", ["a=$(TF_CONFIG)", "$$(TF_CONFIG)", "$$$(TF_CONFIG) $$(TF_CONFIG)", "$$$$(TF_CONFIG)", "$a $$b", "$(OTHER)"]
)
def test_tf_config_is_filled_in_as_if_the_container_had_it(text: str) -> None:
    own = copy.deepcopy(GPU)
    own["spec"]["containers"][0]["args"] = [text]
    built = template("worker", {"worker": {"template": own}}, index=0)
    in_pod = [expanded(word, {}) for word in main(built)["command"]]
    assert filled_in(in_pod, {"TF_CONFIG": "{}"})[-1] == expanded(text, {"TF_CONFIG": "{}"})


def test_names_in_dns() -> None:
    assert template("worker", index=1)["spec"]["hostname"] == "digits-worker-1"
    assert template("chief", term=4)["spec"]["hostname"] == "digits-chief"
    assert "hostname" not in template("ps")["spec"]
    assert template("worker", index=1)["spec"]["subdomain"] == "digits-hs"


def test_the_users_labels_and_annotations_stay() -> None:
    metadata = template("worker", index=0)["metadata"]
    assert metadata["labels"]["team"] == "vision"
    assert metadata["labels"]["pstraining.dev/index"] == "0"
    assert metadata["annotations"]["note"] == "x"


def test_the_jobs_own_template_is_never_changed() -> None:
    manifest = job(spec={"worker": {"template": GPU}})
    before = copy.deepcopy(manifest)
    for task in (PodTask("ps"), PodTask("chief", term=1), PodTask("worker", 0)):
        pods.build(typed(manifest), task, LauncherMap("l"))
    assert manifest == before


@pytest.mark.parametrize(("mode", "known"), [("Hot", True), ("Warm", False), ("None", False)])
def test_a_server_with_hot_standbys_knows_its_node(mode: str, known: bool) -> None:
    spec = {"training": {"mode": "Sync"}, "ps": {"replicas": 2, "standby": {"mode": mode}}}
    found = env(template("ps", spec)).get(contract.ENV_NODE)
    assert found == ({"fieldRef": {"fieldPath": "spec.nodeName"}} if known else None)
