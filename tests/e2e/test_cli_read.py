"""The output of `status`, `logs` and `top` for a real job, and their messages without one.

The job's scripted programs serve the runtime's metrics with made-up values.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pstraining.api import names
from pstraining.cli.client import KubeconfigClient
from pstraining.cli.connection.overrides import Overrides
from pstraining.cli.errors import CommandError, RequestError
from pstraining.cli.main import app
from tests.support.cli_runs import nobody_here
from tests.support.kube import Kube, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.scripted_program import METRICS, PROGRAM, Puppet, manifest, template

pytestmark = pytest.mark.cluster

TASKS = ("chief-0", "ps-0", "worker-0", "worker-1", "worker-2")

Say = Callable[..., str]


def pointed_at(monkeypatch: pytest.MonkeyPatch, kubeconfig: str) -> None:
    """Let this process's commands use this kubeconfig."""
    monkeypatch.setenv("KUBECONFIG", kubeconfig)


@pytest.fixture
def printed(kube: Kube, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Say:
    """Return a command's standard output; raises CommandError as the command does."""
    pointed_at(monkeypatch, kube.target.kubeconfig)

    def run(*arguments: str, context: str = kube.target.context) -> str:
        result = CliRunner().invoke(app, [*arguments, "--namespace", namespace, "--context", context])
        if result.exception is not None:
            raise result.exception
        return str(result.stdout)

    return run


@pytest.mark.minutes
def test_the_commands_follow_a_job_from_start_to_end(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path, tmp_path: Path, printed: Say
) -> None:
    own_operator.start()
    spec = {"replicas": 3, "template": template("digits", METRICS + PROGRAM)}
    puppet = Puppet.make(kube, namespace, "digits", shared, worker=spec)
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        where = ("--namespace", namespace, "--context", kube.target.context)
        command = (sys.executable, "-m", "pstraining.cli.main", "logs", "digits", "--follow", *where)
        environment = {**os.environ, "KUBECONFIG": kube.target.kubeconfig}
        following = subprocess.Popen(command, stdout=out, stderr=err, env=environment)
    try:
        puppet.wait_phase("Running")
        wait_for(lambda: all(puppet.runs(t) for t in TASKS), "every program runs")
        assert printed("wait", "digits", "--for", "running").splitlines()[-1] == "digits is running."
        _status_shows_what_runs(printed)
        _logs_are_of_those_that_are_named(printed)
        _top_shows_who_is_slow_and_who_tells_nothing(printed)
        _what_is_not_there_is_named(printed, namespace)
        _a_restart_is_explained(puppet, printed)
        wait_for(lambda: '"Error"' in printed("doctor", "digits", "-o", "json"), "doctor names the worker's failure")
        _a_report_has_all_logs(printed, tmp_path / "report.tar.gz")
        (old,) = (p for p in puppet.pods("worker") if "-worker-0-" in p["metadata"]["name"])
        kube.delete("Pod", namespace, old["metadata"]["name"])
        wait_for(lambda: puppet.runs("worker-0") == 2, "worker 0 is replaced")
        # The pod is deleted at the job's end, so a pod that lives for less than a second between two polls leaves no
        # log.
        wait_for(lambda: (tmp_path / "out").read_text().count("worker-0 begins") == 2, "its log is followed")
        puppet.exit("chief-0", 0)
        puppet.wait_phase("Succeeded")
        assert following.wait(120) == 0, (tmp_path / "err").read_text()
    finally:
        following.kill()
    _all_was_followed((tmp_path / "out").read_text().splitlines(), (tmp_path / "err").read_text())
    assert "digits  Succeeded" in printed("status", "digits")
    assert printed("wait", "digits") == "digits has succeeded.\n"


def _status_shows_what_runs(printed: Say) -> None:
    def stands() -> dict[str, Any] | None:
        found: dict[str, Any] = json.loads(printed("status", "digits", "-o", "json"))
        ready = all(p["ready"] for r in found["roles"] for p in r["pods"])
        return found if ready and found["workers"] == "3/3" else None

    found = wait_for(stands, "every pod is ready")
    assert [p["task"] for r in found["roles"] for p in r["pods"]] == list(TASKS)
    assert all(p["node"] and not p["why"] for r in found["roles"] for p in r["pods"])
    assert found["events"]
    assert yaml.safe_load(printed("status", "-o", "yaml"))["items"][0]["workers"] == "3/3"
    header, row = printed("status").splitlines()
    assert header.split()[:3] == ["NAME", "STATE", "PS"]
    assert row.split()[:5] == ["digits", "Running", "1/1", "3/3", "0"]
    tree = printed("status", "digits")
    assert "digits  Running" in tree
    assert "Running True" in tree
    assert re.search(r"worker-2  Ready  digits-worker-2-\S+, on ", tree)


def _logs_are_of_those_that_are_named(printed: Say) -> None:
    lines = printed("logs", "digits").splitlines()
    assert all(re.match(r"(chief|ps|worker)-\d: ", line) for line in lines)
    assert {line.split(":")[0] for line in lines} == set(TASKS)
    assert "worker-1: worker-1 begins in digits-worker-1-" in printed(
        "logs", "digits", "--role", "worker", "--index", "1"
    )
    assert len(printed("logs", "digits", "--role", "worker", "--tail", "1", "--since", "1h").splitlines()) == 3


def _top_shows_who_is_slow_and_who_tells_nothing(printed: Say) -> None:
    found = json.loads(printed("top", "digits", "--interval", "2", "-o", "json"))
    tasks = {t["task"]: t for t in found["tasks"]}
    assert list(tasks) == ["chief-0", "worker-0", "worker-1", "worker-2"]
    assert found["job"]["step"] > 0
    first, slow, silent = tasks["worker-0"], tasks["worker-1"], tasks["worker-2"]
    # A scrape may occur in the middle of a step.
    assert first["examplesPerSecond"] == pytest.approx(32 * first["stepsPerSecond"], rel=0.2)
    assert first["staleness"] == pytest.approx(1, rel=0.2)
    assert [t["straggler"] for t in (first, slow, silent)] == [False, True, False]
    assert silent["problem"].startswith("port 2240 refuses connections")
    (server,) = found["servers"]
    assert server["server"] == "ps-0"
    assert server["sentBytesPerSecond"] == pytest.approx(2 * server["receivedBytesPerSecond"], rel=0.2)
    assert "worker-2: port 2240 refuses connections" in printed("top", "digits", "--interval", "0.1")


def _what_is_not_there_is_named(printed: Say, namespace: str) -> None:
    for command in ("status", "logs", "top"):
        with pytest.raises(CommandError) as caught:
            printed(command, "digit")
        assert str(caught.value) == f"There is no PSTrainingJob digit in namespace {namespace}. Did you mean digits?"
    with pytest.raises(CommandError, match=r"digits has no evaluator: spec\.evaluator\.enabled is false"):
        printed("logs", "digits", "--role", "evaluator")
    with pytest.raises(CommandError, match="digits has no worker with index 7: its indices are 0 to 2"):
        printed("logs", "digits", "--role", "worker", "--index", "7")


def _a_restart_is_explained(puppet: Puppet, printed: Say) -> None:
    puppet.exit("worker-1", 3)
    wait_for(lambda: puppet.runs("worker-1") == 2, "worker 1 is started again")
    words = "was restarted once; its last run ended with exit code 3: worker-1 was ordered to exit with 3"
    wait_for(lambda: words in printed("status", "digits"), "the restart is explained")
    previous = printed("logs", "digits", "--role", "worker", "--index", "1", "--previous")
    assert "worker-1: worker-1 was ordered to exit with 3" in previous.splitlines()


def _a_report_has_all_logs(printed: Say, archive: Path) -> None:
    assert "0 parts could not be read" in printed("report", "digits", "--file", str(archive))
    with tarfile.open(archive) as found:
        paths = [name.partition("/")[2] for name in found.getnames()]
    logs = [path for path in paths if path.startswith("pods/") and path.endswith(".log")]
    assert len(logs) == len(TASKS) + 1, "and of the previous run of the worker that was restarted"
    assert {"job.yaml", "events.yaml", "status.yaml", "doctor.yaml", "version.yaml", "contents.yaml"} <= {*paths}
    assert {"children/StatefulSet/digits-ps.yaml", "children/Service/digits-ps-0.yaml"} <= {*paths}


def _all_was_followed(lines: list[str], remarks: str) -> None:
    assert all(re.match(r"(chief|ps|worker)-\d: ", line) for line in lines)
    begins = sorted(line.split(": ", 1)[1].split(" begins")[0] for line in lines if " begins in " in line)
    assert begins == sorted([*TASKS, "worker-0", "worker-1"]), "each task once, including replaced and restarted ones"
    assert "worker-1: worker-1 was ordered to exit with 3" in lines
    assert "chief-0: chief-0 was ordered to exit with 0" in lines
    assert "digits has ended: Succeeded." in remarks


def test_missing_rights_and_missing_installations_are_reported(
    kube: Kube, crd: None, namespace: str, tmp_path: Path, printed: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert printed("status") == f"No PSTrainingJobs in namespace {namespace}.\n"
    kube.create(manifest(namespace, "digits"))
    assert "Check that it is running and watches this namespace." in printed("status", "digits")
    with pytest.raises(CommandError, match=r"digits currently has no pods, and its phase is Unknown\."):
        printed("logs", "digits")
    with pytest.raises(CommandError, match=r"digits currently has no chief and no workers, and its phase is Unknown\."):
        printed("top", "digits")

    nobody = nobody_here(kube, namespace, tmp_path)
    pointed_at(monkeypatch, nobody.kubeconfig)
    who = f"You (system:serviceaccount:{namespace}:default) may not"
    with pytest.raises(CommandError, match=re.escape(f"{who} list pstrainingjobs.pstraining.dev in namespace")):
        printed("status", context=nobody.context)
    for command in ("status", "logs", "top"):
        with pytest.raises(CommandError, match=re.escape(f"{who} get pstrainingjobs.pstraining.dev in namespace")):
            printed(command, "digits", context=nobody.context)
    _allow(kube, namespace, names.GROUP, names.PLURAL)

    def only_pods_are_missing() -> bool:
        shown = ""
        with suppress(CommandError):  # before the role holds
            shown = printed("status", "digits", context=nobody.context)
        assert "no pod: " not in shown
        return f"{who} list pods in namespace {namespace}" in shown and f"{who} list events" in shown

    wait_for(only_pods_are_missing, "the role holds")

    pointed_at(monkeypatch, kube.target.kubeconfig)
    cluster = KubeconfigClient(Overrides(context=kube.target.context))
    for group, version in ((names.GROUP, "v9"), ("pstraining.invalid", "v1")):
        monkeypatch.setattr(names, "GROUP", group)
        monkeypatch.setattr(names, "VERSION", version)
        monkeypatch.setattr(names, "API_VERSION", f"{group}/{version}")
        for ask in (lambda: cluster.jobs(namespace), lambda: cluster.job(namespace, "digits")):
            with pytest.raises(RequestError, match="does not serve PSTrainingJobs: "):
                ask()


def _allow(kube: Kube, namespace: str, group: str, resource: str) -> None:
    """Let the namespace's default account read objects of a kind."""
    base = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    rules = [{"apiGroups": [group], "resources": [resource], "verbs": ["get", "list"]}]
    kube.request("POST", f"{base}/roles", {"metadata": {"name": "readers"}, "rules": rules})
    binding = {
        "metadata": {"name": "readers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "readers"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }
    kube.request("POST", f"{base}/rolebindings", binding)
