"""The operator dies, is stopped or is replaced: jobs continue, no object is duplicated, no other owner's object is
changed.

Real pods run scripted programs (tests/support/scripted_program.py) under the real launcher. The operator is a process
of this machine, so that it can be killed between any two of its writes.
"""

import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from pstraining.api import names
from tests.e2e.test_upgrade import ready
from tests.support.api_proxy import ThreadedProxy
from tests.support.kube import CHILD_KINDS, Kube, job_condition, wait_for
from tests.support.operator_process import ROOT, OperatorProcess
from tests.support.scripted_program import Puppet, manifest, template
from tests.support.soak_marks import ALL, in_all, some

pytestmark = pytest.mark.cluster

WRITES = range(1, 13, 1 if ALL else 3)
"""The writes, of a job's first twelve, after which the operator is killed."""
CLAIM = {"storageClassName": "", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}


def children(kube: Kube, puppet: Puppet) -> list[tuple[str, str]]:
    selector = f"pstraining.dev/job-name={puppet.name}"
    return [(k, o["metadata"]["name"]) for k in CHILD_KINDS for o in kube.list(k, puppet.namespace, selector)]


@in_all("tests/controlplane/test_campaign_smoke.py::test_one_plan_of_each_kind")  # with kubelets
def test_killed_after_each_of_its_first_writes(
    kube: Kube, namespace: str, crd: None, tmp_path: Path, shared: Path
) -> None:
    """The operator is killed right after each of a job's first writes, and restarted; there is one job per write."""
    with ThreadedProxy(kube, tmp_path) as proxy:
        for number in WRITES:
            _killed_after_write(number, kube, proxy, Puppet.make(kube, namespace, f"job-{number}", shared), tmp_path)


def _killed_after_write(number: int, kube: Kube, proxy: ThreadedProxy, puppet: Puppet, folder: Path) -> None:
    first = len(proxy.writes)
    died: list[int] = []
    operator = OperatorProcess(proxy.target, puppet.namespace, folder)

    def die(write: int) -> bool:
        if not died and write == first + number:
            died.append(write)
            operator.kill()
            return True
        return False

    proxy.call_after_writes(die)
    puppet.exit("chief-0", 0)
    operator.start(wait=False)
    wait_for(lambda: died, f"write {number} happens; writes: {proxy.writes[first:]}")
    operator.start()
    puppet.wait_phase("Succeeded")
    assert puppet.runs("chief-0") == 1, f"killed after write {number}: the chief ran more than once"
    operator.stop()
    kube.delete("PSTrainingJob", puppet.namespace, puppet.name)


@pytest.mark.parametrize(
    "operator_runs",
    some(
        [True, False],
        lambda operator_runs: operator_runs,
        in_all(
            "tests/e2e/test_operator_faults.py::test_a_job_deleted_during_its_creation_leaves_nothing"
        ),  # with an operator
    ),
)
def test_a_job_deleted_during_its_creation_leaves_nothing(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path, operator_runs: bool
) -> None:
    own_operator.start()
    puppet = Puppet.make(kube, namespace, "half", shared, workers=1)
    puppet.wait_phase("Running")
    if not operator_runs:
        own_operator.stop()
    kube.delete("PSTrainingJob", namespace, "half")
    wait_for(lambda: not children(kube, puppet), f"all objects are gone; left: {children(kube, puppet)}", 90)


USED: Final = ("Pod", "PersistentVolumeClaim")
"""Kinds whose names a foreign object may have: a pod of a job gets another name, and any existing claim is used
(tests/e2e/test_checkpoint_claims.py).
"""


