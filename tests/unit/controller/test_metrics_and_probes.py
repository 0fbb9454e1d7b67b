"""Metrics, probes and log lines of the process, and the correction of kopf's watches."""

import io
import json
import logging
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from kopf._cogs.clients import fetching, watching
from prometheus_client import generate_latest

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.controller import logs, watch
from pstraining.controller.health import Health
from pstraining.controller.metrics import OperatorMetrics, failovers, restart_seconds, restarts, unhealthy_since
from pstraining.controller.settings import LogFormat
from pstraining.controller.watch import Watches
from pstraining.core.actions import Apply, Kind, Verdict
from pstraining.core.policies.failover import LossCause
from pstraining.kube.errors import Transient
from tests.support.builders import NOW
from tests.support.queued_world import QueuedWorld, queued
from tests.support.simulation import World, phase, running


def test_restarts_are_counted_by_role_and_reason() -> None:
    old = {"worker": {"restarts": 1, "lastFailure": {"reason": "Error"}}, "ps": {"restarts": 2}}
    new = {
        "worker": {"restarts": 3, "lastFailure": {"reason": "OOMKilled"}},
        "ps": {"restarts": 3},
        "chief": {"restarts": 0},
    }
    assert restarts(old, new) == [("ps", "Replaced", 1), ("worker", "OOMKilled", 2)]
    assert restarts({}, {}) == restarts(new, old) == []


def test_restarts_of_every_role_are_counted() -> None:
    world = running(evaluator={"enabled": True})
    assert world.job is not None
    for role in names.ROLES:
        before = json.loads(json.dumps(world.job["status"]))
        world.end(role, code=1)
        world.settle()
        assert (role, "Error", 1) in restarts(before, world.job["status"])


def test_failovers_are_counted_by_cause_and_timed() -> None:
    old = {"shards": [{"index": 0, "takeovers": 1, "lastCause": "pod deleted"}, {"index": 1, "takeovers": 0}]}
    new = {"shards": [old["shards"][0], {"index": 1, "takeovers": 2, "lastCause": "container ended with code 137"}]}
    assert failovers(old, new) == [("container ended", 2)]
    assert failovers(new, new) == []
    metrics = OperatorMetrics(lambda: 0, lambda: 0)
    metrics.status_changed(("ns", "a"), old, new)
    flip = Apply(Kind.SERVICE, "a-ps-1", "uid", {}, Reason.TAKE_OVER, NOW)
    correction = Apply(Kind.SERVICE, "a-ps-0", "uid", {}, Reason.DRIFTED, NOW)
    metrics.executed((flip, correction), NOW + timedelta(seconds=0.4))
    value = metrics.registry.get_sample_value
    assert value("pstraining_takeovers_total", {"cause": "container ended"}) == 2
    assert value("pstraining_takeover_seconds_count") == 1
    assert value("pstraining_takeover_seconds_sum") == pytest.approx(0.4)


def test_the_time_to_recover_is_that_of_the_condition() -> None:
    def status(restarting: str, at: str, running: str = "True") -> dict[str, Any]:
        restarting_condition = {"type": "Restarting", "status": restarting, "lastTransitionTime": at}
        return {"conditions": [restarting_condition, {"type": "Running", "status": running}]}

    before = status("True", "2030-01-01T12:00:00Z", "False")
    assert restart_seconds(before, status("False", "2030-01-01T12:00:07Z")) == 7
    assert restart_seconds(before, before) is None
    assert restart_seconds(before, status("False", "2030-01-01T12:00:07Z", "False")) is None, "it was stopped"
    assert restart_seconds({}, status("False", "2030-01-01T12:00:07Z")) is None


def test_jobs_are_counted_by_phase() -> None:
    metrics = OperatorMetrics(lambda: 3, lambda: 4.5)

    def jobs(phase: str) -> float | None:
        return metrics.registry.get_sample_value("pstraining_jobs", {"phase": phase})

    metrics.record_status(("ns", "a"), {"phase": "Pending"})
    metrics.record_status(("ns", "b"), {"phase": "Pending"})
    metrics.status_changed(("ns", "a"), {"phase": "Pending"}, {"phase": "Running"})
    metrics.record_status(("ns", "b"), None)
    metrics.record_status(("ns", "never"), None)
    assert (jobs("Pending"), jobs("Running"), jobs("Failed")) == (0, 1, 0)


