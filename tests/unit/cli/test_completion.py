"""`kubectl pstraining <TAB>`: the completions after each word, and the script for kubectl."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pstraining.cli import completion
from pstraining.cli.command_table import COMMANDS
from pstraining.cli.commands.wait import GOALS
from pstraining.cli.completion import Completion, Directive, complete
from pstraining.cli.errors import CommandError
from pstraining.cli.exit_codes import ExitCode
from tests.support.builders import job
from tests.support.cli_cluster import WithJobs

KUBECTL = shutil.which("kubectl")


def offered(*words: str) -> list[str]:
    found = complete(words, lambda what, given: [f"{what}-of-{given.get('namespace')}"])
    assert found.directive is Directive.NO_FILES
    return [word for word, _ in found.candidates]


def test_commands_and_options() -> None:
    assert offered("") == [command.name for command in COMMANDS]
    assert offered("s") == ["submit", "status", "scale", "suspend"]
    assert {"--namespace", "--wait", "--workers", "--help"} <= {*offered("scale", "--")}
    assert "--wait" not in offered("scale", "--wait", "--"), "once is enough"
    assert offered("scale", "--wor") == ["--workers"]
    assert offered("nonsense", "") == []


def test_values() -> None:
    assert offered("status", "-o", "") == ["text", "json", "yaml"]
    assert offered("status", "-o", "j") == ["json"]
    assert offered("status", "--output=y") == ["--output=yaml"]
    assert offered("logs", "digits", "--role", "w") == ["worker"]
    assert offered("wait", "digits", "--for", "condition=S") == [g for g in GOALS if g.startswith("condition=S")]
    assert offered("scale", "digits", "--workers", "") == ["workers-of-None"], "asked for, without any names"


def test_completed_names_are_those_of_the_options() -> None:
    assert offered("logs", "") == ["job-of-None"]
    assert offered("logs", "-n", "team", "") == ["job-of-team"]
    assert offered("logs", "-f", "") == ["job-of-None"], "-f has no value here"
    assert offered("logs", "digits", "") == [], "one job at a time"
    assert offered("status", "--namespace", "") == ["namespace-of-None"]
    assert offered("status", "--context", "") == ["context-of-None"]
    assert offered("suspend", "one", "") == ["job-of-None"], "several jobs"
    assert offered("suspend", "job-of-None", "") == [], "each of them once"


def test_files_are_for_the_shell() -> None:
    found = complete(["submit", "-f", "jo"], lambda what, given: [])
    assert found == Completion((), Directive.FILES)
    assert complete(["status", "--kubeconfig", ""], lambda what, given: []) == found
    assert complete(["status", "--from", ""], lambda what, given: []) == found
    assert list(found.lines()) == [":0"]
    assert list(complete(["sus"], lambda what, given: []).lines()) == [
        "suspend\tStop jobs and delete their pods.",
        ":4",
    ]


def test_names_from_the_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Cluster(WithJobs):
        def listed(self, path: str, **query: str) -> list[dict[str, Any]]:
            assert path == "/api/v1/namespaces"
            return [{"metadata": {"name": "team"}}]

    monkeypatch.setattr(completion, "KubeconfigClient", lambda context: Cluster(job("two"), job("one")))
    assert completion.found_names("job", {}) == ["one", "two"]
    assert completion.found_names("job", {"namespace": "team"}) == []
    assert completion.found_names("namespace", {}) == ["team"]
    assert completion.found_names("workers", {}) == []
    file = tmp_path / "config"
    file.write_text("contexts: [{name: here, context: {}}]\nclusters: [{name: c, cluster: {}}]\nusers: []\n")
    given = {"kubeconfig": str(file)}
    assert [completion.found_names(what, given) for what in ("context", "cluster", "user")] == [["here"], ["c"], []]

    def refused(context: str | None) -> None:
        raise CommandError("No cluster.")

    monkeypatch.setattr(completion, "KubeconfigClient", refused)
    assert completion.found_names("job", {}) == [], "no candidates, and no words in between"


def test_completions_without_a_reader_end_without_a_traceback() -> None:
    source, end = os.pipe()
    os.close(source)
    command = (sys.executable, "-m", "pstraining.cli.completion", "")
    ran = subprocess.run(command, check=False, stdout=end, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(end)
    assert (ran.returncode, ran.stderr) == (ExitCode.UNREAD, "")


def executable(folder: Path, name: str, module: str) -> None:
    path = folder / name
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
    path.chmod(0o755)


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not on the PATH")
def test_kubectl_accepts_the_completion(tmp_path: Path) -> None:
    assert KUBECTL is not None
    executable(tmp_path, "kubectl-pstraining", "pstraining.cli.main")
    executable(tmp_path, "kubectl_complete-pstraining", "pstraining.cli.completion")
    environment: Mapping[str, str] = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "KUBECONFIG": "none"}
    command = (KUBECTL, "__complete", "pstraining", "status", "-o", "")
    ran = subprocess.run(command, check=True, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines() == ["text", "json", "yaml", ":4"]
