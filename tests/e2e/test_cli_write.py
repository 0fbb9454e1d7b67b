"""The commands that check and change jobs, on a real cluster: their effects, and their messages on failure.

For each job, offline validation must agree with the API server's message.
"""

import json
import re
from pathlib import Path

import pytest
import yaml

from pstraining.api import contract, names
from pstraining.api.crd import custom_resource_definition
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.validation.schema import Severity, defaulted, validate
from tests.support.cli_runs import failed, nobody_here, run
from tests.support.kube import CHILD_KINDS, ApiError, Kube, Object, Target, wait_for
from tests.support.operator_process import ROOT, OperatorProcess
from tests.support.refused import REFUSED, container, edit, simple
from tests.support.scripted_program import manifest, share
from tests.support.soak_marks import ALL, in_all
from tests.tfjob.cases import CASES

pytestmark = pytest.mark.cluster


def answer(kube: Kube, namespace: str, job: Object) -> Object | str:
    """Return the job as the API server would store it, or the reason of its rejection."""
    body = {**job, "metadata": {**job["metadata"], "namespace": namespace}}
    try:
        stored: Object = kube.request(
            "POST", kube.path("PSTrainingJob", namespace) + "?fieldValidation=Strict&dryRun=All", body
        )
    except ApiError as error:
        return error.message
    return stored


def jobs() -> dict[str, Object]:
    """Return valid and invalid jobs of all kinds."""
    found = {case.name: case.manifest() for case in CASES}
    for name, (change, _) in REFUSED.items():
        found[name] = simple("")
        change(found[name])
    found["settings that are a template's to make"] = simple("")
    container(found["settings that are a template's to make"])["env"] = [
        {"name": name, "value": "0"} for name in contract.ENV_OF_TEMPLATES
    ]
    examples = {path.parent.name: yaml.safe_load(path.read_text()) for path in (ROOT / "examples").glob("*/job.yaml")}
    return found | examples


def test_offline_validation_and_the_api_server_agree(kube: Kube, crd: None, namespace: str) -> None:
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    apart = []
    for name, job in jobs().items():
        said, found = answer(kube, namespace, job), validate(job)
        if isinstance(said, str):
            # Offline validation and the API server name the same fields, with equal messages for rules. For a job with
            # an unknown field the API server reports nothing else.
            asked = [f for f in found if f.severity is Severity.WARNING or "unknown field" not in said]
            unsaid = [f for f in asked if f.field not in said or (str(f) == f.message and f.message not in said)]
            if not asked or unsaid:
                apart.append(f"{name}: {list(map(str, found))}, but {said}")
        elif found:
            apart.append(f"{name}: {list(map(str, found))}, but it is taken")
        elif defaulted(schema, job)["spec"] != said["spec"]:
            apart.append(f"{name}: other defaults")
    assert not apart, "\n".join(apart)


def test_offline_validation_rejects_the_changes_that_the_api_server_rejects(
    kube: Kube, crd: None, namespace: str
) -> None:
    stored = kube.create(simple(namespace))
    for field, value in (
        ("spec.ps.server", "Builtin"),
        ("spec.chief.enabled", False),
        ("spec.runPolicy.managedBy", "other.dev/operator"),
        ("spec.worker.minReplicas", 9),
    ):
        changed = json.loads(json.dumps(stored))
        edit(field, value)(changed)
        (finding,) = [f for f in validate(changed, stored) if f.severity is Severity.ERROR]
        with pytest.raises(ApiError) as refused:
            kube.merge("PSTrainingJob", namespace, "bad", {"spec": changed["spec"]})
        assert finding.message in refused.value.message


def children(kube: Kube, namespace: str) -> set[tuple[str, str]]:
    """Return the objects of jobs, except pods."""
    kinds = [kind for kind in CHILD_KINDS if kind != "Pod"]
    return {(k, c["metadata"]["name"]) for k in kinds for c in kube.list(k, namespace, names.LABEL_JOB)}


