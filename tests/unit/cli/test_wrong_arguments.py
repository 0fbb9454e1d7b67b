"""Wrong and contradicting arguments end a command with the exit status of wrong arguments, before it does anything."""

import sys
from pathlib import Path

import pytest
import yaml

from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.main import main
from tests.support.builders import job

NOWHERE = ("--server", "http://127.0.0.1:9")
"""A server that would end a command that asks it with another status."""
FILE = ("-f", "job.yaml")


def refused(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the message of a command that ends with USAGE."""
    monkeypatch.setattr(sys, "argv", ["kubectl-pstraining", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    said = capsys.readouterr()
    assert caught.value.code == ExitCode.USAGE, said
    assert said.out == ""
    return said.err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    Path("job.yaml").write_text(yaml.safe_dump(job()))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("status", "digits", "-A"), "remove the job's name and --namespace"),
        (("status", "-A", "--from", "."), "remove --all-namespaces"),
        (("status", "--from", ".", "-n", "team"), "remove the options of the cluster"),
        (("dashboard", "-A", "-n", "team"), "remove the job's name and --namespace"),
        (("dashboard", "-A", "--from", "."), "remove --all-namespaces"),
        (("logs", "digits", "-f", "-p"), "remove --follow"),
        (("logs", "digits", "--since", "5"), "--since: '5' is not a duration"),
        (("logs", "digits", "--from", ".", "-f"), "remove --follow and --since"),
        (("logs", "digits", "--role", "worker", "--index", "-1"), "Input should be greater than or equal to 0"),
        (("takeover", "digits", "--shard", "-1"), "Input should be greater than or equal to 0"),
        (("plan", *FILE, "--bandwidth", "10G"), "give the model's --parameters too"),
        (("plan", *FILE, "--parameters", "many"), "--parameters: 'many' is not a number"),
        (("plan", *FILE, "-n", "Team"), "--namespace must be lower-case letters"),
        (("submit", *FILE, "--wait", "--dry-run", "server"), "--dry-run does not store: remove one of them"),
        (("submit", *FILE, "-n", "a/b"), "--namespace must be lower-case letters"),
        (("validate", "-f", "-", "-f", "-"), "remove the second -f -"),
        (("convert", "-f", "-,-"), "remove the second -f -"),
        (("convert", *FILE, "--command", "'"), "--command: No closing quotation"),
        (("plan", *FILE, "--context", "prod"), "Without --live, no cluster is asked: add --live, or remove"),
        (("-n", "team", "status"), "-n: options come after the command, as in `kubectl pstraining status --namespace"),
        (("--context=prod", "wait", "digits"), "--context: options come after the command"),
        (("--version",), "No such option: --version"),
        (("doctor", "digits", "--cpu", "4"), "--cpu and --memory check the installation"),
        (("doctor", "digits", "--memory", "1Gi"), "remove them, or the job's name"),
        (("submit", *FILE, "--timeout", "10m"), "--timeout is the limit of --wait: add --wait, or remove --timeout."),
        (("scale", "digits", "--workers", "2", "--timeout", "1m"), "--timeout is the limit of --wait"),
        (("suspend", "digits", "--timeout=5"), "--timeout is the limit of --wait"),
        (("resume", "digits", "--timeout", "5"), "--timeout is the limit of --wait"),
        (("doctor", "--cpu", "much"), "--cpu much --memory 1Gi: not quantities"),
        (("doctor", "--cpu=-4"), "--cpu -4: must be more than 0 and at most 10000 cores, such as 4 or 500m."),
        (("doctor", "--cpu", "0"), "--cpu 0: must be more than 0"),
        (("doctor", "--cpu", "16Gi"), "--cpu 16Gi: must be more than 0 and at most 10000 cores"),
        (("doctor", "--memory=-1Gi"), "--memory -1Gi: must be at least 1Mi, and have a unit, such as 16Gi."),
        (("doctor", "--memory", "16"), "--memory 16: must be at least 1Mi"),
        (("doctor", "--memory", "512m"), "--memory 512m: must be at least 1Mi"),
        (("doctor", "--request-timeout", "soon"), "--request-timeout: 'soon' is neither"),
        (("status", "--request-timeout", "soon"), "--request-timeout: 'soon' is neither"),
        (("status", "--as", "bob", "--as-user-extra", "x"), "--as-user-extra x: write KEY=VALUE"),
        (("status", *NOWHERE, "--as-group", "admins"), "name that user with as or --as"),
        (
            ("status", *NOWHERE, "--insecure-skip-tls-verify", "--certificate-authority", "ca.crt"),
            "--insecure-skip-tls-verify ignores a --certificate-authority: remove one of them",
        ),
        (("status", *NOWHERE, "-n", "../team"), "'../team' is not a name"),
        (("suspend", *NOWHERE, "digits", ".."), "'..' is not a name"),
        (("report", *NOWHERE, ""), "the job's name is empty"),
    ],
)
def test_wrong_arguments(
    folder: Path,
    arguments: tuple[str, ...],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert words in refused(arguments, monkeypatch, capsys)