def test_the_duration_of_abnormal_conditions_is_exported() -> None:
    metrics = OperatorMetrics(lambda: 0, lambda: 0, clock=lambda: NOW)

    def longest(state: str) -> float | None:
        return metrics.registry.get_sample_value("pstraining_longest_seconds", {"state": state})

    def status(phase: str, **conditions: tuple[str, int]) -> dict[str, Any]:
        stored = [
            {"type": kind, "status": value, "lastTransitionTime": (NOW - timedelta(seconds=ago)).isoformat()}
            for kind, (value, ago) in conditions.items()
        ]
        return {"phase": phase, "conditions": stored}

    assert [longest(state) for state in ("Pending", "Restarting", "Degraded")] == [0, 0, 0]
    metrics.record_status(("ns", "a"), status("Pending", Running=("False", 30)))
    metrics.record_status(("ns", "b"), status("Pending", Running=("False", 70), Degraded=("True", 500)))
    metrics.record_status(
        ("ns", "c"), status("Restarting", Running=("False", 90), Restarting=("True", 80), Degraded=("True", 5))
    )
    metrics.record_status(("ns", "d"), status("Suspended", Running=("False", 900), Degraded=("True", 900)))
    assert [longest(state) for state in ("Pending", "Restarting", "Degraded")] == [70, 80, 5]
    metrics.status_changed(("ns", "b"), {}, status("Running", Running=("True", 0), Degraded=("True", 40)))
    metrics.record_status(("ns", "c"), None)
    assert [longest(state) for state in ("Pending", "Restarting", "Degraded")] == [30, 0, 40]


@pytest.mark.parametrize("is_queued", [False, True], ids=["suspended", "queued"])
def test_the_time_before_a_job_may_run_does_not_count_as_pending(is_queued: bool) -> None:
    """Otherwise, an alert would fire a minute after a job was resumed, or admitted by its queue."""
    world: World = queued() if is_queued else running()
    if not is_queued:
        world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    world.now = start = NOW + timedelta(hours=3)
    if isinstance(world, QueuedWorld):
        world.admit()
    else:
        world.edit({"runPolicy": {"suspend": False}})
    world.reconcile()
    assert world.job is not None
    assert phase(world) == "Pending"
    assert unhealthy_since(world.job["status"])["Pending"] >= start


def test_counters_used_by_alerts_exist_from_the_start() -> None:
    held = [False]
    value = OperatorMetrics(lambda: 0, lambda: 0, lambda: held[0]).registry.get_sample_value
    assert all(value("pstraining_takeovers_total", {"cause": cause}) == 0 for cause in (*LossCause, "other"))
    assert all(value("pstraining_errors_total", {"class": word}) == 0 for word in ("NameTaken", "Invalid", "Refused"))
    assert value("pstraining_restarts_total", {"role": "ps", "reason": "OOMKilled"}) == 0
    assert value("pstraining_leader") == 0
    held[0] = True
    assert value("pstraining_leader") == 1


def test_no_series_contains_a_jobs_name() -> None:
    metrics = OperatorMetrics(lambda: 3, lambda: 4.5)
    metrics.passed("wrote", 0.01)
    metrics.wrote(Kind.CONFIG_MAP, "create")
    metrics.failed(Transient("x"), retried=True)
    metrics.failed(Verdict.NAME_TAKEN, retried=False)
    metrics.status_changed(("ns", "secret-name"), {}, {"phase": "Running", "worker": {"restarts": 1}})
    text = generate_latest(metrics.registry).decode()
    assert "secret-name" not in text
    for line in (
        "pstraining_queue_depth 3.0",
        "pstraining_queue_oldest_age_seconds 4.5",
        'pstraining_writes_total{kind="ConfigMap",verb="create"} 1.0',
        'pstraining_errors_total{class="Transient"} 1.0',
        'pstraining_errors_total{class="NameTaken"} 1.0',
        'pstraining_restarts_total{reason="Replaced",role="worker"} 1.0',
        "pstraining_queue_retries_total 1.0",
        'pstraining_reconcile_seconds_count{result="wrote"} 1.0',
    ):
        assert line in text