@pytest.mark.minutes
def test_a_jobs_life_by_commands(
    kube: Kube, target: Target, own_operator: OperatorProcess, namespace: str, shared: Path
) -> None:
    own_operator.start()
    share(kube, namespace, "job-orders", shared)
    text = yaml.safe_dump(manifest(namespace, "job", workers=1))
    where = ("-n", namespace)

    checked = run(target, "submit", "-f", "-", "--dry-run", "server", *where, given=text)
    assert (checked.returncode, checked.stdout) == (0, f"job in {namespace}: created (dry run)\n"), checked
    assert kube.get("PSTrainingJob", namespace, "job") is None

    started = run(target, "submit", "-f", "-", "--wait", *where, given=text)
    assert started.returncode == 0, started
    assert started.stdout.splitlines()[0] == f"job in {namespace}: created"
    assert started.stdout.splitlines()[-1] == "job is running."

    live = ("plan", "-f", "-", "--live", "-o", "json", *where)
    same = json.loads(run(target, *live, given=text).stdout)
    assert (same["exists"], same["changes"], same["actions"]) == (True, [], []), same
    wider = yaml.safe_load(text)
    edit("spec.worker.replicas", 2)(wider)
    planned = json.loads(run(target, *live, given=yaml.safe_dump(wider)).stdout)
    assert planned["changes"] == [{"field": "spec.worker.replicas", "before": 1, "after": 2}]
    before = children(kube, namespace)

    scaled = run(target, "scale", "job", "--workers", "2", "--wait", *where)
    would_be = {(a["kind"], a["name"]) for a in planned["actions"] if a["action"] == "create"}
    assert children(kube, namespace) - before == would_be == {("Deployment", "job-worker-1")}
    assert scaled.stdout.splitlines()[0] == f"job in {namespace}: scaled from 1 to 2 workers", scaled
    assert scaled.stdout.splitlines()[-1] == "job: 2 of 2 workers ready."
    too_few = failed(run(target, "scale", "job", "--workers", "0", *where))
    assert "spec.worker.replicas: must be at least 1, is 0" in too_few

    conflict = failed(run(target, "submit", "-f", "-", *where, given=text))
    assert "spec.worker.replicas (conflict with" in conflict
    assert "--force" in conflict
    immutable = yaml.safe_load(text)
    edit("spec.chief.enabled", False)(immutable)
    for command in (("submit", "--force"), ("plan", "--live")):
        refused = failed(run(target, *command, "-f", "-", *where, given=yaml.safe_dump(immutable)))
        assert "spec.chief.enabled is immutable while the job runs" in refused

    if ALL:  # tests/e2e/test_docs.py runs both commands in `make test`
        _stops_and_continues(target, namespace)


def _stops_and_continues(target: Target, namespace: str) -> None:
    where = ("-n", namespace)
    stopped = run(target, "suspend", "job", "--wait", *where)
    assert stopped.stdout.splitlines()[-1] == "job is suspended.", stopped
    again = run(target, "suspend", "job", *where)
    assert (again.returncode, again.stdout) == (0, f"job in {namespace}: is suspended: nothing to do\n")
    resumed = run(target, "resume", "job", "--wait", *where)
    assert resumed.stdout.splitlines()[-1] == "job is running.", resumed


def test_a_job_that_cannot_start_ends_the_wait(
    kube: Kube, target: Target, own_operator: OperatorProcess, namespace: str
) -> None:
    own_operator.start()
    job = simple(namespace)
    container(job)["imagePullPolcy"] = "Never"
    ran = run(target, "submit", "-f", "-", "--wait", "--timeout", "60", given=yaml.safe_dump(job))
    assert "imagePullPolcy: is not a known field of Kubernetes; did you mean imagePullPolicy?" in ran.stderr
    assert re.search("bad cannot start: .*imagePullPolcy", failed(ran, ExitCode.JOB_FAILED))
    examined = run(target, "doctor", "bad", "-n", namespace, "-o", "json")
    assert (examined.returncode, json.loads(examined.stdout)["mostLikely"]["cause"]) == (1, "TemplateRefused"), examined
    waited = run(target, "wait", "bad", "-n", namespace)
    assert re.search("bad cannot start: .*imagePullPolcy", failed(waited, ExitCode.JOB_FAILED))


def test_doctor_without_rights(kube: Kube, tmp_path: Path, crd: None, namespace: str) -> None:
    nobody = nobody_here(kube, namespace, tmp_path)
    ran = run(nobody, "doctor", "-n", namespace, "-o", "json")
    assert ran.returncode == 1, ran
    checks = {c["check"]: c for c in json.loads(ran.stdout)["checks"]}
    assert checks["api server"]["result"] == "ok"
    assert checks["rights"]["result"] == "fail"
    assert checks["rights"]["message"].startswith("you may not get pstrainingjobs, list pstrainingjobs, create")
    for check, right in (
        ("crd", "get customresourcedefinitions.apiextensions.k8s.io"),
        ("operator", "list deployments.apps"),
        ("nodes", "list nodes"),
        ("storage", "list storageclasses.storage.k8s.io"),
    ):
        assert checks[check]["result"] == "warn"
        assert f"may not {right}" in checks[check]["message"]


@in_all("tests/unit/cli/test_submit.py::test_a_rejection_names_the_job")
def test_no_such_namespace(target: Target, crd: None, namespace: str) -> None:
    text = yaml.safe_dump(simple(f"{namespace}-not"))
    for command in (("submit",), ("plan", "--live")):
        assert f'namespaces "{namespace}-not" not found' in failed(run(target, *command, "-f", "-", given=text))


def test_doctor_of_an_install(target: Target, installed: str, namespace: str) -> None:
    def examined() -> dict[str, Object]:
        ran = run(target, "doctor", "-n", namespace, "-o", "json")
        return {c["check"]: c for c in json.loads(ran.stdout)["checks"]}

    found = wait_for(lambda: (f := examined())["lease"]["result"] == "ok" and f, "the operator holds its Lease", 60)
    assert {c: found[c]["result"] for c in ("api server", "crd", "operator", "lease", "metrics", "rights")} == (
        dict.fromkeys(("api server", "crd", "operator", "lease", "metrics", "rights"), "ok")
    ), found
    assert found["operator"]["message"].startswith(f"{installed}/")
    versions = json.loads(run(target, "version", "-o", "json").stdout)
    assert installed in {operator["namespace"] for operator in versions["operators"]}
    assert (versions["crd"]["result"], versions["unknown"]) == ("ok", []), versions
    assert found["nodes"]["result"] in ("ok", "warn")
