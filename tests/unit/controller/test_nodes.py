"""Relevant changes of a node, and the jobs that they affect."""

import copy
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest

from pstraining.api import names
from pstraining.controller import registration
from pstraining.controller.nodes import Nodes
from pstraining.controller.transform import transform
from pstraining.controller.watch_state import WatchState
from pstraining.controller.workqueue import WorkQueue
from pstraining.core.policies import cut_off
from tests.support.builders import NOW, job, pod, stamp, typed
from tests.support.simulation import node
from tests.support.snapshots import a_pod

OUT = "node.kubernetes.io/out-of-service"
LOST = (
    a_pod(names.PS, 0, "node-1", silent=True, lost=True, deleting=True),
    a_pod(names.PS, 0, "node-2", member=1),
)
LOUD: dict[str, Any] = {"images": [{"names": ["a"]}], "addresses": [{"address": "10.0.0.1"}]}


def test_a_heartbeat_is_no_change() -> None:
    nodes = Nodes()
    nodes.observed(node("a"))
    later = node("a", "True", "example.com/anything")
    later["status"] |= LOUD
    later["status"]["conditions"][0]["lastHeartbeatTime"] = "2030-01-01T12:00:00Z"
    later["status"]["conditions"].append({"type": "DiskPressure", "status": "True"})
    assert not nodes.observed(later)


@pytest.mark.parametrize("now", [node("a", "Unknown"), node("a", "False"), node("a", "True", OUT)])
def test_a_relevant_change_of_a_node_is_a_change(now: dict[str, Any]) -> None:
    nodes = Nodes()
    assert not nodes.observed(node("a")), "one that is well and new changes nothing"
    assert nodes.observed(now)
    assert not nodes.observed(copy.deepcopy(now))
    assert nodes.observed(node("a")), "back again"


def test_a_node_that_is_unreachable_when_first_seen_is_a_change() -> None:
    assert Nodes().observed(node("a", "Unknown"))


def test_a_deleted_node() -> None:
    nodes = Nodes()
    nodes.observed(node("a"))
    older = node("a")
    older["metadata"]["uid"] = "another"
    assert not nodes.vanished(older), "its successor of that name is there"
    assert nodes.vanished(node("a"))
    assert not nodes.vanished(node("a"))


def test_the_nodes_of_pods() -> None:
    nodes = Nodes()
    for name in ("node-1", "node-2"):
        nodes.observed(node(name))
    pending = pod("worker")
    del pending["spec"]["nodeName"]
    assert [n["metadata"]["name"] for n in nodes.of([pod("ps"), pod("chief"), pending])] == ["node-1"]


def unknown_since(hours: int) -> dict[str, Any]:
    """Return a node that does not report, by the node controller's clock since some hours after `NOW`."""
    found = node("node-1", "Unknown")
    found["status"]["conditions"][0]["lastTransitionTime"] = stamp(NOW + timedelta(hours=hours))
    return found


@pytest.mark.parametrize("skew", [-1, 0, 1])
def test_the_wait_for_other_nodes_begins_when_the_silence_is_seen(skew: int) -> None:
    """The node controller's clock is an hour behind the operator's, equal, or an hour ahead."""
    now = NOW
    state = WatchState(watches_nodes=True, nodes=Nodes(lambda: now))
    manifest = job(spec={"ps": {"replicas": 1, "standby": {"mode": "Hot"}}})
    state.cache.observed(manifest)
    state.cache.observed(pod("ps"))
    state.receive(unknown_since(skew), "MODIFIED")
    now += timedelta(seconds=1)
    state.receive(unknown_since(skew), None)

    def is_held(seconds: int) -> bool:
        seen = replace(state.snapshot(("default", "digits")), pods=LOST)
        return cut_off.is_held(typed(manifest), seen, LOST[0], NOW + timedelta(seconds=seconds))

    assert [is_held(seconds) for seconds in (0, 19, 20)] == [True, True, False]
    state.receive(node("node-1"), "MODIFIED")
    state.receive(unknown_since(skew), "MODIFIED")
    assert [is_held(seconds) for seconds in (20, 21)] == [True, False], "it was back in between"