@pytest.mark.parametrize(
    "kind",
    some(
        [kind for kind in (*CHILD_KINDS, "PodDisruptionBudget") if kind not in USED],
        lambda kind: kind == "StatefulSet",
        in_all(
            "tests/e2e/test_operator_faults.py::test_a_name_that_a_foreign_object_had_before_the_job"
        ),  # other kinds
    ),
)
def test_a_name_that_a_foreign_object_had_before_the_job(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path, kind: str
) -> None:
    name, body = _foreign(kind, namespace)
    theirs = kube.create(body)
    own_operator.start()
    puppet = Puppet.make(kube, namespace, "mine", shared, workers=1, **_with_all_kinds())

    def conflict() -> bool:
        return bool(job_condition(puppet.job(), "NameConflict")["status"] == "True")

    wait_for(conflict, f"NameConflict is reported: {puppet.job()}")
    assert name in job_condition(puppet.job(), "NameConflict")["message"]
    kube.delete("PSTrainingJob", namespace, "mine")
    wait_for(lambda: puppet.job() is None, "the job is gone")
    wait_for(lambda: not puppet.pods(), "its pods are gone")
    found = kube.get(kind, namespace, name)
    assert found is not None, "collected although it is not ours"
    assert found["metadata"]["uid"] == theirs["metadata"]["uid"]
    assert not found["metadata"].get("ownerReferences")
    # Kubernetes writes the status of some kinds; only a change of their spec changes the generation.
    version = "generation" if "generation" in theirs["metadata"] else "resourceVersion"
    assert found["metadata"][version] == theirs["metadata"][version], "written to although it is not ours"


@in_all(
    "tests/controlplane/test_operator_process.py::test_an_existing_foreign_object_is_kept_and_its_name_retried"
)  # while it runs
def test_a_name_that_a_foreign_object_takes_while_the_job_runs(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path
) -> None:
    own_operator.start()
    puppet = Puppet.make(kube, namespace, "mine", shared)
    puppet.wait_phase("Running")
    own_operator.kill()
    kube.delete("ConfigMap", namespace, "mine")
    theirs = kube.create(_foreign("ConfigMap", namespace)[1])
    own_operator.start()
    wait_for(lambda: job_condition(puppet.job(), "NameConflict")["status"] == "True", "NameConflict is reported")
    kube.delete("PSTrainingJob", namespace, "mine")
    wait_for(lambda: not puppet.pods(), "the job's pods are gone")
    found = kube.get("ConfigMap", namespace, "mine")
    assert found is not None
    assert found["metadata"]["resourceVersion"] == theirs["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        ("NetworkPolicy", "mine", {"ingress": []}),
        pytest.param(
            "PodDisruptionBudget",
            names.shard_budget("mine", 0),
            {"minAvailable": 0},
            marks=in_all(
                "tests/e2e/test_operator_faults.py::test_foreign_changes_of_children_are_reverted"
            ),  # another kind
        ),
    ],
)
def test_foreign_changes_of_children_are_reverted(
    kube: Kube,
    own_operator: OperatorProcess,
    namespace: str,
    shared: Path,
    kind: str,
    name: str,
    change: dict[str, Any],
) -> None:
    own_operator.start()
    Puppet.make(kube, namespace, "mine", shared, workers=1, ps={"replicas": 1, "standby": {"mode": "Warm"}})
    before = wait_for(lambda: kube.get(kind, namespace, name), f"{kind} {name}")
    changed = kube.merge(kind, namespace, name, {"spec": change})
    assert changed["spec"] != before["spec"]

    def is_back() -> bool:
        found = kube.get(kind, namespace, name)
        return found is not None and found["spec"] == before["spec"]

    wait_for(is_back, f"{name} is as before")


@in_all(
    "tests/unit/core/test_redundancy.py::test_a_suspension_keeps_the_pointer_and_less_redundancy_corrects_it"
)  # by a real API server
def test_a_disruption_budget_is_deleted_with_the_standbys(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path
) -> None:
    own_operator.start()
    puppet = Puppet.make(kube, namespace, "mine", shared, ps={"replicas": 1, "standby": {"mode": "Warm"}})
    budget = names.shard_budget("mine", 0)
    wait_for(lambda: kube.get("PodDisruptionBudget", namespace, budget), f"the budget {budget}")
    kube.merge("PSTrainingJob", namespace, "mine", {"spec": {"runPolicy": {"suspend": True}}})
    puppet.wait_phase("Suspended")
    change = {"ps": {"standby": {"mode": "None"}}, "runPolicy": {"suspend": False}}
    kube.merge("PSTrainingJob", namespace, "mine", {"spec": change})
    wait_for(lambda: kube.get("PodDisruptionBudget", namespace, budget) is None, f"{budget} is gone")


