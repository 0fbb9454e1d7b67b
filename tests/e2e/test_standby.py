"""Failover from a lost parameter server to a warm standby, on real kubelets with an unchanged TensorFlow program.

The tests print the time between the watch's events of the pod and of the Service. They also print the time between the
chief's last step before the fault and its first one after it.
"""

import os
import subprocess
import sys
import time
from datetime import datetime
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from localcluster import faults
from tests.support.examples import Example
from tests.support.kube import ApiError, Kube, Object, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.soak_marks import ALL, in_soak
from tests.support.watching import Watch

pytestmark = [pytest.mark.cluster, pytest.mark.trains]

ARGUMENTS = ("--steps", "10000000", "--checkpoint-seconds", "2")
"""Arguments with which training lasts as long as the test."""
FLIPPED = 20.0
"""Seconds from the kubelet's status to the changed Service on a busy machine; the test prints the times."""
SERVER = r"launch\.py serve|examples\.plain_tensorflow"
MEMBERS = ("plain-tensorflow-ps-0", "plain-tensorflow-standby-0")
POINTER = "statefulset.kubernetes.io/pod-name"


def pointer(service: Object | None) -> str:
    return str(service["spec"]["selector"].get(POINTER, "")) if service else ""


def is_lost(kind: str, pod: Object) -> bool:
    """Whether the kubelet or a deletion shows that a primary cannot continue."""
    status = pod.get("status") or {}
    ended = any("terminated" in s["state"] or s["restartCount"] for s in status.get("containerStatuses") or ())
    unready = any(c["type"] == "Ready" and c["status"] != "True" for c in status.get("conditions") or ())
    return kind == "DELETED" or "deletionTimestamp" in pod["metadata"] or ended or unready


def progress(example: Example) -> list[tuple[datetime, int]]:
    """Return the times at which the chief reported steps."""
    path = example.kube.path("Pod", example.namespace, example.pod("chief"), "log") + "?timestamps=true"
    text = example.kube._pool.request("GET", example.kube.host + path).data.decode(errors="replace")
    found = []
    for line in text.splitlines():
        stamp, _, said = line.partition(" ")
        if said.startswith('{"event": "progress"'):
            found.append((datetime.fromisoformat(stamp[:26] + "+00:00"), int(said.split('"step": ')[1].split(",")[0])))
    return found


def start(kube: Kube, namespace: str, shared: Path, mode: str) -> Example:
    # A built-in server imports no Python modules of TensorFlow; test_training.py covers the loss of a server that is a
    # program.
    server = {} if ALL else {"server": "Builtin"}
    spec = {"ps": {"standby": {"mode": mode}, **server}, "worker": {"replicas": 1}}
    example = Example.start(kube, namespace, "plain_tensorflow", shared, spec, ARGUMENTS, paced=True)
    wait_for(lambda: any(example.checkpoints.rglob("*.index")), "its first checkpoint", 300, every=0.5)
    if mode == "Warm":
        summary = lambda: (example.job().get("status") or {}).get("standbySummary") == "1/1"  # noqa: E731
        wait_for(summary, f"the standby is ready: {example.job()}", 300)
    return example


def lose(example: Example, what: str, primary: str = MEMBERS[0], standby: str = MEMBERS[1]) -> None:
    victim = f"{example.namespace}/{primary}"
    if what == "process":
        faults.kill_process(victim, SERVER)
    elif what == "container":
        faults.kill_container(victim)
    elif what == "pod":
        example.kube.delete("Pod", example.namespace, primary)
    elif what == "planned":
        command = (sys.executable, "-m", "pstraining.cli.main", "takeover", example.name, "--shard", "0")
        where = ("--namespace", example.namespace, "--context", os.environ["PSTRAINING_CONTEXT"])
        said = subprocess.run([*command, *where], check=True, capture_output=True, text=True).stdout
        assert f"switched over from {primary} to {standby} (epoch " in said
    else:
        evict(example, primary)
        assert not is_evicted(example, standby), "one member at a time"


def evict(example: Example, pod: str) -> None:
    """Evict a pod as `kubectl drain` does: again and again, until its disruption budget permits it."""
    wait_for(lambda: is_evicted(example, pod), f"the eviction of {pod}", 60)