def deleted(version: int, **more: Any) -> dict[str, Any]:
    """Return a worker's pod that is being deleted."""
    found = pod("worker", deleting=True, **more)
    found["metadata"]["resourceVersion"] = str(version)
    return found


@pytest.mark.parametrize("watches_nodes", [True, False])
def test_the_report_of_a_kubelet_on_a_deleted_pod_is_noted_until_its_node_is_ready(*, watches_nodes: bool) -> None:
    """The node controller changes only the condition Ready of a pod, which is no report of its kubelet."""
    state, key = WatchState(watches_nodes=watches_nodes, nodes=Nodes(lambda: NOW)), ("default", "digits")
    state.cache.observed(job())
    ended = {"terminated": {"exitCode": 143, "reason": "Error"}}
    running, not_ready = deleted(2), deleted(3)
    not_ready["status"]["conditions"][0]["status"] = "False"
    for raw in (running, not_ready):
        state.receive(raw, "MODIFIED")
        assert state.snapshot(key).last_reports == {}
    for event in ("MODIFIED", None):
        state.receive(deleted(4, state=ended), event)
        assert state.snapshot(key).last_reports == {"node-1": NOW}
    for status in ("Unknown", "False"):
        state.receive(node("node-1", status), "MODIFIED")
        assert state.snapshot(key).last_reports == {"node-1": NOW}
    state.receive(node("node-1"), "MODIFIED")
    assert state.snapshot(key).last_reports == {}


def test_the_end_of_a_container_alone_is_no_report_of_a_node_that_was_given_up() -> None:
    state, key = WatchState(nodes=Nodes(lambda: NOW)), ("default", "digits")
    state.cache.observed(job())
    for version, end in enumerate((None, {"terminated": {"exitCode": 1}}), 1):
        raw = pod("worker", state=end)
        raw["metadata"]["resourceVersion"] = str(version)
        state.receive(raw, "MODIFIED")
    assert state.snapshot(key).last_reports == {}


def test_a_pod_that_is_being_deleted_is_transformed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The events of all pods of a large job come at once when it stops."""
    state, transformed = WatchState(nodes=Nodes(lambda: NOW)), mock.Mock(side_effect=transform)
    state.cache.observed(job())
    state.receive(deleted(2), "MODIFIED")
    monkeypatch.setattr("pstraining.controller.informer_cache.transform", transformed)
    state.receive(deleted(3, state={"terminated": {"exitCode": 143}}), "MODIFIED")
    assert transformed.call_count == 1
    assert state.nodes.last_reports([pod("worker")]) == {"node-1": NOW}


@pytest.mark.asyncio
async def test_only_jobs_with_a_pod_on_the_node_get_a_pass() -> None:
    watch_state, queue = WatchState(watches_nodes=True), WorkQueue()
    receive, cache = registration.receiver(watch_state, queue), watch_state.cache
    for name in ("here", "elsewhere"):
        made = job()
        made["metadata"] |= {"name": name, "uid": name}
        raw = pod("ps", job_uid=name, uid=name)
        raw["metadata"]["labels"]["pstraining.dev/job-name"] = name
        raw["metadata"]["name"] = f"{name}-ps-0"
        raw["spec"]["nodeName"] = "node-1" if name == "here" else "node-11"
        cache.observed(made)
        cache.observed(raw)
    receive({"type": None, "object": node("node-1")})
    receive({"type": "MODIFIED", "object": node("node-1")})
    assert queue.depth == 0
    receive({"type": "MODIFIED", "object": node("node-1", "Unknown")})
    assert (queue.depth, cache.on_node("node-1")) == (1, (("default", "here"),))
    receive({"type": "DELETED", "object": node("node-1", "Unknown")})
    assert watch_state.nodes.of([pod("ps")]) == ()