def test_another_version_of_the_operator_restarts_and_writes_nothing(
    kube: Kube, own_operator: OperatorProcess, namespace: str, tmp_path: Path, shared: Path
) -> None:
    """Another version of the operator restarts without a write and without a restart of pods, although it renders pods
    differently and has another launcher.
    """
    own_operator.start()
    puppet = Puppet.make(kube, namespace, "steady", shared)
    # The job is Running before its last worker runs, so the report of an unstarted pod is not compared.
    wait_for(lambda: len(_restarts(puppet)) == 4, "all pods run")
    before = _restarts(puppet)
    own_operator.stop()
    with ThreadedProxy(kube, tmp_path) as proxy:
        successor = OperatorProcess(proxy.target, namespace, tmp_path)
        successor.start(root=_other_version(tmp_path / "next"))
        # A change after which the operator handles the job once more than at its start.
        kube.merge("PSTrainingJob", namespace, "steady", {"metadata": {"labels": {"poke": "1"}}})
        puppet.exit("worker-1", 0)
        wait_for(lambda: any("worker-1" in path for _, path in proxy.writes), "the finished worker is retired")
        successor.stop()
        early = [w for w in proxy.writes if "worker-1" not in w[1] and "/status" not in w[1] and "/events" not in w[1]]
        assert early == [], "only the worker's end caused writes"
    # The kubelet may start the finished worker's container once more before its pod is deleted.
    wait_for(lambda: len(puppet.pods("worker")) == 1, "the finished worker's pod is deleted")
    after = _restarts(puppet)
    assert len(after) == 3, "only the finished worker is deleted"
    assert after.items() <= before.items(), "no pod was replaced, no container restarted"


@in_all(
    "tests/e2e/test_operator_faults.py::test_another_version_of_the_operator_restarts_and_writes_nothing"
)  # the same version
def test_operator_restart_writes_nothing(
    kube: Kube, own_operator: OperatorProcess, namespace: str, tmp_path: Path, shared: Path
) -> None:
    own_operator.start()
    puppet = Puppet.make(kube, namespace, "steady", shared)
    puppet.wait_phase("Running")  # also without the last worker
    wait_for(lambda: ready(puppet) == {"ps": 1, "chief": 1, "worker": 2}, "every pod is ready")
    own_operator.stop()
    settled = puppet.job()
    with ThreadedProxy(kube, tmp_path) as proxy:
        again = OperatorProcess(proxy.target, namespace, tmp_path)
        again.start()
        wait_for(again.ready, "it is ready")
        again.stop()
        assert proxy.writes == []
    assert settled is not None
    assert puppet.job() == settled


