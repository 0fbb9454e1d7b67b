"""Switches take values, and names stay within their place in a path, as in kubectl."""

import json
import sys
from pathlib import Path

import pytest

from pstraining.cli import client
from pstraining.cli.errors import CommandError
from pstraining.cli.main import app
from pstraining.cli.switches import switches, without_type
from tests.support.builders import job
from tests.support.cli_cluster import WithJobs
from tests.support.command_runner import CliRunner

NAMED = {"--wait", "-R"}


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    found = tmp_path / "job.yaml"
    found.write_text(
        "{apiVersion: pstraining.dev/v1alpha1, kind: PSTrainingJob, metadata: {name: a}, spec: {ps: {replicas: 1}, "
        "worker: {replicas: 1, template: {spec: {containers: [{name: t, image: i, command: [a]}]}}}}}"
    )
    return found


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--wait=true", "-R=1"], ["--wait", "-R"]),
        (["--wait=false", "a"], ["a"]),
        (["--wait", "--wait=F", "a"], ["a"]),
        (["--wait=false", "--wait"], ["--wait"]),
        (["--wait=maybe", "--file=true"], ["--wait=maybe", "--file=true"]),
        (["a", "--", "--wait=true"], ["a", "--", "--wait=true"]),
        (["-n=team", "-o=a=b", "-n", "x=y", "-o"], ["-n", "team", "-o", "a=b", "-n", "x=y", "-o"]),
    ],
)
def test_values_of_switches(args: list[str], expected: list[str]) -> None:
    assert switches(args, NAMED, {"-n", "-o"}) == expected


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["pstj", "a", "b"], ["a", "b"]),
        (["-n", "pstj", "--wait", "PSTrainingJobs.pstraining.dev", "-n=x", "a"], ["-n", "pstj", "--wait", "-n=x", "a"]),
        (["pstj", "--", "a"], ["--", "a"]),
        (["pstj", "-n", "a"], ["pstj", "-n", "a"]),
        (["a", "pstj"], ["a", "pstj"]),
        (["pstj/a", "b"], ["pstj/a", "b"]),
    ],
)
def test_a_type_may_precede_names(args: list[str], expected: list[str]) -> None:
    assert without_type(args, {"-n"}) == expected


@pytest.mark.parametrize("command", ["status", "logs", "top", "wait", "suspend", "doctor", "report"])
def test_commands_accept_a_type_and_a_name(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_job = WithJobs(job())
    monkeypatch.setattr(f"pstraining.cli.commands.{command}.KubeconfigClient", lambda context: with_job)
    ran = CliRunner().invoke(app, [command, "PSTrainingJob", "other"])
    assert str(ran.exception).startswith("There is no PSTrainingJob other in namespace default.")


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["--force=true", "--wait=false", "--dry-run=client"], 0),
        (["--insecure-skip-tls-verify=true", "--dry-run=client"], 0),
        (["--wait=true", "--dry-run=client"], 1),
        (["--wait=false", "--timeout=5m", "--dry-run=client"], 0),
        (["--wait=perhaps"], 2),
    ],
)
def test_commands_accept_values_of_switches(job_file: Path, args: list[str], code: int) -> None:
    assert CliRunner().invoke(app, ["submit", "-f", str(job_file), *args]).exit_code == code


def test_short_options_take_values_after_an_equals_sign(job_file: Path) -> None:
    ran = CliRunner().invoke(app, ["plan", f"-f={job_file}", "-n=team", "-o=json"])
    assert json.loads(ran.stdout)["namespace"] == "team"


def test_a_dry_run_of_none_is_no_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    (tmp_path / "empty.yaml").write_text("{apiVersion: v1, kind: Secret}")
    ran = CliRunner().invoke(app, ["submit", "-f", str(tmp_path / "empty.yaml"), "--dry-run=none", "--wait"])
    assert "only Secret" in str(ran.exception)


def test_a_closed_standard_input_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    from pstraining.cli.manifests import documents

    monkeypatch.setattr(sys, "stdin", None)
    assert documents(["-"]) == []


@pytest.mark.parametrize("name", [".", "..", "a/b", "a%2fb"])
def test_a_name_cannot_change_the_path(name: str) -> None:
    with pytest.raises(CommandError, match="is not a name"):
        client.quoted(name)
    assert client.quoted("a?b.c") == "a%3Fb.c"
