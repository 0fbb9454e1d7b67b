"""Objects beside TFJobs: `convert` passes them on, and names their references to TFJobs."""

import json
from typing import Any

import pytest
import yaml

from pstraining.cli.main import app
from pstraining.cli.tfjob.others import notes_on
from tests.support.command_runner import CliRunner
from tests.support.tfjobs import replica, template, tfjob


def run(*arguments: str, text: str = "") -> Any:
    return CliRunner().invoke(app, ["convert", *arguments], input=text)


def test_references_to_tfjobs_in_other_objects_are_named() -> None:
    experiment = {"apiVersion": "kubeflow.org/v1beta1", "kind": "Experiment", "spec": {"trialSpec": tfjob()}}
    manifest = json.dumps(tfjob(), indent=1)
    workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "spec": {"steps": [{"manifest": manifest}]}}
    role = {"apiVersion": "rbac/v1", "kind": "Role", "rules": [{"resources": ["pods"]}, {"resources": ["tfjobs"]}]}
    service = {"apiVersion": "v1", "kind": "Service", "spec": {"selector": {"tf_job_name": "x", "job-name": "y"}}}
    job = {"apiVersion": "v1", "kind": "Service", "spec": {"selector": {"job-name": "y"}}}
    done = run("-f", "-", text=yaml.safe_dump_all([tfjob(), experiment, workflow, role, service, job]))
    assert done.exit_code == 3
    assert [line.split(": ")[1] for line in done.stderr.splitlines() if line.startswith("  no counterpart")] == [
        *("spec.trialSpec", "spec.steps[0].manifest", "rules[1]", "spec.selector")
    ]
    assert "Convert and replace the TFJob; the controller that creates it must support" in done.stderr
    assert len(list(yaml.safe_load_all(done.stdout))) == 6


@pytest.mark.parametrize(
    ("condition", "is_named"),
    [
        ("status.replicaStatuses.Worker.succeeded == 2", True),
        ("status.tfReplicaStatuses.Worker.failed > 0", True),
        ('status.conditions.#(type=="Succeeded")#|#(status=="True")#', False),
    ],
)
def test_a_condition_on_the_status_of_an_embedded_tfjob_is_named(condition: str, is_named: bool) -> None:
    task = {"successCondition": condition, "manifest": json.dumps(tfjob(), indent=1)}
    workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "spec": {"templates": [{"resource": task}]}}
    path = "spec.templates[0].resource.successCondition"
    assert (path in [note.path for note in notes_on(workflow)]) is is_named


@pytest.mark.parametrize(
    ("text", "is_named"),
    [
        (json.dumps(tfjob()), True),
        (json.dumps({"manifest": json.dumps(tfjob())}), True),
        ("{apiVersion: kubeflow.org/v1, kind: TFJob}", True),
        ("apiVersion: kubeflow.org/v1\nkind: 'TFJob'\n", True),
        ("items:\n- kind: TFJob\n", True),
        ("mankind: TFJob", False),
        ("kind: TFJobs", False),
        ("A job of kind: TFJob", False),
    ],
)
def test_a_manifest_in_a_text_is_named_however_it_is_written(text: str, is_named: bool) -> None:
    applied = {"kubectl.kubernetes.io/last-applied-configuration": text}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"annotations": applied}, "data": {"job": text}}
    assert [note.path for note in notes_on(body)] == (["data.job"] if is_named else [])


@pytest.mark.parametrize("rules", [[{"resources": 5}], [{"resources": True}], [{"resources": "tfjobs"}], [5], 5])
def test_a_role_with_a_wrong_type_is_passed_on(rules: object) -> None:
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": rules}
    done = run("-f", "-", text=yaml.safe_dump_all([tfjob(), role]))
    assert done.exit_code == 0
    assert list(yaml.safe_load_all(done.stdout))[1] == role