def test_probes_name_the_problem() -> None:
    problem: list[str] = []
    health = Health({"loop": lambda: None}, {"lease": lambda: problem[0] if problem else None, "caches": lambda: None})
    assert health.answer("/livez") == (200, "ok\n")
    assert health.answer("/readyz?verbose") == (200, "ok\n")
    problem.append("not held")
    assert health.answer("/readyz") == (503, "lease: not held\n")
    assert health.answer("/livez")[0] == 200
    assert health.answer("/")[0] == 404


def test_probes_over_http(unused_tcp_port: int) -> None:
    stop = Health({}, {"lease": lambda: "not held"}).serve(unused_tcp_port)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{unused_tcp_port}/livez") as answer:
            assert answer.read() == b"ok\n"
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://127.0.0.1:{unused_tcp_port}/readyz")
        assert caught.value.code == 503
    finally:
        stop()


def line(form: LogFormat) -> str:
    out, root = io.StringIO(), logging.getLogger()
    before = root.handlers[:], root.level
    try:
        logs.configure("INFO", form)
        root.handlers[0].setStream(out)  # type: ignore[attr-defined]
        job = {"metadata": {"uid": "u1", "generation": 3}}
        logging.getLogger("pstraining.x").info("Status %s", "Running", extra=logs.about(job, "ns", "digits"))
    finally:
        root.handlers[:], level = before[0], before[1]
        root.setLevel(level)
    return out.getvalue()


def test_a_json_log_line_has_the_job_in_fields() -> None:
    found = json.loads(line(LogFormat.JSON))
    assert found.pop("time")
    assert found == {
        "level": "INFO",
        "logger": "pstraining.x",
        "message": "Status Running",
        "namespace": "ns",
        "name": "digits",
        "uid": "u1",
        "generation": 3,
    }


def test_a_log_line_in_plain_text() -> None:
    assert line(LogFormat.TEXT).endswith(" INFO    [ns/digits] Status Running\n")


def event(kind: str | None, uid: str) -> dict[str, Any]:
    metadata = {"name": f"name-{uid}", "namespace": "ns", "uid": uid, "labels": {"a": "b"}}
    return {"type": kind, "object": {"kind": "ConfigMap", "metadata": metadata, "data": {"x": "y"}}}


LISTED = watching.Bookmark.LISTED
BOOKMARK = {"type": "BOOKMARK", "object": {"kind": "ConfigMap", "metadata": {"resourceVersion": "7"}}}


async def repaired(events: list[Any]) -> tuple[list[tuple[str | None, str]], Watches]:
    async def stream() -> AsyncIterator[Any]:
        for found in events:
            yield found

    watches: Watches = Watches(expected=1)
    received: list[tuple[str | None, str]] = []

    def receive(found: dict[str, Any]) -> None:
        received.append((found["type"], found["object"]["metadata"]["uid"]))

    async for found in watches._take(("configmaps", None), stream(), receive, lambda namespace: None):
        assert found is LISTED or found["type"] == "BOOKMARK", "kopf is given no object"
    return received, watches


@pytest.mark.asyncio
async def test_a_malformed_object_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    async def stream() -> AsyncIterator[Any]:
        for uid in ("a", "b"):
            yield event("ADDED", uid)

    received = []

    def receive(found: dict[str, Any]) -> None:
        if found["object"]["metadata"]["uid"] == "a":
            raise KeyError("spec")
        received.append(found["object"]["metadata"]["uid"])

    async for _ in Watches(expected=1)._take(("pods", None), stream(), receive, lambda namespace: None):
        pass
    assert received == ["b"]
    assert "name-a" in caplog.text


@pytest.mark.asyncio
async def test_completion_of_all_initial_lists_is_reported() -> None:
    watches = Watches(expected=2)
    received: list[str | None] = []

    async def stream() -> AsyncIterator[Any]:
        yield LISTED

    for plural in ("pods", "pods", "jobs"):
        async for _ in watches._take((plural, None), stream(), lambda found: None, received.append):
            pass
        assert bool(received) is (plural == "jobs")


