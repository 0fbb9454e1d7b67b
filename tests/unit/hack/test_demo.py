"""The demo's evaluation of a job, its pods and its chief's log."""

import json
from typing import Any

import pytest

from hack.demo import job as demo
from hack.test_cluster import given_context
from localcluster.errors import ClusterError


def pod(role: str, *, term: int = 0, index: int = 0) -> dict[str, Any]:
    labels = {"pstraining.dev/role": role, "pstraining.dev/term": str(term), "pstraining.dev/index": str(index)}
    return {"metadata": {"name": f"{role}-{term}-{index}", "labels": labels}}


def test_a_condition_counts_only_if_it_is_true() -> None:
    conditions = [{"type": "Succeeded", "status": "False"}, {"type": "Failed", "status": "True", "reason": "Why"}]
    job = {"status": {"conditions": conditions}}
    assert demo.condition(job, "Succeeded") is None
    assert demo.condition(job, "Failed") == conditions[1]
    assert demo.condition({}, "Failed") is None


def test_the_summary_agrees_with_kubectl() -> None:
    assert demo.summary({}) == "Pending, Restarts 0"
    status = {"phase": "Running", "ps": {"summary": "1/1"}, "worker": {"summary": "1/2"}, "restarts": 3}
    assert demo.summary({"status": status}) == "Running, PS 1/1, Workers 1/2, Restarts 3"


def test_the_last_result_in_the_log_counts() -> None:
    lines = [
        "step 5000/5000  loss 0.1",
        json.dumps({"event": "result", "test_accuracy": 0.5}),
        '{"event": "result", "test_acc',
        json.dumps({"event": "checkpoint", "step": 5000}),
        json.dumps({"event": "result", "test_accuracy": 0.97}),
        json.dumps({"event": "bye"}),
        json.dumps(["result"]),
    ]
    assert demo.read_accuracy("\n".join(lines)) == 0.97


@pytest.mark.parametrize(
    "log", ["", "no JSON here", '{"event": "result"}', '{"event": "result", "test_accuracy": null}']
)
def test_a_log_without_a_result(log: str) -> None:
    assert demo.read_accuracy(log) is None


def test_the_newest_chief_is_followed() -> None:
    pods = [pod("chief", term=2), pod("chief", term=10), pod("chief", term=1), pod("worker"), pod("ps")]
    assert demo.newest_chief(pods) == "chief-10-0"


def test_worker_0_stands_in_for_a_chief() -> None:
    assert demo.newest_chief([pod("worker", index=1), pod("worker", index=0), pod("ps")]) == "worker-0-0"
    assert demo.newest_chief([pod("ps")]) is None


def test_a_custom_cluster_must_be_named_completely() -> None:
    assert given_context({}) is None
    # KUBECONFIG alone may point to any cluster, so it is never used by itself.
    assert given_context({"KUBECONFIG": "somewhere"}) is None
    assert given_context({"KUBECONFIG": "somewhere", "PSTRAINING_CONTEXT": "mine"}) == "mine"
    with pytest.raises(ClusterError, match="KUBECONFIG"):
        given_context({"PSTRAINING_CONTEXT": "mine"})
