"""Running jobs, a hundred in the soak, cause no writes by the operator, even after its restart.

KWOK simulates the pods, so only the operator has work. PSTRAINING_IDLE_SECONDS sets the time of the observation: 30
here, and in the soak longer than any probe waits for a silent watch.
"""

import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from localcluster.auditlog import AuditFiles
from tests.e2e.conftest import cluster_command
from tests.support.kube import Kube, Object, wait_for
from tests.support.scripted_program import fake_template, manifest
from tests.support.soak_marks import THOROUGH, in_all

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

JOBS = 100 if THOROUGH else 25
IDLE_SECONDS = float(os.environ.get("PSTRAINING_IDLE_SECONDS", "420" if THOROUGH else "30"))


def fake_job(namespace: str, name: str) -> Object:
    """Create a job on fake nodes. It has no chief, because KWOK completes a Job's pods at once."""
    job = manifest(namespace, name, chief={"enabled": False})
    job["spec"]["worker"]["template"] = fake_template()
    return job


class Audit:
    """The operator's writes in one namespace from now on, read from the API server's audit log."""

    def __init__(self, user: str, namespace: str) -> None:
        self.files = AuditFiles(Path(cluster_command("audit")))
        self.user, self.namespace = user, namespace
        self.start = self.files.mark()

    def writes(self) -> Counter[tuple[str, str, str]]:
        """Return verb, resource and subresource of every write so far."""
        found: Counter[tuple[str, str, str]] = Counter()
        for line in self.files.lines(self.start):
            entry = json.loads(line)
            target = entry.get("objectRef") or {}
            if self.user in entry["user"]["username"] and target.get("namespace") == self.namespace:
                found[entry["verb"], target.get("resource", ""), target.get("subresource", "")] += 1
        return found


@in_all("tests/e2e/test_lifecycle.py::test_the_writes_of_a_whole_life")  # of one job, which is idle in between
def test_running_jobs_cost_no_writes(
    kube: Kube, installed: str, namespace: str, fake_nodes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = Audit(f"system:serviceaccount:{installed}:", namespace)
    for number in range(JOBS):
        kube.create(fake_job(namespace, f"idle-{number}"))

    def all_run() -> bool:
        statuses = [j.get("status") or {} for j in kube.list("PSTrainingJob", namespace)]
        # A job is Running before its last worker runs.
        return all(s.get("phase") == "Running" and s["worker"]["summary"] == "2/2" for s in statuses)

    wait_for(all_run, "all jobs run", 300, every=1)
    wait_for(lambda: _settled(audit), "the last status is written", 60)
    started = audit.writes()
    time.sleep(IDLE_SECONDS)
    assert audit.writes() - started == Counter(), "an idle job was written to"
    (operator,) = kube.list("Pod", installed, "app.kubernetes.io/name=pstraining")
    assert operator["status"]["containerStatuses"][0]["restartCount"] == 0
    _restart_operator(kube, installed)
    assert audit.writes() - started == Counter(), "a restarted operator wrote"
    with capsys.disabled():
        print(
            f"\n{JOBS} jobs: {sum(started.values())} writes to start them, {dict(started)}; then 0 in {IDLE_SECONDS} s"
        )


def _settled(audit: Audit) -> bool:
    before = audit.writes()
    time.sleep(3)
    return audit.writes() == before


def _restart_operator(kube: Kube, namespace: str) -> None:
    (old,) = kube.list("Pod", namespace, "app.kubernetes.io/name=pstraining")
    kube.delete("Pod", namespace, old["metadata"]["name"])

    def ready() -> bool:
        pods = kube.list("Pod", namespace, "app.kubernetes.io/name=pstraining")
        conditions = [
            c for p in pods if p["metadata"]["uid"] != old["metadata"]["uid"] for c in p["status"].get("conditions", ())
        ]
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    wait_for(ready, "the new operator is ready", 90)
