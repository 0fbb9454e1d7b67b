"""Ordered stopping of jobs, and changes of the number of replicas of a running job, on real kubelets."""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.examples import Example
from tests.support.kube import Kube, Object, job_condition, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.scripted_program import PROGRAM, Puppet, template
from tests.support.servers import SPREAD
from tests.support.soak_marks import ALL, in_all, some

pytestmark = pytest.mark.cluster

MAP_SECONDS = 40.0
"""The deadline for a changed cluster map in every pod. It takes a second or two, but more than a minute if the operator
does not wake the kubelet.
"""
WATCHER = """
import json, os, pathlib, signal, threading, time
who, orders = os.environ["PSTRAINING_TASK_TYPE"] + "-" + os.environ["PSTRAINING_TASK_INDEX"], pathlib.Path("/orders")
def note(kind, text):
    with (orders / f"{who}.{kind}").open("a") as file:
        file.write(f"{time.time()} {text}" + chr(10))
def watch():
    seen = ""
    while True:
        cluster = json.loads(pathlib.Path("/pstraining/cluster.json").read_text())["cluster"]
        now = f"{len(cluster['worker'])} {len(cluster['ps'])}"
        if now != seen:
            note("map", now)
        seen = now
        time.sleep(0.05)
def stop(*_):
    note("stops", "SIGTERM")
    if who in ("chief-0", "worker-0"):
        time.sleep(1.5)  # it saves its state
    note("stops", "ends")
    os._exit(143)
signal.signal(signal.SIGTERM, stop)
threading.Thread(target=watch, daemon=True).start()
"""


@pytest.fixture
def started(kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path) -> Any:
    own_operator.start()

    def start(**spec: Any) -> Puppet:
        pods = template("job", WATCHER + PROGRAM)
        pods["spec"]["terminationGracePeriodSeconds"] = 15
        worker = {"replicas": 2, "template": pods}
        puppet = Puppet.make(kube, namespace, "job", shared, worker=worker, **spec)
        puppet.wait_phase("Running")
        tasks = ["worker-0", "worker-1", "ps-0", *(["chief-0"] if "chief" not in spec else [])]
        wait_for(lambda: all(puppet.runs(t) for t in tasks), "every program runs")
        return puppet

    return start


def notes(puppet: Puppet, task: str, kind: str) -> list[tuple[float, str]]:
    """Return the records of a task, with their times."""
    file = puppet.orders / f"{task}.{kind}"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(float(moment), text) for moment, _, text in (line.partition(" ") for line in lines)]


def uids(puppet: Puppet, *tasks: str) -> set[str]:
    """Return the uids of these tasks' pods; of all pods by default."""
    found = puppet.pods()
    return {p["metadata"]["uid"] for p in found if not tasks or any(is_task(p, task) for task in tasks)}


def is_task(pod: Object, task: str) -> bool:
    labels = pod["metadata"]["labels"]
    index = labels.get("pstraining.dev/index") or labels.get("apps.kubernetes.io/pod-index") or "0"
    return f"{labels['pstraining.dev/role']}-{index}" == task


def has_workers(puppet: Puppet, count: int) -> bool:
    return len(puppet.pods("worker")) == count


def seconds_until_map(puppet: Puppet, task: str, text: str, since: float) -> float:
    """Return the seconds until a task had that map."""

    def find() -> list[float]:
        return [moment for moment, found in notes(puppet, task, "map") if found == text and moment >= since]

    return round(wait_for(find, f"the map {text} in {task}", MAP_SECONDS)[0] - since, 2)


def edit(puppet: Puppet, spec: Object, sub: str = "") -> float:
    """Change the spec; return the time of the change."""
    moment = time.time()
    puppet.kube.merge("PSTrainingJob", puppet.namespace, "job", {"spec": spec}, sub)
    return moment


def reported(puppet: Puppet, *reasons: str) -> list[str]:
    """Return the job's events of these reasons, in order."""
    found = [e for e in puppet.kube.list("Event", puppet.namespace) if e["reason"] in reasons]
    return [e["reason"] for e in sorted(found, key=lambda e: str(e["eventTime"]))]


def check_freed(kube: Kube, namespace: str) -> None:
    """Demand that no pod runs, and that ended pods are deleted."""
    phases = {p["status"]["phase"] for p in kube.list("Pod", namespace)}
    assert phases <= {"Succeeded", "Failed"}
    wait_for(lambda: not kube.list("Pod", namespace), "no pod is left")


def check_order(puppet: Puppet, leader: str, others: list[str]) -> None:
    """Demand that the leader had ended before any other pod was stopped."""
    wait_for(lambda: all(len(notes(puppet, t, "stops")) == 2 for t in (leader, *others)), "all have stopped")
    end = notes(puppet, leader, "stops")[1][0]
    for task in others:
        assert notes(puppet, task, "stops")[0][0] >= end, f"{task} stopped while {leader} was saving"


