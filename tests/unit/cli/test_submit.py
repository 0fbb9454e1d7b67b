"""`submit`: its requests, its output, and its wait."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from pstraining.cli.commands.submit import apply, outcome
from pstraining.cli.errors import AbsentError, CommandError, ConflictError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.main import app
from pstraining.cli.manifests import Document
from pstraining.cli.submission import placed
from pstraining.cli.waiting import follow, running_or_ended
from tests.support.builders import job
from tests.support.cli_cluster import Nowhere
from tests.support.command_runner import CliRunner
from tests.support.job_cluster import JobCluster
from tests.support.simulation import World, running


def manifest(**spec: Any) -> dict[str, Any]:
    made = job(spec=spec)
    made["metadata"] = {"name": "digits"}
    return made


def document(body: dict[str, Any]) -> Document:
    return Document("f.yaml", "1", body)


def sent(body: dict[str, Any], namespace: str | None = None) -> dict[str, Any]:
    return placed(document(body), namespace, "default")


@pytest.mark.parametrize(
    ("own", "wanted", "namespace"), [(None, None, "default"), ("a", None, "a"), (None, "b", "b"), ("b", "b", "b")]
)
def test_where_a_job_goes(own: str | None, wanted: str | None, namespace: str) -> None:
    body = manifest()
    body["metadata"]["namespace"] = own
    assert sent(body, wanted)["metadata"]["namespace"] == namespace


def test_two_namespaces_contradict() -> None:
    body = manifest()
    body["metadata"]["namespace"] = "a"
    with pytest.raises(CommandError, match=r"document 1 \(PSTrainingJob digits\): metadata.namespace is a, but .* b"):
        sent(body, "b")


@pytest.mark.parametrize("name", ["a b", "a/b", "Team", "\u00e4", "-", "a" * 64])
def test_an_option_that_is_not_a_namespace_is_refused(name: str) -> None:
    with pytest.raises(CommandError, match=r"^--namespace must be lower-case letters, digits and '-', with at most 63"):
        sent(manifest(), name)


def test_server_managed_fields_are_not_sent() -> None:
    body = {**job(), "status": {"phase": "Running"}}
    body["metadata"] |= {"managedFields": [], "labels": {"a": "b"}, "selfLink": "/x"}
    body["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}
    request = {"pstraining.dev/takeover": "0@0"}
    body["metadata"] |= {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", **request}}
    before = copy.deepcopy(body)
    assert sent(body)["metadata"] == {"name": "digits", "namespace": "default", "labels": {"a": "b"}}
    assert "status" not in sent(body)
    assert body == before, "the read manifest is unchanged"


def test_a_job_with_a_generated_name() -> None:
    with pytest.raises(CommandError, match=r"metadata\.name is required"):
        sent({**manifest(), "metadata": {"generateName": "d-"}})


def test_created_changed_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = JobCluster(World(None))
    for body in (manifest(), manifest(), manifest(worker={"replicas": 3})):
        apply(cluster, sent(body), dry_run=False, force=False)
    apply(cluster, sent(manifest(worker={"replicas": 4})), dry_run=True, force=True)
    assert capsys.readouterr().out.splitlines() == [
        "digits in default: created",
        "digits in default: unchanged",
        "digits in default: changed",
        "digits in default: changed (dry run)",
    ]
    assert cluster.asked[-1] == ("apply", {"dry_run": True, "force": True})
    assert cluster.world.job is not None
    assert cluster.world.job["spec"]["worker"]["replicas"] == 3


def test_a_changed_template_of_a_claim_that_stays_as_it_is_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """The job was accepted with 100Gi, and its claims kept their 1Gi without a word."""
    cluster = JobCluster(World(None))

    def claims(size: str, *names: str) -> dict[str, Any]:
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
        servers = [{"metadata": {"name": name}, "spec": spec} for name in names]
        return manifest(checkpoint={"volumeClaimTemplate": spec}, ps={"replicas": 1, "volumeClaimTemplates": servers})

    for body in (manifest(), claims("1Gi", "shard"), claims("1Gi", "shard", "other"), claims("1Gi", "shard")):
        apply(cluster, sent(body), dry_run=False, force=False)
    assert not capsys.readouterr().err, "claims of new templates are created"
    apply(cluster, sent(claims("100Gi", "shard", "other")), dry_run=False, force=False)
    first, second = capsys.readouterr().err.splitlines()
    assert first == (
        "digits in default: warning: spec.checkpoint.volumeClaimTemplate: if the claim digits-checkpoint exists, it "
        "stays as it is: change the claim itself, for example to enlarge it."
    )
    assert second.startswith("digits in default: warning: spec.ps.volumeClaimTemplates: claims that exist (shard-")


def test_a_changed_label_is_a_change() -> None:
    before, after = job(), job()
    after["metadata"]["labels"] = {"a": "b"}
    assert outcome(before, after) == "changed"
    after["metadata"] = {**before["metadata"], "resourceVersion": "2"}
    assert outcome(before, after) == "unchanged"


def test_fields_of_other_managers_conflict() -> None:
    cluster = JobCluster(World(job()))
    cluster.refusal = ConflictError("conflict", 409, ("spec.worker.replicas (conflict with hpa)",))
    with pytest.raises(CommandError) as caught:
        apply(cluster, sent(manifest()), dry_run=False, force=False)
    assert str(caught.value) == (
        "digits in default: other field managers own fields that the file changes: spec.worker.replicas (conflict with "
        "hpa). Remove these fields from the file, or take ownership with --force."
    )


def test_two_manifests_of_one_job_are_refused_unless_they_are_equal(tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    one, other, elsewhere = manifest(), manifest(worker={"replicas": 3}), manifest(worker={"replicas": 3})
    elsewhere["metadata"]["namespace"] = "team"
    for command in (["submit", "--dry-run", "client"], ["plan"]):
        path.write_text(yaml.safe_dump_all([one, one, elsewhere]))
        assert CliRunner().invoke(app, [*command, "-f", str(path)]).exit_code == 0
        path.write_text(yaml.safe_dump_all([one, elsewhere, other]))
        said = str(CliRunner().invoke(app, [*command, "-f", str(path)]).exception)
        assert "document 1 (PSTrainingJob digits) is another manifest of digits in default: remove one of them" in said


def test_a_rejection_names_the_job() -> None:
    cluster = JobCluster(World(None))
    cluster.refusal = AbsentError('namespaces "default" not found.', 404)
    with pytest.raises(CommandError, match=r'digits in default was not submitted\. namespaces "default" not found'):
        apply(cluster, sent(manifest()), dry_run=False, force=False)


def test_a_job_that_is_being_deleted() -> None:
    going = job()
    going["metadata"]["deletionTimestamp"] = "2030-01-01T12:00:00Z"
    cluster = JobCluster(World(going))
    with pytest.raises(CommandError, match="is being deleted: submit it again after the deletion"):
        apply(cluster, sent(manifest()), dry_run=False, force=False)
    assert not cluster.asked


def waited(cluster: JobCluster) -> str:
    stored = cluster.job("default", "digits")
    assert stored is not None
    return follow(cluster, stored, running_or_ended, cluster.patience)


def test_submit_waits_until_the_job_runs_and_reports_progress() -> None:
    cluster = JobCluster(World(job()))
    assert waited(cluster) == "digits is running."
    cluster.world.end("chief")
    cluster.world.settle()
    assert waited(cluster) == "digits has succeeded."


def test_each_state_change_is_reported_on_one_line() -> None:
    cluster = JobCluster(World(job()))
    cluster.world.reconcile()
    found = waited(cluster)
    assert (found, cluster.reported) == (
        "digits is running.",
        ["digits: Pending: Waiting for the parameter servers, the chief and a worker."],
    )


def test_a_job_that_fails() -> None:
    cluster = JobCluster(running(chief={"restartPolicy": "Never"}))
    cluster.world.end("chief", code=3, message="no data")
    cluster.world.settle()
    with pytest.raises(CommandError, match=r"digits has failed: .*no data"):
        waited(cluster)


def test_a_job_that_can_never_start() -> None:
    cluster = JobCluster(World(job(), refuse=lambda create: "spec.x: unknown field"))
    with pytest.raises(CommandError, match=r"digits cannot start: .* was refused: spec\.x: unknown field"):
        waited(cluster)


def test_a_job_that_is_created_suspended() -> None:
    assert waited(JobCluster(World(job(spec={"runPolicy": {"suspend": True}})))) == "digits is suspended."


def test_an_unavailable_operator() -> None:
    cluster = JobCluster(World(job()))
    cluster.away = True
    with pytest.raises(
        CommandError, match=r"digits: timed out after 10 s\. pstraining.dev/operator has not processed the job yet"
    ):
        waited(cluster)


def test_conditions_of_the_former_spec_do_not_count() -> None:
    cluster = JobCluster(running())
    cluster.away = True
    cluster.world.edit({"runPolicy": {"backoffLimit": 3}})
    with pytest.raises(CommandError, match="has not processed the job yet"):
        waited(cluster)


def test_a_job_replaced_meanwhile() -> None:
    cluster = JobCluster(World(job()))
    stored = copy.deepcopy(cluster.world.job)
    assert stored is not None
    stored["metadata"]["uid"] = "former"
    with pytest.raises(CommandError, match="digits was deleted in the meantime"):
        follow(cluster, stored, running_or_ended, cluster.patience)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump_all([manifest(), {"kind": "ConfigMap", "metadata": {"name": "c"}}]))
    return path


def test_a_dry_run_of_the_client_needs_no_cluster(file: Path) -> None:
    result = CliRunner().invoke(app, ["submit", "-f", str(file), "--dry-run", "client"])
    assert result.exit_code == 0
    assert result.stdout == "digits: would be submitted (checked offline)\n"
    assert "document 2 (ConfigMap c): skipped" in result.stderr


@pytest.mark.parametrize(
    ("change", "arguments", "words"),
    [
        ({"name": None, "generateName": "digits-"}, (), "metadata.name is required"),
        ({"namespace": "team"}, ("-n", "other"), "metadata.namespace is team, but --namespace is other"),
        ({}, ("--wait",), "--wait waits for what --dry-run does not store"),
    ],
)
@pytest.mark.parametrize("dry_run", ["client", "server"])
def test_a_dry_run_rejects_what_a_real_run_rejects(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str],
    arguments: tuple[str, ...],
    words: str,
    dry_run: str,
) -> None:
    body, path = manifest(), tmp_path / "jobs.yaml"
    body["metadata"] |= change
    path.write_text(yaml.safe_dump(body))
    monkeypatch.setattr("pstraining.cli.commands.submit.KubeconfigClient", lambda context: Nowhere())
    result = CliRunner().invoke(app, ["submit", "-f", str(path), "--dry-run", dry_run, *arguments])
    assert words in str(result.exception)


def test_nothing_is_sent_if_one_manifest_is_invalid(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pstraining.cli.commands.submit.KubeconfigClient", lambda context: pytest.fail("a cluster is asked")
    )
    with file.open("a") as more:
        more.write("---\n" + yaml.safe_dump(manifest(ps={"replicas": 0})))
    result = CliRunner().invoke(app, ["submit", "-f", str(file)])
    assert isinstance(result.exception, CommandError)
    assert str(result.exception) == "Nothing was submitted: the input has 1 error."
    assert "document 3 (PSTrainingJob digits): error: spec.ps.replicas: must be at least 1, is 0" in result.stderr


def test_a_refused_job_does_not_keep_the_others_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.yaml"
    three = [manifest(), manifest(), manifest()]
    for body, name in zip(three, "abc", strict=True):
        body["metadata"]["name"] = name
    path.write_text(yaml.safe_dump_all(three))
    said: list[str] = []

    def stored(cluster: object, job: dict[str, Any], **options: bool) -> dict[str, Any]:
        said.append(job["metadata"]["name"])
        if said[-1] == "a":
            raise CommandError("a in default was not submitted. The quota is used up.")
        return job

    def waits(cluster: object, job: dict[str, Any], *others: object) -> str:
        said.append(f"waits for {job['metadata']['name']}")
        raise CommandError(f"{job['metadata']['name']} has failed.", ExitCode.JOB_FAILED)

    monkeypatch.setattr("pstraining.cli.commands.submit.KubeconfigClient", lambda context: Nowhere())
    monkeypatch.setattr("pstraining.cli.commands.submit.apply", stored)
    monkeypatch.setattr("pstraining.cli.commands.submit.follow", waits)
    result = CliRunner().invoke(app, ["submit", "-f", str(path), "--wait"])
    assert said == ["a", "b", "c", "waits for b", "waits for c"]
    assert result.stderr.splitlines()[-1] == "Error: a in default was not submitted. The quota is used up."
    assert isinstance(result.exception, CommandError)
    assert (str(result.exception), result.exception.code) == (
        "a in default was not submitted. The quota is used up.\nError: b has failed.\nError: c has failed.",
        ExitCode.ERROR,
    )
    path.write_text(yaml.safe_dump_all(three[1:]))
    result = CliRunner().invoke(app, ["submit", "-f", str(path), "--wait"])
    assert said[5:] == ["b", "c", "waits for b", "waits for c"]
    assert isinstance(result.exception, CommandError)
    assert (str(result.exception), result.exception.code) == (
        "b has failed.\nError: c has failed.",
        ExitCode.JOB_FAILED,
    )
