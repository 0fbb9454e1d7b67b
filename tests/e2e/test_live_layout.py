"""The number of shards changes on real kubelets while a job with hot standbys trains: no process restarts."""

from functools import partial
from pathlib import Path

import pytest

from tests.e2e.test_scaling_hot import containers, has
from tests.support.examples import PACED, ROOT, Example
from tests.support.hot_standby import ONE_SHARD, SPEC
from tests.support.kube import Kube, job_condition, wait_for
from tests.support.soak_marks import ALL, in_all, in_soak

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("installed")]


BY_KEY = (ROOT / "tests" / "support" / "paced_by_key.py").read_text()

CHANGES = ((2, 2), (3, 1)) if ALL else ((2, 2),)
"""The next layouts, and their numbers of shards. tests/unit/core/test_rescaling_hot.py also removes a shard."""
WORKERS = 2 if ALL else 1
"""Each one traces its functions for every layout."""


def layout(example: Example) -> int:
    """Return the number of the layout that the chief has reported."""
    training = example.job()["status"].get("training") or {}
    return int(training.get("layout") or 0)


def is_rescaled(example: Example, shards: int) -> bool:
    """Whether the change has ended, and the job has this number of shards."""
    job = example.job()
    return bool(job_condition(job, "Rescaling")["reason"] == "Rescaled" and len(job["status"]["shards"]) == shards)


def peak(example: Example) -> int:
    """Return the measured peak of the servers' memory in Mi; 0 before the first measurement."""
    found = (s for s in example.job()["status"].get("autoscaling") or () if s["role"] == "ps")
    return int(next((s.get("peakMemory") or "0Mi" for s in found), "0Mi").removesuffix("Mi"))


@in_all("tests/unit/core/test_server_growth.py::test_servers_are_added_at_half_of_the_largest_memory_limit")  # live
@pytest.mark.timeout(1800)
@pytest.mark.minutes
def test_a_server_is_added_while_training_continues(kube: Kube, namespace: str, shared: Path) -> None:
    servers = {**ONE_SHARD["ps"], "resources": {"limits": {"memory": "2Gi"}}}
    saves = {"intervalSeconds": 3600, "keep": 100}
    spec = {**ONE_SHARD, "ps": servers, "autoscaling": {"mode": "Recommend"}, "checkpoint": saves}
    example = Example.start(kube, namespace, "digits", shared, spec, paced=True)
    example.wait_trained()
    wait_for(partial(has, example, "standbySummary", "1/1"), "the standby is in sync", 180)
    wait_for(lambda: peak(example), "a measurement of the servers", 120)
    before, most = containers(example), {"memory": f"{int(peak(example) / 0.55)}Mi"}
    policy = {"role": "ps", "maxAllowed": most, "maxReplicas": 2}
    change = {"ps": {"resources": {"limits": most}}, "autoscaling": {"mode": "Full", "rolePolicies": [policy]}}
    kube.merge("PSTrainingJob", namespace, example.name, {"spec": change})
    changed = example.wait_event("layout", seconds=900)
    assert changed["shards"] == 2
    wait_for(partial(is_rescaled, example, 2), "the end of the change", 180)
    assert containers(example).items() >= before.items(), "pods and containers stay"
    assert "restored" not in [event["event"] for event in example.events("chief")]
    sizing = next(s for s in example.job()["status"]["autoscaling"] if s["role"] == "ps")
    print(f"no step for {changed['seconds']} s; {sizing}")
    assert sizing["grownReplicas"] == 2
    assert example.job()["spec"]["ps"]["replicas"] == 1


@pytest.mark.timeout(1800)
@pytest.mark.minutes
@pytest.mark.parametrize(
    ("mode", "source"),
    [
        ("Sync", PACED["digits"]),
        pytest.param("Async", PACED["digits"], marks=in_soak),
        pytest.param("Hybrid", PACED["digits"], marks=in_soak),
        pytest.param("Sync", BY_KEY, marks=in_soak),
    ],
    ids=["Sync", "Async", "Hybrid", "rows by key"],
)
def test_training_continues_on_another_number_of_servers_without_a_restart(
    kube: Kube, namespace: str, shared: Path, mode: str, source: str
) -> None:
    spec = {**SPEC, "ps": {**SPEC["ps"], "replicas": 1}, "checkpoint": {"intervalSeconds": 3600, "keep": 100}}
    spec |= {"training": {**SPEC["training"], "mode": mode}, "worker": {"replicas": WORKERS}}
    example = Example.start(kube, namespace, "digits", shared, spec, source=source)
    example.wait_trained()
    wait_for(partial(has, example, "standbySummary", "1/1"), "the standby is in sync", 180)
    before, chief = containers(example), example.pod("chief")
    for number, shards in CHANGES:
        kube.merge("PSTrainingJob", namespace, example.name, {"spec": {"ps": {"replicas": shards}}})
        changed = example.wait_event("layout", count=number - 1, seconds=900)
        assert changed["shards"] == shards
        print(f"{shards} shards: no step for {changed['seconds']} s")
        wait_for(lambda: layout(example) == number, "the report of the layout", 120)  # noqa: B023 - it is waited for
        wait_for(partial(is_rescaled, example, shards), "the end of the change", 180)
        wait_for(partial(has, example, "standbySummary", f"{shards}/{shards}"), "all members are in sync", 180)
        assert containers(example).items() >= before.items(), "pods and containers stay"
    if CHANGES[-1][1] == 1:
        wait_for(lambda: containers(example) == before, "the end of the servers that the job no longer has", 120)
    assert example.pod("chief") == chief
    events = [event["event"] for event in example.events("chief")]
    assert "restored" not in events
    assert example.job()["status"]["restarts"] == 0
    resumed = [event for event in example.events("worker", 0) if event["event"] == "resumed"]
    print(resumed)
    example.wait_event("worker", "worker", 0, seconds=60)
