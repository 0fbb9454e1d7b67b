"""Running pods get other resources, in place, or one server with hot standbys at a time, and no step is lost."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.hot_standby import RESUME_SECONDS, HotStandbyJob
from tests.support.kube import Kube, Object, job_condition, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.scripted_program import PROGRAM, Puppet, template
from tests.support.soak_marks import ALL

pytestmark = [pytest.mark.cluster, pytest.mark.trains]

SERVERS = ("digits-standby-0", "digits-ps-0")
"""The order in which servers are replaced."""


def resize(watched: HotStandbyJob, **resources: Any) -> None:
    """Set resources of the servers; those that are not named come from the template again."""
    kube, example = watched.example.kube, watched.example
    kube.merge("PSTrainingJob", example.namespace, "digits", {"spec": {"ps": {"resources": resources}}})


def memory(watched: HotStandbyJob, server: str) -> str:
    """Return a server's memory request, once its pod exists."""
    pod = watched.example.kube.get("Pod", watched.example.namespace, server) or {"spec": {"containers": [{}]}}
    return str((pod["spec"]["containers"][0].get("resources") or {}).get("requests", {}).get("memory"))


def updating(watched: HotStandbyJob, status: str, reason: str) -> Object | None:
    found = watched.condition("Updating")
    return found if (found["status"], found.get("reason")) == (status, reason) else None


def others(watched: HotStandbyJob) -> dict[str, tuple[str, int]]:
    """Return the pods of the chief and the workers, with the number of their restarts."""
    example = watched.example
    pods = example.kube.list("Pod", example.namespace, "pstraining.dev/job-name=digits,pstraining.dev/role!=ps")
    return {
        p["metadata"]["name"]: (p["metadata"]["uid"], p["status"]["containerStatuses"][0]["restartCount"]) for p in pods
    }


def _no_node_has_so_much(watched: HotStandbyJob) -> None:
    """Demand that a resize beyond any node's size ends with the standby."""
    resize(watched, requests={"memory": "100000Gi"}, limits=None)
    wait_for(lambda: memory(watched, SERVERS[0]) == "100000Gi", "the standby asks for it")
    wait_for(lambda: "Insufficient memory" in watched.condition("Degraded").get("message", ""), "no node has room")
    assert updating(watched, "True", "ReplacingServers")
    steps = watched.steps()[-1]["step"]
    wait_for(lambda: watched.steps()[-1]["step"] > steps, "training continues without it")


def resize_servers(watched: HotStandbyJob) -> str:
    """Resize the servers of a job with one shard while it trains; return the measured times."""
    kube, namespace = watched.example.kube, watched.example.namespace
    rest, before, struck = others(watched), watched.pod_uids(), time.time()

    resize(watched, requests={"memory": "300Mi"}, limits={"memory": "100Mi"})
    refused = wait_for(lambda: updating(watched, "False", "UpdateRefused"), "the API server's words")
    assert "must be less than or equal to memory limit" in refused["message"]

    if ALL:
        _no_node_has_so_much(watched)
        assert watched.pod_uids()[SERVERS[1]] == before[SERVERS[1]]
    resize(watched, requests={"memory": "300Mi"}, limits=None)
    wait_for(
        lambda: updating(watched, "False", "ServersUpdated"), f"it is done: {watched.example.job()['status']}", 300
    )
    took = time.time() - struck
    assert [memory(watched, server) for server in SERVERS] == ["300Mi", "300Mi"]
    created = [kube.get("Pod", namespace, s)["metadata"]["creationTimestamp"] for s in SERVERS]  # type: ignore[index]
    assert created == sorted(created), "the standby went first"
    assert watched.is_whole()
    assert not set(watched.pod_uids().values()) & set(before.values())
    assert others(watched) == rest, "no other pod was changed"
    wait_for(lambda: len(watched.switched_over(struck)) == 2, "each was in sync when it was asked to end")
    watched.nothing_is_restored()
    pauses = [[float(e["seconds"]) for e in watched.resumed(i) if e["time"] >= struck] for i in watched.workers]
    # Training stops when a member leaves, and when the next one joins, for as long as busy cores take to trace
    # functions.
    assert max(seconds for own in pauses for seconds in own[::2]) <= RESUME_SECONDS
    longest = max(max(own) for own in pauses)
    return f"resized in {took:.0f} s, a wrong size included; longest standstill {longest:.2f} s"


LIMIT = """
import os, pathlib, threading, time
who = os.environ["PSTRAINING_TASK_TYPE"] + "-" + os.environ["PSTRAINING_TASK_INDEX"]
files = (pathlib.Path("/sys/fs/cgroup/memory.max"), pathlib.Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
def watch():
    while True:
        pathlib.Path("/orders", who + ".limit").write_text(next(f for f in files if f.exists()).read_text())
        time.sleep(0.1)
threading.Thread(target=watch, daemon=True).start()
"""
"""Records the memory limit that the kernel enforces on the container."""
TASKS = ("ps-0", "worker-0", "chief-0")


def of_size(mebibytes: int) -> Object:
    return {"requests": {"memory": "32Mi"}, "limits": {"memory": f"{mebibytes}Mi"}}


def limits(puppet: Puppet) -> set[str]:
    files = [puppet.orders / f"{task}.limit" for task in TASKS]
    return {file.read_text().strip() if file.exists() else "" for file in files}


def restarts_by_pod(puppet: Puppet) -> set[tuple[str, int]]:
    """Return the restarts of each pod's container."""
    return {(p["metadata"]["uid"], p["status"]["containerStatuses"][0]["restartCount"]) for p in puppet.pods()}


def test_running_pods_are_resized_in_place(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_operator.start()
    worker = {"replicas": 1, "template": template("job", LIMIT + PROGRAM), "resources": of_size(256)}
    others: Object = {role: {"resources": of_size(256)} for role in ("ps", "chief")}
    others["ps"]["replicas"] = 1
    puppet = Puppet.make(kube, namespace, "job", shared, worker=worker, **others)
    puppet.wait_phase("Running")
    wait_for(lambda: limits(puppet) == {str(256 << 20)}, "every program runs with its limit")
    before, asked = restarts_by_pod(puppet), time.time()

    sizes = {role: {"resources": of_size(384)} for role in ("ps", "worker", "chief")}
    kube.merge("PSTrainingJob", namespace, "job", {"spec": sizes})
    wait_for(lambda: limits(puppet) == {str(384 << 20)}, "the kernel has every new limit")
    took = time.time() - asked
    wait_for(lambda: resizing(puppet) == ("False", "Resized"), "it is reported")
    assert restarts_by_pod(puppet) == before, "no pod was replaced, and no container restarted"
    assert all(puppet.runs(task) == 1 for task in TASKS)

    kube.merge("PSTrainingJob", namespace, "job", {"spec": {"chief": {"resources": {"limits": None}}}})
    wait_for(lambda: resizing(puppet) == ("False", "ResizeInfeasible"), "a limit cannot be removed")
    assert restarts_by_pod(puppet) == before
    with capsys.disabled():
        print(f"\nthree pods had their new limit after {took:.1f} s")


def resizing(puppet: Puppet) -> tuple[str, str]:
    found = job_condition(puppet.job(), "Resizing") or {}
    return found.get("status", ""), found.get("reason", "")
