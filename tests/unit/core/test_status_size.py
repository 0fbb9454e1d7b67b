"""The size of the status of the largest job whose workers were all replaced.

etcd accepts 1.5 MiB for an object: its spec, its status, and managedFields, which repeat the keys of lists of type map.
The bound here is a third of that, which leaves room for a spec of 256 KiB and for the records of parameter servers.
"""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from pstraining.api.crd import custom_resource_definition
from pstraining.api.status import ReplicaRecord
from pstraining.core.actions import Outcomes
from pstraining.core.facts import Facts, gather
from pstraining.core.observe import observe
from pstraining.core.policies.failure_counts import FailureCounts
from pstraining.core.status import FAILURE_EVENTS_MAX, events, next_status
from tests.support import builders as b
from tests.support.soak_marks import ALL, in_all, some

WORKERS_MAX = 10_000
WORKERS = WORKERS_MAX if ALL else 2_500
BYTES_MAX = 512 * 1024 * WORKERS // WORKERS_MAX


FAILURE = {"state": b.terminated(1, message="OOM when allocating tensor " + "x" * 400), "ready": False}
OTHERS = in_all(
    "tests/unit/core/test_status_size.py::test_the_status_of_thousands_of_replaced_workers_is_far_below_etcds_limit"
)  # seconds each
CAUSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "drained": ({"deleting": True, "disrupted": True}, {}),
    "failed": (FAILURE, {}),
    "given up": (FAILURE, {"worker": {"minReplicas": 1}, "runPolicy": {"backoffLimit": 0}}),
}
"""The end of each worker, and the job's spec."""


def managed_fields(value: Any, schema: dict[str, Any], path: str = "f:status") -> dict[str, Any]:
    """Return the API server's record of the fields of one manager (fieldsV1)."""
    if schema.get("x-kubernetes-list-type") == "map":
        keys = schema["x-kubernetes-list-map-keys"]
        item = schema["items"]
        entries = {"k:" + json.dumps({k: v[k] for k in keys}, separators=(",", ":")): v for v in value}
        return {path: {key: {".": {}, **_fields(v, item)} for key, v in entries.items()}}
    if schema.get("type") == "object":
        return {path: _fields(value, schema)}
    return {path: {}}


def _fields(value: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, inner in value.items():
        found |= managed_fields(inner, schema["properties"][name], f"f:{name}")
    return found


def size(status: dict[str, Any]) -> int:
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    return sum(len(json.dumps(v, separators=(",", ":"))) for v in (status, managed_fields(status, schema)))


def replaced(cause: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a job of the largest size, and its workers at the moment of their end."""
    end, spec = CAUSES[cause]
    job = b.job(workers=WORKERS, spec=spec)
    job["status"] = {"startTime": b.stamp(b.NOW)}
    first = uuid.NAMESPACE_DNS.int
    pods = [b.pod("worker", i, uid=str(uuid.UUID(int=first + i)), **end) for i in range(WORKERS)]
    return job, pods


@pytest.mark.parametrize("cause", some(CAUSES, lambda cause: cause == "failed", OTHERS))
def test_the_status_of_thousands_of_replaced_workers_is_far_below_etcds_limit(cause: str) -> None:
    job, pods = replaced(cause)
    snapshot = observe(job, [], pods)
    status = next_status(gather(snapshot, b.NOW), Outcomes())
    reported = [e.message for e in events(snapshot, status) if e.reason == "ReplicaFailed"]
    job["status"] = status
    assert size(job["status"]) <= BYTES_MAX
    assert job["status"]["restarts"] == WORKERS
    again = observe(job, [], pods)
    facts = gather(again, b.NOW)
    assert isinstance(facts, Facts)
    assert facts.failures_recorded, "every record is stored"
    assert next_status(facts, Outcomes())["restarts"] == WORKERS, "nothing counts twice"
    expected = 0 if cause == "drained" else WORKERS
    assert sum(r.failures for r in facts.failures.records) == expected
    assert len(facts.failures.given_up) == (WORKERS - 1 if cause == "given up" else 0)
    assert len(reported) == (FAILURE_EVENTS_MAX + 1 if expected else 0)
    assert (
        not reported
        or reported[-1] == f"{WORKERS - FAILURE_EVENTS_MAX} more replicas failed; see status.replicaRecords"
    )


def test_lookups_of_single_replicas_do_not_scan_all_records() -> None:
    rounds = 0

    class Records(tuple[ReplicaRecord, ...]):
        def __iter__(self) -> Iterator[ReplicaRecord]:
            nonlocal rounds
            rounds += 1
            return super().__iter__()

    counts = FailureCounts(Records(ReplicaRecord(role="worker", index=i, given_up=i == 3) for i in range(50)))
    pods = observe(b.job(), [], [b.pod("worker", i) for i in range(50)]).pods
    for pod in pods:
        assert counts.record(pod) == counts.of("worker", pod.index)[0]
        assert counts.given_up == {3}
    assert rounds == 3, "one for each kind of question"