@pytest.mark.asyncio
async def test_objects_missing_from_a_later_list_are_deleted() -> None:
    first = [event(None, "a"), event(None, "b"), LISTED, event("ADDED", "c"), event("DELETED", "a"), BOOKMARK]
    received, watches = await repaired([*first, event(None, "c"), LISTED, event("ADDED", "d")])
    assert received == [
        (None, "a"),
        (None, "b"),
        ("ADDED", "c"),
        ("DELETED", "a"),
        (None, "c"),
        ("DELETED", "b"),
        ("ADDED", "d"),
    ]
    assert watches.synced


@pytest.mark.asyncio
async def test_an_empty_later_list_deletes_all_objects() -> None:
    received, _ = await repaired([event(None, "a"), LISTED, event("MODIFIED", "b"), LISTED])
    assert sorted(received[2:]) == [("DELETED", "a"), ("DELETED", "b")]


@pytest.mark.asyncio
async def test_an_identical_list_changes_nothing() -> None:
    received, _ = await repaired([event(None, "a"), LISTED, event(None, "a"), LISTED, LISTED])
    assert received == [(None, "a"), (None, "a"), ("DELETED", "a")], "the third list was empty"


async def believed(watches: Watches, plural: str, *versions: str) -> list[str]:
    """Return the result of a list request whose repeated responses have these versions."""
    asked = iter(versions)

    async def fetch() -> AsyncIterator[Any]:
        version = next(asked)
        for part in ("a", "b"):
            yield [f"{part}{version}"], version

    return [item async for items, _ in watches._fresh_list((plural, None), fetch) for item in items]


@pytest.mark.asyncio
async def test_a_list_older_than_the_lease_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "RELIST_SECONDS", 0.0)
    watches = Watches(expected=1, fence=lambda: 50)
    assert await believed(watches, "pods", "49", "7", "50") == ["a50", "b50"]
    assert await believed(watches, "events", "7") == ["a7", "b7"], "kept apart, with numbers of their own"
    assert await believed(watches, "jobs", "abc") == ["aabc", "babc"], "nothing to compare"


@pytest.mark.asyncio
async def test_a_list_older_than_its_streams_events_is_requested_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "RELIST_SECONDS", 0.0)

    async def stream() -> AsyncIterator[Any]:
        yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "90"}}}

    watches = Watches(expected=1)
    async for _ in watches._take(("pods", None), stream(), lambda found: None, lambda namespace: None):
        pass
    assert await believed(watches, "pods", "89", "90") == ["a90", "b90"]
    assert await believed(watches, "pods", "89", "91") == ["a91", "b91"]
    assert await believed(watches, "jobs", "1") == ["a1", "b1"]


@pytest.mark.asyncio
async def test_an_old_list_is_accepted_in_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An old list is accepted in the end, because Leases may be kept in a store with higher numbers."""
    monkeypatch.setattr(watch, "RELIST_SECONDS", 0.0)
    seconds = iter(range(1000))
    watches = Watches(expected=1, clock=lambda: float(next(seconds)), fence=lambda: 50)
    assert await believed(watches, "pods", *["7"] * 100) == ["a7", "b7"]
    assert caplog.text.count("is accepted") == 1
    assert await believed(watches, "pods", "8") == ["a8", "b8"], "and at once from then on"


@pytest.mark.asyncio
async def test_the_patch_of_kopf_is_undone() -> None:
    original = watching.infinite_watch, fetching.fetch_objs
    with Watches(expected=1).taken(lambda found: None):
        assert watching.infinite_watch is not original[0]
        assert fetching.fetch_objs is not original[1]
    assert (watching.infinite_watch, fetching.fetch_objs) == original


def test_the_reported_silence_is_that_of_the_quietest_stream() -> None:
    now = [0.0]
    watches = Watches(expected=2, clock=lambda: now[0])
    assert watches.silent_for() == 0
    watches._last = {("pods", None): 5.0, ("jobs", None): 90.0}
    now[0] = 100.0
    assert watches.silent_for() == 95
    assert not watches.synced


def test_a_stream_that_gets_no_bookmarks_may_be_silent() -> None:
    """A stream without bookmarks may be silent, such as that of events of uncreatable pods, of which a healthy cluster
    has none for days.
    """
    watches = Watches(expected=2, clock=lambda: 1000.0)
    watches._last = {("events", None): 5.0}
    assert watches.silent_for() == 0
    watches._last["pods", None] = 990.0
    assert watches.silent_for() == 10