def rights(groups: list[str], resources: list[str]) -> dict[str, Any]:
    return {"apiVersion": "rbac/v1", "kind": "Role", "rules": [{"apiGroups": groups, "resources": resources}]}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (rights(["kubeflow.org"], ["tfjobs/status"]), "rules[0]"),
        (rights(["kubeflow.org"], ["*"]), "rules[0]"),
        (rights(["*"], ["*"]), None),
        (rights(["apps"], ["*"]), None),
        (
            {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"count/tfjobs.kubeflow.org": 3}}},
            'spec.hard["count/tfjobs.kubeflow.org"]',
        ),
        (
            {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80, "targetPort": "tfjob-port"}]}},
            "spec.ports[0].targetPort",
        ),
        (
            {"apiVersion": "kubeflow.org/v1beta1", "kind": "Experiment", "primaryPodLabels": {"replica-type": "ps"}},
            "primaryPodLabels",
        ),
        ({"apiVersion": "v1", "kind": "ConfigMap", "data": {"port": "tf", "jobs": "tfjobs"}}, None),
        ({"apiVersion": "v1", "kind": "ConfigMap", "data": {"run": "kubectl -n a wait tfjob/m"}}, "data.run"),
        ({"apiVersion": "v1", "kind": "ConfigMap", "data": {"run": "kubectl apply -f tfjob.yaml\ntfjob"}}, None),
    ],
)
def test_what_depends_on_tfjobs_is_named(body: dict[str, Any], path: str | None) -> None:
    assert [note.path for note in notes_on(body)] == ([] if path is None else [path])


