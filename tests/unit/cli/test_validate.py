"""`validate`: its findings as text and as JSON, and reasons for the rejection of the operator's pods."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pstraining.cli.errors import CommandError
from pstraining.cli.main import app
from pstraining.cli.manifests import Document
from pstraining.cli.validation.documents import check_documents, wrong_with
from pstraining.cli.validation.schema import Severity
from tests.support.builders import TEMPLATE, job
from tests.support.command_runner import CliRunner
from tests.tfjob.cases import CASES

ROOT = Path(__file__).parents[3]
CONTAINER = TEMPLATE["spec"]["containers"][0]
POD = "spec.worker.template.spec"
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
KEPT: dict[str, Any] = {"checkpoint": {"volumeClaimTemplate": CLAIM}}
NOT_KEPT = (
    "spec.checkpoint: is not set: the operator keeps no checkpoint of this job. When its pods end, the parameters are "
    "lost unless the program saves them itself. Set spec.checkpoint to keep them on a volume."
)


def with_container(**fields: Any) -> dict[str, Any]:
    return {"worker": {"template": {"spec": {"containers": [{**CONTAINER, **fields}]}}}}


def with_pod(**fields: Any) -> dict[str, Any]:
    return {"worker": {"template": {"spec": fields}}}


VOLUME = {"name": "data", "emptyDir": {}}
MOUNT = {"name": "data", "mountPath": "/data"}
AT_C = {"name": "data", "mountPath": "/c"}
SERVERS = {"nameservers": ["10.0.0.10"]}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            with_container(imagePullPolcy="Always"),
            f"warning {POD}.containers[0].imagePullPolcy: is not a known field of Kubernetes; did you mean "
            "imagePullPolicy?",
        ),
        (
            {"worker": {"template": {"metadata": {"label": {}}}}},
            "warning spec.worker.template.metadata.label: is not a known field of Kubernetes; did you mean "
            "labels?",
        ),
        (
            {"ps": {"standby": {"mode": "Warm", "placement": {"tolerations": [{"key": "a", "oprator": "Exists"}]}}}},
            "warning spec.ps.standby.placement.tolerations[0].oprator: is not a known field of Kubernetes; did you "
            "mean operator?",
        ),
        (
            {"checkpoint": {"volume": {"emptyDirr": {}}}},
            "warning spec.checkpoint.volume.emptyDirr: is not a known field of Kubernetes; did you mean "
            "emptyDir?",
        ),
        (
            with_container(env=[{"name": "A", "value": 1}]),
            f"error {POD}.containers[0].env[0].value: must be a valid string, is 1",
        ),
        (with_container(ports=[{}]), f"error {POD}.containers[0].ports[0].containerPort: is required"),
        (
            with_container(image=None),
            f"error {POD}.containers: container tensorflow has no image (pods of worker, ps, chief)",
        ),
        (
            with_container(volumeMounts=[MOUNT]),
            f"error {POD}.containers: container tensorflow mounts data, which is not a volume "
            "(pods of worker, ps, chief)",
        ),
        (
            with_pod(volumes=[VOLUME, VOLUME]),
            f"error {POD}.volumes: has data twice (pods of worker, ps, chief)",
        ),
        (
            with_pod(volumes=[{"name": "pstraining-run", "emptyDir": {}}]),
            f"error {POD}.volumes: has pstraining-run twice: the operator adds a volume with this name; choose another "
            "name (pods of worker, ps, chief)",
        ),
        (
            {
                **with_pod(volumes=[VOLUME], containers=[{**CONTAINER, "volumeMounts": [AT_C]}]),
                "checkpoint": {"path": "/c", "volume": {"emptyDir": {}}},
            },
            f"error {POD}.containers: container tensorflow mounts /c twice; the operator mounts /pstraining, "
            "/run/pstraining and, in the chief, spec.checkpoint.path (pods of chief)",
        ),
        (
            with_container(ports=[{"name": "pst-metrics", "containerPort": 8080}]),
            f"error {POD}.containers: container tensorflow has the port name pst-metrics twice: the operator has a "
            "port with this name, 2240; choose another name (pods of worker, chief)",
        ),
        (
            {"checkpoint": {"path": "/a/../pstraining/c", "volume": {"persistentVolumeClaim": {"claimName": "c"}}}},
            f"error {POD}.containers: container tensorflow mounts /pstraining/c in the operator's read-only volume "
            "/pstraining: the container cannot start; choose another path (pods of chief)",
        ),
        (
            with_pod(containers=[CONTAINER, CONTAINER]),
            f"error {POD}.containers: has tensorflow twice (pods of worker, ps, chief)",
        ),
        (
            {"ps": {"volumeClaimTemplates": [{"metadata": {"name": "shard"}, "spec": {
                **CLAIM, "storageClass": "fast"}}], "template": {"spec": {"containers": [
                {**CONTAINER, "volumeMounts": [{**MOUNT, "name": "shard"}]}]}}}},
            "warning spec.ps.volumeClaimTemplates[0].spec.storageClass: is not a known field of Kubernetes; "
            "did you mean storageClassName?",
        ),
        *(
            (
                with_pod(dnsPolicy=policy, dnsConfig=SERVERS),
                f"warning {POD}.dnsPolicy: is {policy}, and no search domain of dnsConfig is a namespace's, such as "
                "default.svc.cluster.local: tasks wait, because they cannot resolve each other's names (pods of "
                "worker, ps, chief)",
            )
            for policy in ("Default", "None")
        ),
    ],
)  # fmt: skip
def test_templates_whose_pods_would_be_rejected(spec: dict[str, Any], message: str) -> None:
    assert [f"{f.severity} {f}" for f in wrong_with(job(spec=KEPT | spec))] == [message]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        with_container(resources={"limits": {"cpu": 1, "memory": "1Gi"}}, args=["x"]),
        with_pod(volumes=[VOLUME], containers=[{**CONTAINER, "volumeMounts": [MOUNT]}]),
        with_pod(dnsPolicy="None", dnsConfig={**SERVERS, "searches": ["default.svc.cluster.local"]}),
        with_pod(dnsPolicy="ClusterFirst"),
        with_pod(
            volumes=[VOLUME],
            containers=[
                CONTAINER,
                {"name": "a", "image": "i", "volumeMounts": [{**MOUNT, "mountPath": "/pstraining/a"}]},
            ],
        ),
        with_container(ports=[{"name": "status", "containerPort": 2223}, {"name": "pst-witness", "containerPort": 1}]),
        # A claim template is a volume of the parameter servers only.
        {
            "ps": {
                "template": {"spec": {"containers": [{**CONTAINER, "volumeMounts": [{**MOUNT, "name": "shard"}]}]}},
                "volumeClaimTemplates": [{"metadata": {"name": "shard"}, "spec": CLAIM}],
            }
        },
    ],
)
def test_templates_whose_pods_are_accepted(spec: dict[str, Any]) -> None:
    assert not wrong_with(job(spec=KEPT | spec))


@pytest.mark.parametrize(
    ("checkpoint", "reported"),
    [
        (None, [NOT_KEPT]),
        (
            {"path": None, "volume": {"emptyDir": {}}},
            ["spec.checkpoint.volume: is an emptyDir: checkpoints are deleted"],
        ),
        ({"volume": {"hostPath": {"path": "/c"}}}, ["spec.checkpoint.volume: is a hostPath: a chief that is started"]),
        ({"volume": {"persistentVolumeClaim": None}}, ["spec.checkpoint.volume: has no source, so it is an emptyDir"]),
        ({"volume": {"persistentVolumeClaim": {"claimName": "mine"}}}, []),
        ({"volumeClaimTemplate": CLAIM}, []),
    ],
)
def test_a_job_that_saves_no_model_causes_a_warning(checkpoint: dict[str, Any] | None, reported: list[str]) -> None:
    found = wrong_with(job(spec={"checkpoint": checkpoint}))
    assert [f.severity for f in found] == [Severity.WARNING] * len(reported)
    assert all(str(f).startswith(words) for f, words in zip(found, reported, strict=True))


@pytest.mark.parametrize(
    "command", [("validate",), ("submit", "--dry-run", "client"), ("plan",)], ids=["validate", "submit", "plan"]
)
def test_every_check_of_a_manifest_warns(tmp_path: Path, command: tuple[str, ...]) -> None:
    path = tmp_path / "job.yaml"
    for spec, warnings in ((KEPT, 0), ({}, 1)):
        made = job(spec=spec)
        made["metadata"] = {"name": "digits"}
        if warnings:
            limits = {"nvidia.com/gpu": 1, "cpu": 8}
            made["spec"]["worker"]["template"]["spec"]["containers"][0]["resources"] = {"limits": limits}
        path.write_text(yaml.safe_dump(made))
        result = CliRunner().invoke(app, [*command, "-f", str(path)])
        assert result.exit_code == 0
        assert result.output.count(f"warning: {NOT_KEPT}") == warnings
        assert result.output.count("warning: spec.ps.resources: is not set") == warnings


def test_manifests_that_an_api_server_accepts_are_valid() -> None:
    """Manifests that an API server accepts are valid, except for the warnings about checkpoints that are not durable,
    about another name of TensorFlow's port, as in a TFJob, and about a job for another cluster without a queue.
    """
    accepted = {c.name: wrong_with(c.manifest()) for c in CASES if not c.refused}
    said = [f for found in accepted.values() for f in found if not f.field.startswith("spec.checkpoint")]
    renamed = [f for f in said if "name of port 2222 is left out" in f.message]
    assert len(renamed) == 1
    said.remove(renamed[0])
    assert {f.field for f in said} <= {f"spec.{role}.resources" for role in ("ps", "chief", "evaluator")} | {
        "spec.managedBy"
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"apiVersion": "pstraining.dev/v1"}, "apiVersion: must be pstraining.dev/v1alpha1, is pstraining.dev/v1; did"),
        ({"kind": "pstrainingjob"}, "kind: must be PSTrainingJob, is pstrainingjob; did you mean PSTrainingJob?"),
        ({"metadata": {"name": "x", "label": {}}}, "metadata.label: is not a known field of Kubernetes; did"),
    ],
)
def test_the_head_of_an_object(change: dict[str, Any], message: str) -> None:
    (found,) = wrong_with({**job(spec=KEPT), **change})
    assert str(found).startswith(message)


def test_nothing_to_check() -> None:
    with pytest.raises(CommandError, match="The input has no PSTrainingJob, only ConfigMap, Secret"):
        check_documents([Document("f", "1", {"kind": kind}) for kind in ("ConfigMap", "Secret", "Secret")])
    with pytest.raises(CommandError, match=r"only TFJob\. `kubectl pstraining convert` converts TFJobs\."):
        check_documents([Document("f", "1", {"kind": "TFJob"})])
    with pytest.raises(CommandError, match=r"The input has no PSTrainingJob\."):
        check_documents([])


@pytest.mark.parametrize(
    ("name", "body"),
    [("f", {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Component"}), ("a/kustomization.yml", {"x": 1})],
)
def test_a_kustomization_beside_a_job_is_refused(name: str, body: dict[str, Any]) -> None:
    """Its changes, such as another image, would be missing from the job without a word."""
    with pytest.raises(CommandError, match=rf"{name} is a kustomization, .* `kubectl kustomize FOLDER \|"):
        check_documents([Document("job.yaml", "1", job(spec=KEPT)), Document(name, "1", body)])
    flux = {"apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization"}
    assert [one.word for one in check_documents([Document("f", "1", job()), Document("k", "1", flux)])][1] == "skipped"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    good, wrong = job(spec=KEPT), job("other", spec={"ps": {"replicas": 0, "replica": 1}})
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump_all([good, {"kind": "ConfigMap", "metadata": {"name": "c"}}, wrong]))
    return path


def test_for_people(file: Path) -> None:
    result = CliRunner().invoke(app, ["validate", "-f", str(file)])
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        f"{file}: document 1 (PSTrainingJob digits): ok",
        f"{file}: document 2 (ConfigMap c): skipped: not a PSTrainingJob",
        f"{file}: document 3 (PSTrainingJob other): error: spec.ps.replicas: must be at least 1, is 0",
        f"{file}: document 3 (PSTrainingJob other): warning: spec.ps.replica: is not a field of this version; did you "
        "mean replicas?",
        "2 jobs, 1 error, 1 warning",
    ]


def test_what_the_documentation_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "users" / "submit-and-change-a-job.md").read_text()
    manifest, shown = (page.split(before)[1].split("```")[0] for before in ("```yaml\n", "```\n$ "))
    monkeypatch.chdir(tmp_path)
    Path("jobs.yaml").write_text(manifest)
    command, _, output = shown.partition("\n")
    result = CliRunner().invoke(app, command.split()[2:])
    assert result.output == output


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_for_programs(file: Path, output: str, read: Any) -> None:
    result = CliRunner().invoke(app, ["validate", "-f", str(file), "-o", output])
    assert result.exit_code == 1
    found = read(result.output)
    assert (found["errors"], found["warnings"]) == (1, 1)
    assert [d["verdict"] for d in found["documents"]] == ["ok", "skipped", "wrong"]
    assert found["documents"][2] == {
        "file": str(file),
        "document": "3",
        "kind": "PSTrainingJob",
        "name": "other",
        "verdict": "wrong",
        "findings": [
            {"severity": "error", "field": "spec.ps.replicas", "message": "must be at least 1, is 0"},
            {
                "severity": "warning",
                "field": "spec.ps.replica",
                "message": "is not a field of this version; did you mean replicas?",
            },
        ],
    }


def test_a_warning_alone_is_not_a_failure() -> None:
    text = yaml.safe_dump(job(spec={"ps": {"other": 1}}))
    result = CliRunner().invoke(app, ["validate", "-f", "-"], input=text)
    assert result.exit_code == 0
    assert "standard input: document 1 (PSTrainingJob digits): warning: spec.ps.other: is not a field" in result.output
