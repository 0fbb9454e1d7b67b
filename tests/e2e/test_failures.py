"""Rows of the failure table (docs/reference/failures.md) on real kubelets: the end of a replica, and the reaction.

All jobs of the file run at the same time in one namespace; each loses one worker, in the way of its name.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.kube import Kube, Object, job_condition, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.scripted_program import Puppet, template
from tests.support.soak_marks import ALL

pytestmark = pytest.mark.cluster

POLICIES = ("Always", "OnFailure", "Never", "ExitCode")
FINAL = {("Never", 3), ("ExitCode", 3), ("Never", 139)}
CODES = (3, 139)
TRIED = [
    (policy, code)
    for policy in POLICIES
    for code in CODES
    if ALL or policy == "ExitCode" or (policy, code) in (("Never", 139),)
]
"""`make test` tries every code with ExitCode, and a final failure by a signal; tests/unit/core/test_failures.py has all
cases, and tests/e2e/test_failure_causes.py one of OnFailure.
"""


def with_worker(puppet_name: str, policy: str, **worker: Any) -> Object:
    return {"worker": {"replicas": 1, "template": template(puppet_name), "restartPolicy": policy, **worker}}


def has_run(puppet: Puppet, task: str, times: int) -> Callable[[], bool]:
    return lambda: puppet.runs(task) == times


def counts(puppet: Puppet, field: str, value: int) -> Callable[[], bool]:
    return lambda: puppet.worker_record().get(field) == value


def worker_pod(puppet: Puppet) -> str:
    (pod,) = puppet.pods("worker")
    return str(pod["metadata"]["name"])


def test_exit_codes_under_every_policy(kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path) -> None:
    own_operator.start()
    puppets = {}
    for policy, code in TRIED:
        name = f"{policy.lower()}-{code}"
        puppets[policy, code] = Puppet.make(kube, namespace, name, shared, **with_worker(name, policy))
    for (_, code), puppet in puppets.items():
        wait_for(has_run(puppet, "worker-0", 1), f"{puppet.name}: worker 0 runs", 150)
        puppet.exit("worker-0", code)
    for (policy, code), puppet in puppets.items():
        if (policy, code) in FINAL:
            failed = job_condition(puppet.wait_phase("Failed"), "Failed")
            assert failed["reason"] == "ReplicaFailed", puppet.name
            assert f"exit code {code}" in failed["message"]
            assert (puppet.job() or {})["status"]["failedReplica"] == "worker/0"
            assert puppet.runs("worker-0") == 1, "a final failure is never run again"
        else:
            wait_for(has_run(puppet, "worker-0", 2), f"{puppet.name}: it is started again")
            wait_for(counts(puppet, "failures", 1), f"{puppet.name}: it is counted")
            assert puppet.phase() != "Failed"


def _evict(puppet: Puppet) -> None:
    pod = worker_pod(puppet)
    metadata = {"name": pod, "namespace": puppet.namespace}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    puppet.kube.request("POST", puppet.kube.path("Pod", puppet.namespace, pod, "eviction"), eviction)


def _delete(puppet: Puppet) -> None:
    puppet.kube.delete("Pod", puppet.namespace, worker_pod(puppet))


DISRUPTIONS: dict[str, Callable[[Puppet], None]] = {"evicted": _evict, "deleted": _delete}


def test_disruptions_by_kubernetes_cost_no_budget_even_under_never(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path
) -> None:
    own_operator.start()
    puppets = {n: Puppet.make(kube, namespace, n, shared, **with_worker(n, "Never")) for n in DISRUPTIONS}
    for name, puppet in puppets.items():
        wait_for(has_run(puppet, "worker-0", 1), f"{name}: worker 0 runs", 120)
        DISRUPTIONS[name](puppet)
    for name, puppet in puppets.items():
        wait_for(has_run(puppet, "worker-0", 2), f"{name}: it is replaced")
        wait_for(counts(puppet, "restarts", 1), f"{name}: its restart is reported")
        assert puppet.worker_record().get("failures", 0) == 0, name
        assert puppet.phase() != "Failed", name


def test_a_rule_restarts_the_whole_job_within_its_limit(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path
) -> None:
    own_operator.start()
    rules = {"rules": [{"role": "worker", "exitCodes": {"values": [42]}, "action": "RestartJob"}]}
    limits = {"maxRestarts": 1}
    spec = {**with_worker("restarted", "Never"), "failurePolicy": rules, "runPolicy": limits}
    puppet = Puppet.make(kube, namespace, "restarted", shared, **spec)
    for task in ("ps-0", "chief-0", "worker-0"):
        wait_for(has_run(puppet, task, 1), f"{task} runs", 120)
    puppet.exit("worker-0", 42)
    for task in ("ps-0", "chief-0", "worker-0"):
        wait_for(has_run(puppet, task, 2), f"{task} restarts: {puppet.job()}", 90)
    assert (puppet.job() or {})["status"]["jobRestarts"] == 1
    if not ALL:  # tests/unit/core/test_budgets.py restarts a job more often than it may be
        return

    def ended() -> bool:
        puppet.exit("worker-0", 42)  # once more: a worker that began with the former parameter server is excused once
        return puppet.phase() == "Failed"

    wait_for(ended, f"the job has failed: {puppet.job()}", 90)
    failed = job_condition(puppet.wait_phase("Failed"), "Failed")
    assert failed["reason"] == "RestartsExceeded"