@pytest.mark.parametrize(
    ("body", "is_refused", "advice"),
    [
        ({"resources": ["job.yaml"], "namePrefix": "a-"}, True, "`kubectl kustomize FOLDER | kubectl"),
        ({"apiVersion": "v2", "name": "mnist", "version": "0.1.0"}, True, "`helm template RELEASE CHART | kubectl"),
        ({"data": {}}, True, "Remove it."),
        (
            {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"},
            False,
            "`kubectl kustomize FOLDER | kubectl",
        ),
    ],
)
def test_files_of_tools_are_to_be_rendered_first(body: dict[str, Any], is_refused: bool, advice: str) -> None:
    (note,) = notes_on(body)
    assert note.refused is is_refused
    assert note.missing is not is_refused
    assert advice in note.todo


@pytest.mark.parametrize(
    ("spec", "is_patch"),
    [
        ({"tfReplicaSpecs": {"Worker": {"replicas": 4}}}, True),
        ({"tfReplicaSpecs": {"Worker": {"template": template({"image": "i:2"})}}}, True),
        ({"tfReplicaSpecs": {"PS": {"replicas": 2}, "Worker": replica()}}, True),
        ({"runPolicy": {"suspend": True}}, True),
        ({"tfReplicaSpecs": {"Worker": replica()}}, False),
        ({"tfReplicasSpecs": {"Worker": replica()}}, False),
        ({"replicaSpecs": []}, False),
        (3, False),
    ],
)
def test_a_patch_of_kustomize_is_to_be_rendered_first(spec: Any, is_patch: bool) -> None:
    done = run("-f", "-", text=yaml.safe_dump(tfjob() | {"spec": spec}))
    assert ("it may be a patch of Kustomize" in done.stderr) is is_patch
    assert ("`kubectl kustomize FOLDER | kubectl pstraining convert -f -`" in done.stderr) is is_patch


@pytest.mark.parametrize(
    ("selector", "is_named"),
    [
        ({"job-name": "mnist"}, True),
        ({"matchLabels": {"job-name": "mnist"}}, True),
        ({"matchExpressions": [{"key": "job-name", "operator": "In", "values": ["a", "mnist"]}]}, True),
        ({"job-name": "fetch"}, False),
        ({"app": "mnist"}, False),
        ({"matchLabels": 3, "matchExpressions": [{"key": "job-name", "values": 3}]}, False),
    ],
)
def test_a_selector_by_the_name_of_a_tfjob_is_named(selector: dict[str, Any], is_named: bool) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"selector": selector}}
    done = run("-f", "-", text=yaml.safe_dump_all([service, tfjob()]))
    assert ("spec.selector: it selects by labels of TFJob's operator (job-name)" in done.stderr) is is_named


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("mnist-chief-0", "mnist-chief-0"),
        ("targets: ['mnist-worker-1.team.svc:9090']", "mnist-worker-1"),
        ("mnist-ps-0", None),
        ("my-mnist-worker-0", None),
        (f"{'w' * 60}-ps-0", f"{'w' * 60}-ps-0"),
    ],
)
def test_a_service_that_only_a_tfjob_has_is_named(text: str, name: str | None) -> None:
    backend = {"service": {"name": text, "port": {"number": 6006}}}
    body = {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": text}, "spec": [backend]}
    found = [(note.path, note.message) for note in notes_on(body, ["mnist", "w" * 60])]
    assert found == ([] if name is None else [("spec[0].service.name", f"{name} is a Service that TFJob creates.")])


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"spec": {"scaleTargetRef": {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": "m"}}}, "spec.scaleT"),
        ({"metadata": {"ownerReferences": [{"apiVersion": "kubeflow.org/v1", "kind": "TFJob"}]}}, "metadata.ownerRef"),
    ],
)
def test_a_reference_to_a_tfjob_is_not_called_a_tfjob(body: dict[str, Any], path: str) -> None:
    (note,) = notes_on({"apiVersion": "v1", "kind": "Other", **body})
    assert note.missing
    assert note.path.startswith(path)
    assert note.message == "it refers to the kind TFJob."
    assert note.todo.startswith("Refer to apiVersion pstraining.dev/v1alpha1 and kind PSTrainingJob")


GROUP = "training.kubeflow.org"
ON_TFJOBS = {"apiGroups": ["kubeflow.org"], "operations": ["CREATE"], "resources": ["tfjobs"]}


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        ({"webhooks": [{"rules": [ON_TFJOBS]}]}, ["webhooks[0].rules[0]"]),
        ({"webhooks": [{"rules": [{**ON_TFJOBS, "resources": ["*/*"]}]}]}, ["webhooks[0].rules[0]"]),
        ({"webhooks": [{"rules": [{**ON_TFJOBS, "apiGroups": ["*"], "resources": ["*"]}]}]}, []),
        ({"webhooks": [{"objectSelector": {"matchLabels": {"replica-type": "ps"}}}]}, ["webhooks[0].objectSelector"]),
        (
            {"spec": {"matchConstraints": {"resourceRules": [ON_TFJOBS]}}},
            ["spec.matchConstraints.resourceRules[0]"],
        ),
        (
            {"spec": {"validations": [{"expression": f"'{GROUP}/job-name' in object.metadata.labels"}]}},
            ["spec.validations[0].expression"],
        ),
        (
            {"spec": {"match": {"kinds": ["Pod", "TFJob"], "any": [{"kinds": ["kubeflow.org/v1/TFJob"]}]}}},
            ["spec.match.kinds[1]", "spec.match.any[0].kinds[0]"],
        ),
        ({"data": {"resource.customizations.health.kubeflow.org_TFJob": "x"}}, ['health.kubeflow.org_TFJob"]']),
        ({"spec": {"workloadSelector": {"labels": {f"{GROUP}/job-name": "m"}}}}, [f'labels["{GROUP}/job-name"]']),
        ({"spec": {"selector": f"{GROUP}/job-name == 'm'"}}, ["spec.selector"]),
        (
            {"spec": {"rules": [{"expr": 'kube_pod_labels{label_training_kubeflow_org_job_name="m"}'}]}},
            ["spec.rules[0].expr"],
        ),
        (
            {
                "spec": {
                    "rules": [{"expr": 'increase(training_operator_jobs_failed_total{framework="tensorflow"}[1h])'}]
                }
            },
            ["spec.rules[0].expr"],
        ),
        ({"data": {"panel": '{"expr": "sum(tf_operator_jobs_created_total)"}'}}, ["data.panel"]),
        ({"data": {"panel": "training_operator_jobs", "expr": 'tf_operator_jobs_failed_total{framework="mpi"}'}}, []),
        ({"data": {"run": f"kubectl get pods -l {GROUP}/job-name=m"}}, ["data.run"]),
        # Not labels of TFJob's operator alone, or not of its pods:
        ({"data": {"kinds": "TFJob", "TF_JOB_NAME": "m", "path": "metadata.labels['job-name']"}}, []),
        ({"metadata": {"labels": {f"{GROUP}/job-name": "m"}}}, []),
        ({"apiVersion": "kubeflow.org/v1", "spec": {"labelSelector": {f"{GROUP}/job-name": "m"}}}, []),
    ],
)
def test_policies_and_queries_that_no_longer_apply_are_named(body: dict[str, Any], paths: list[str]) -> None:
    found = [note.path for note in notes_on({"apiVersion": "v1", "kind": "Other", **body})]
    assert len(found) == len(paths)
    assert all(path.endswith(end) for path, end in zip(found, paths, strict=True))