def is_evicted(example: Example, pod: str) -> bool:
    """Evict a pod; return False if its disruption budget does not permit it now."""
    body: dict[str, Any] = {"apiVersion": "policy/v1", "kind": "Eviction"}
    body["metadata"] = {"name": pod, "namespace": example.namespace}
    try:
        example.kube.request("POST", example.kube.path("Pod", example.namespace, pod, "eviction"), body)
    except ApiError as error:
        if error.status != HTTPStatus.TOO_MANY_REQUESTS:
            raise
        return False
    return True


CAUSES = {
    "process": "container ended with code 137",
    "container": "container ended with code 137",
    "pod": "pod deleted",
    "planned": "requested",
    "drain": "pod deleted",
}


KEPT: dict[str, Any] = {"process": ()}
"""The causes that `make test` has. A planned switchover is a command in tests/e2e/test_docs.py."""


@pytest.mark.parametrize("what", [pytest.param(w, marks=KEPT.get(w, in_soak)) for w in CAUSES])
def test_a_standby_takes_over(
    kube: Kube,
    namespace: str,
    shared: Path,
    own_operator: OperatorProcess,
    what: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own_operator.start()
    example = start(kube, namespace, shared, "Warm")
    pods, services = Watch(kube, "Pod", namespace), Watch(kube, "Service", namespace)
    # A member that starts within half a minute replaces one that does not, before training begins.
    primary = example.job()["status"]["shards"][0]["primary"]
    (standby,) = set(MEMBERS) - {primary}
    taken = example.job()["status"].get("takeovers", 0)
    before, struck = progress(example), time.monotonic()
    lose(example, what, primary, standby)
    flipped = services.wait(lambda _, s: pointer(s) == standby, "the pointer is flipped", since=struck)
    if what != "planned":
        seen = pods.wait(
            lambda k, p: p["metadata"]["name"] == primary and is_lost(k, p), "its loss is seen", since=struck
        )
        assert flipped - seen <= FLIPPED, f"{flipped - seen:.2f} s after the kubelet's status"
    else:
        seen = struck
    again = wait_for(lambda: resumed(example, before), "training continues", 300, every=0.5)
    with capsys.disabled():
        print(f"\n{what}: status after {seen - struck:.2f} s, pointer {flipped - seen:.2f} s later, {again}")
    wait_for(lambda: example.job()["status"].get("takeovers") == taken + 1, "it is counted")
    status = example.job()["status"]
    assert (status["shards"][0]["lastCause"], status["term"]) == (CAUSES[what], 1)
    assert example.failures("chief") == 0
    reported = [e for e in kube.list("Event", namespace) if e["reason"] == "TookOver"]
    assert len(reported) == taken + 1


@in_soak
@pytest.mark.parametrize("what", ["pod", "process", "container"])
def test_without_a_standby_the_program_waits_for_its_parameter_server(
    kube: Kube,
    namespace: str,
    shared: Path,
    own_operator: OperatorProcess,
    what: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a standby the program waits for its parameter server: the baseline of the other measurements."""
    own_operator.start()
    example = start(kube, namespace, shared, "None")
    before = progress(example)
    lose(example, what)
    again = wait_for(lambda: resumed(example, before), "training continues", 300, every=0.5)
    with capsys.disabled():
        print(f"\nmode None, {what}: {again}")


def resumed(example: Example, before: list[tuple[datetime, int]]) -> str:
    """Return how long the chief made no steps, once it has made one after a step back or a long pause."""
    if not any(e.get("event") == "restored" for e in example.events("chief")):
        return ""
    steps = progress(example)
    falls = [i for i in range(1, len(steps)) if steps[i][1] <= steps[i - 1][1] and i >= len(before)]
    pauses = sorted(((b[0] - a[0]).total_seconds(), b[1] - a[1]) for a, b in pairwise(steps))
    at = falls[0] if falls else 0
    if at:
        return f"training stood still for {(steps[at][0] - steps[at - 1][0]).total_seconds():.1f} s"
    return f"training stood still for {pauses[-1][0]:.1f} s" if len(steps) > len(before) + 2 else ""