@in_all(
    "tests/e2e/test_lifecycle.py::test_every_task_gets_its_environment_and_workers_scale_both_ways"
)  # with TensorFlow
def test_workers_are_scaled_both_ways_beside_unchanged_tasks(started: Any, capsys: pytest.CaptureFixture[str]) -> None:
    puppet = started()
    for count, stay in ((4, ["chief-0", "ps-0", "worker-0", "worker-1"]), (1, ["chief-0", "ps-0", "worker-0"])):
        others = {uid for task in stay for uid in uids(puppet, task)}
        moment = edit(puppet, {"replicas": count}, "scale")
        took = {task: seconds_until_map(puppet, task, f"{count} 1", moment) for task in stay}
        with capsys.disabled():
            print(f"\n{count} workers: seconds until the map was there: {took}")
        wait_for(partial(has_workers, puppet, count), f"{count} workers")
        assert {uid for task in stay for uid in uids(puppet, task)} == others, "no other pod was touched"
    wait_for(lambda: (puppet.job() or {})["status"]["worker"]["summary"] == "1/1", "one worker, and it runs")
    status = (puppet.job() or {})["status"]
    assert (status["restarts"], status["term"]) == (0, 1)
    assert all(puppet.runs(t) == 1 for t in ("chief-0", "ps-0", "worker-0"))


@pytest.mark.parametrize(
    "chief",
    some(
        [True, False],
        lambda chief: chief,
        in_all("tests/e2e/test_scaling.py::test_suspend_stops_the_leader_while_the_others_still_run"),  # no chief
    ),
)
def test_suspend_stops_the_leader_while_the_others_still_run(started: Any, chief: bool) -> None:
    puppet = started(**({} if chief else {"chief": {"enabled": False}}))
    edit(puppet, {"runPolicy": {"suspend": True}})
    wait_for(lambda: job_condition(puppet.job(), "Suspended")["reason"] == "Stopping", "it reports the stop")
    puppet.wait_phase("Suspended")
    check_freed(puppet.kube, puppet.namespace)
    leader, rest = ("chief-0", ["worker-0", "worker-1", "ps-0"]) if chief else ("worker-0", ["worker-1", "ps-0"])
    check_order(puppet, leader, rest)
    wait_for(
        lambda: reported(puppet, "Stopping", "Suspended") == ["Stopping", "Suspended"], "both reasons are reported", 90
    )


def hold_new_pods(kube: Kube, namespace: str) -> Callable[[], None]:
    """Limit the namespace's pods to the present number; return a function that removes the limit."""
    count = len(kube.list("Pod", namespace))
    quota: Object = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full", "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    kube.request("POST", path, quota | {"spec": {"hard": {"pods": str(count)}}})
    wait_for(lambda: (kube.request("GET", f"{path}/full").get("status") or {}).get("used"), "the quota counts")
    return lambda: kube.request("DELETE", f"{path}/full")


def rescaling(puppet: Puppet) -> str:
    """Return the reason of the condition Rescaling; empty before there is one."""
    found = (c for c in puppet.status().get("conditions", ()) if c["type"] == "Rescaling")
    return next((str(c["reason"]) for c in found), "")


def containers(puppet: Puppet, *roles: str) -> dict[str, tuple[str, int]]:
    """Return the uids of these roles' pods, and the restarts of their containers, by pod name."""
    found = [p for role in roles for p in puppet.pods(role)]
    return {p["metadata"]["name"]: (p["metadata"]["uid"], restarts(p)) for p in found}


def restarts(pod: Object) -> int:
    """Return the restarts of a pod's containers."""
    return sum(c["restartCount"] for c in pod["status"].get("containerStatuses", ()))


REASONS = ("StartingServers", "Checkpointing", "Resharding", "Resuming", "Rescaled")