def _foreign(kind: str, namespace: str) -> tuple[str, dict[str, Any]]:
    """Create a foreign object with the name of a future child of the job `mine`."""
    pods = template("theirs")
    pods["metadata"] = {"labels": {"app": "theirs"}}
    theirs = {"matchLabels": {"app": "theirs"}}
    batch = {**pods, "spec": {**pods["spec"], "restartPolicy": "Never"}}
    found: dict[str, tuple[str, str, dict[str, Any]]] = {
        "ConfigMap": ("v1", "mine", {"data": {"theirs": "1"}}),
        "Service": ("v1", "mine-hs", {"spec": {"selector": {"app": "theirs"}, "ports": [{"port": 80}]}}),
        "Deployment": ("apps/v1", "mine-worker-0", {"spec": {"replicas": 0, "selector": theirs, "template": pods}}),
        "StatefulSet": ("apps/v1", "mine-ps", {"spec": {"replicas": 0, "selector": theirs, "template": pods}}),
        "Job": ("batch/v1", names.chief_job("mine", 1), {"spec": {"suspend": True, "template": batch}}),
        "NetworkPolicy": ("networking.k8s.io/v1", "mine", {"spec": {"podSelector": theirs}}),
        "PodDisruptionBudget": ("policy/v1", names.shard_budget("mine", 0), {"spec": {"selector": theirs}}),
    }
    version, name, rest = found[kind]
    metadata = {"name": name, "namespace": namespace, "labels": {"pstraining.dev/job-name": "mine"}}
    return name, {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def _with_all_kinds() -> dict[str, Any]:
    """Return a spec with which a job has a child of every kind."""
    return {
        "ps": {"replicas": 1, "standby": {"mode": "Warm"}},
        "checkpoint": {"path": "/checkpoints", "volumeClaimTemplate": CLAIM},
    }


def _restarts(puppet: Puppet) -> dict[str, int]:
    """Return the restarts of each running pod's container, by the pod's uid."""
    return {
        pod["metadata"]["uid"]: status["restartCount"]
        for pod in puppet.pods()
        for status in pod["status"].get("containerStatuses", ())
        if "running" in status["state"]
    }


def _other_version(root: Path) -> Path:
    shutil.copytree(ROOT / "operator", root / "operator", ignore=shutil.ignore_patterns("__pycache__"))
    pods = root / "operator" / "pstraining" / "resources" / "pods.py"
    text = pods.read_text()
    changed = text.replace('spec.setdefault("enableServiceLinks", False)', 'spec["enableServiceLinks"] = True')
    assert changed != text, "the renderer has changed: change this test with it"
    pods.write_text(changed)
    launch = root / "operator" / "pstraining" / "launcher" / "launch.py"
    launch.write_text(launch.read_text() + "\n# another version\n")
    return root


@in_all("tests/unit/core/test_adoption.py::test_a_child_without_its_owner_is_adopted_again")  # and the next job's
def test_children_without_an_owner_are_adopted_and_those_of_an_earlier_job_are_replaced(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path
) -> None:
    """Children without an owner are adopted, and those of an earlier job are replaced.

    Backup tools remove owner references, and so does a deletion with --cascade=orphan.
    """
    own_operator.start()
    puppet = Puppet.make(kube, namespace, "mine", shared, workers=1)
    uid = puppet.wait_phase("Running")["metadata"]["uid"]
    owned = {of: _owners(kube, namespace, of) for of in children(kube, puppet) if of[0] != "Pod"}
    owned = {of: owners for of, owners in owned.items() if owners == [uid]}
    assert {"Job", "StatefulSet", "Deployment", "Service", "ConfigMap"} <= {kind for kind, _ in owned}
    pods = {p["metadata"]["uid"] for p in puppet.pods()}
    for kind, name in owned:
        kube.merge(kind, namespace, name, {"metadata": {"ownerReferences": None}})
    wait_for(lambda: all(_owners(kube, namespace, of) == [uid] for of in owned), "the operator adopts them")
    assert {p["metadata"]["uid"] for p in puppet.pods()} == pods, "the job continues"
    puppet.kube.request("DELETE", kube.path("PSTrainingJob", namespace, "mine"), {"propagationPolicy": "Orphan"})
    wait_for(lambda: puppet.job() is None, "the job is gone")
    assert children(kube, puppet), "its children stay"
    kube.create(manifest(namespace, "mine", workers=1))
    uid = puppet.wait_phase("Running")["metadata"]["uid"]
    assert all(_owners(kube, namespace, of) == [uid] for of in owned)
    assert pods.isdisjoint({p["metadata"]["uid"] for p in puppet.pods()})


def _owners(kube: Kube, namespace: str, of: tuple[str, str]) -> list[str]:
    found = kube.get(of[0], namespace, of[1]) or {"metadata": {}}
    return [o["uid"] for o in found["metadata"].get("ownerReferences") or ()]
