"""The number of shards changes on real kubelets while a job with hot standbys trains: no process restarts."""

from functools import partial
from pathlib import Path

import pytest

from tests.e2e.test_scaling_hot import containers, has
from tests.support import paced_table
from tests.support.examples import Example
from tests.support.hot_standby import SPEC
from tests.support.kube import Kube, job_condition, wait_for
from tests.support.soak_marks import in_all

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("installed")]


def layout(example: Example) -> int:
    """Return the number of the layout that the chief has reported."""
    training = example.job()["status"].get("training") or {}
    return int(training.get("layout") or 0)


def is_rescaled(example: Example, shards: int) -> bool:
    """Whether the change has ended, and the job has this number of shards."""
    job = example.job()
    return bool(job_condition(job, "Rescaling")["reason"] == "Rescaled" and len(job["status"]["shards"]) == shards)


def lack_of_memory(example: Example) -> str:
    """Return why training waits for memory; empty if it does not."""
    waits = [event["reason"] for event in example.events("chief", term=1) if event["event"] == "layout_waits"]
    return next((reason for reason in waits if "raise its limit" in reason), "")


def test_training_continues_on_another_number_of_servers_without_a_restart(
    kube: Kube, namespace: str, shared: Path
) -> None:
    spec = {**SPEC, "ps": {**SPEC["ps"], "replicas": 1}, "checkpoint": {"intervalSeconds": 3600, "keep": 100}}
    example = Example.start(kube, namespace, "digits", shared, spec, paced=True)
    example.wait_trained()
    wait_for(partial(has, example, "standbySummary", "1/1"), "the standby is in sync", 180)
    before, chief = containers(example), example.pod("chief")
    for number, shards in ((2, 2), (3, 1)):
        kube.merge("PSTrainingJob", namespace, example.name, {"spec": {"ps": {"replicas": shards}}})
        changed = example.wait_event("layout", count=number - 1)
        assert changed["shards"] == shards
        print(f"{shards} shards: no step for {changed['seconds']} s")
        wait_for(lambda: layout(example) == number, "the report of the layout", 120)  # noqa: B023 - it is waited for
        wait_for(partial(is_rescaled, example, shards), "the end of the change", 180)
        wait_for(partial(has, example, "standbySummary", f"{shards}/{shards}"), "all members are in sync", 180)
        assert containers(example).items() >= before.items(), "pods and containers stay"
    wait_for(lambda: containers(example) == before, "the end of the servers that the job no longer has", 120)
    assert example.pod("chief") == chief
    events = [event["event"] for event in example.events("chief")]
    assert "restored" not in events
    assert example.job()["status"]["restarts"] == 0
    resumed = [event for event in example.events("worker", 0) if event["event"] == "resumed"]
    print(resumed)
    example.wait_event("worker", "worker", 0, seconds=60)


@in_all(
    "tests/unit/runtime/test_server_memory.py::test_a_server_whose_limit_leaves_too_little_is_named_with_the_way_out"
)
def test_a_server_without_memory_for_two_layouts_is_not_ended_by_the_kernel(
    kube: Kube, namespace: str, shared: Path
) -> None:
    """The table with its momentum has 384 MB, a server 900 MiB: a further half of the table has no room."""
    ps = {**SPEC["ps"], "replicas": 1, "resources": {"limits": {"memory": "900Mi"}}}
    spec = {**SPEC, "ps": ps, "checkpoint": {"intervalSeconds": 3600, "keep": 100}}
    program = Path(paced_table.__file__).read_text(encoding="utf-8").replace("= 200_000", "= 3_000_000")
    example = Example.start(kube, namespace, "digits", shared, spec, source=program)
    example.wait_trained()
    wait_for(partial(has, example, "standbySummary", "1/1"), "the standby is in sync", 300)
    before = containers(example)
    kube.merge("PSTrainingJob", namespace, example.name, {"spec": {"ps": {"replicas": 2}}})
    print(wait_for(partial(lack_of_memory, example), "the event about memory", 180))
    wait_for(partial(has, example, "term", 2), "the restart of the programs", 300)
    wait_for(partial(is_rescaled, example, 2), "the end of the change", 300)
    assert example.wait_event("restored", term=2, seconds=180)["step"] > 0
    assert containers(example).items() >= before.items(), "pods and containers stay"
    assert example.job()["status"]["restarts"] == 0
    assert not [n for n in range(4) if "the server ended with" in example.log("ps", n)], "no server was killed"