def test_another_number_of_parameter_servers_keeps_the_pods(
    started: Any, kube: Kube, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    puppet = started()
    before = containers(puppet, "ps", "worker")
    release = hold_new_pods(kube, namespace)
    edit(puppet, {"ps": {"replicas": 3}})
    wait_for(lambda: rescaling(puppet) == "StartingServers", "new servers start")
    wait_for(lambda: "exceeded quota" in job_condition(puppet.job(), "Rescaling")["message"], "the reason", 60)
    assert puppet.phase() == "Running"
    edit(puppet, {"ps": {"replicas": 1}})
    wait_for(lambda: rescaling(puppet) == "Rescaled", "the change is withdrawn")
    edit(puppet, {"ps": {"replicas": 3}})
    wait_for(lambda: rescaling(puppet) == "StartingServers", "new servers start again")
    assert [puppet.runs(t) for t in ("chief-0", "worker-0", "worker-1", "ps-0")] == [1, 1, 1, 1], (
        "no program was stopped"
    )
    release()
    wait_for(lambda: rescaling(puppet) == "Rescaled", "the end of it", 180)
    puppet.wait_phase("Running")
    check_order(puppet, "chief-0", ["worker-0", "worker-1"])
    assert containers(puppet, "ps", "worker").items() >= before.items(), "pods and containers stay"
    status = puppet.status()
    assert (status["restarts"], status["term"], status["ps"]["summary"]) == (0, 2, "3/3")
    wait_for(lambda: notes(puppet, "chief-0", "map")[-1][1] == "2 3", "the chief has the new map")
    took = seconds_stopped(puppet)
    with capsys.disabled():
        print(f"\nfrom the chief's signal until all programs ran with three servers: {took} s")
    expected = ["StartingServers", "Rescaled", *(r for r in REASONS if r != "Resharding")]
    wait_for(
        lambda: reported(puppet, *REASONS) == expected, f"all reasons are reported: {reported(puppet, *REASONS)}", 90
    )
    if not ALL:  # reduces the number by the same path
        return
    edit(puppet, {"ps": {"replicas": 1}})
    wait_for(lambda: len(puppet.pods("ps")) == 1, "one is left", 120)
    puppet.wait_phase("Running")
    wait_for(lambda: puppet.kube.get("Service", puppet.namespace, "job-ps-1") is None, "the surplus Service is deleted")
    assert containers(puppet, "ps", "worker") == before, "pods and containers stay"


def seconds_stopped(puppet: Puppet) -> float:
    """Return the seconds from the chief's signal until the last program has started for the next layout."""
    tasks = ("chief-0", "worker-0", "worker-1")
    wait_for(lambda: all(puppet.runs(t) == 2 for t in tasks), "all programs run again")
    return round(max(notes(puppet, t, "map")[-1][0] for t in tasks) - notes(puppet, "chief-0", "stops")[0][0], 1)


@in_all("tests/training/test_runtime_stop.py::test_a_stopped_job_resumes_at_the_same_step")  # twelve programs
@pytest.mark.trains
def test_digits_continues_at_the_step_at_which_it_was_stopped(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_operator.start()
    spec = {"training": SPREAD, "checkpoint": {"keep": 100, "intervalSeconds": 3600}}
    example = Example.start(kube, namespace, "digits", shared, spec, paced=True)

    def change(spec: Object) -> None:
        kube.merge("PSTrainingJob", namespace, example.name, {"spec": spec})

    example.wait_trained()
    change({"runPolicy": {"suspend": True}})
    wait_for(lambda: example.job()["status"]["phase"] == "Suspended", "Suspended", 180)
    check_freed(kube, namespace)
    change({"runPolicy": {"suspend": False}})
    resumed = resumed_at(example, 2)
    step = example.wait_trained()
    stay = pods(example, "ps", "worker")
    release = hold_new_pods(kube, namespace)
    change({"ps": {"replicas": 2}})
    wait_for(lambda: example.job()["status"]["phase"] == "Running", "training continues")
    wait_for(lambda: job_condition(example.job(), "Rescaling")["reason"] == "StartingServers", "a server starts")
    wait_for(lambda: example.wait_trained() > step, "steps while a server starts", 180)
    release()
    rescaled = resumed_at(example, 3)
    trained = wait_for(lambda: step if (step := example.wait_trained()) > rescaled else 0, "steps on two servers", 300)
    with capsys.disabled():
        print(f"\nresumed at step {resumed}, rescaled at step {rescaled}, trained until {trained}")
    assert pods(example, "ps", "worker").items() >= stay.items(), "pods of servers and workers stay"
    assert saved_by(example, 1) == [resumed]
    assert saved_by(example, 2) == [rescaled]
    assert 0 < resumed < rescaled
    assert example.job()["status"]["restarts"] == 0


def pods(example: Example, *roles: str) -> dict[str, str]:
    """Return the uids of these roles' pods, by name."""
    selectors = (f"pstraining.dev/job-name={example.name},pstraining.dev/role={role}" for role in roles)
    found = (p["metadata"] for selector in selectors for p in example.kube.list("Pod", example.namespace, selector))
    return {m["name"]: m["uid"] for m in found}


def resumed_at(example: Example, term: int) -> int:
    """Return the step from which that term's chief continues."""
    wait_for(lambda: example.job()["status"]["term"] == term, f"term {term}", 300)
    return int(example.wait_event("restored", term=term)["step"])


def saved_by(example: Example, term: int) -> list[int]:
    """Return the steps of the checkpoints that a term wrote."""
    found = [json.loads(f.read_text()) for f in example.checkpoints.glob("ckpt-*/metadata.json")]
    return sorted(int(m["step"]) for m in found if m["term"] == term)
