"""Passes on the fake API server with simple decisions: their writes, the passes that follow, and raised errors."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.controller.clocks import ReconcilerClocks
from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.rate_limit import BURST
from pstraining.controller.reconciler import REFUSED_DELAY, Decisions, Reconciler
from pstraining.controller.watch_state import WatchState
from pstraining.core.actions import Apply, Event, Kind, Manifest, Outcomes, Plan
from pstraining.core.facts import Facts, Unreadable
from pstraining.core.snapshot import Snapshot
from pstraining.kube.errors import ApiError, Conflict, Refused, StatusCause, Transient
from pstraining.kube.port import Object
from pstraining.resources.launcher import LauncherFiles
from tests.support.builders import NOW, pod
from tests.support.fakekube import FakeKube
from tests.support.fakekube_decisions import DECISIONS, LAUNCHER, events, plan

pytestmark = pytest.mark.asyncio
KEY = ("default", "digits")


class Bench:
    """A reconciler, its cache and the API server; the watch delivers events on request."""

    def __init__(self, decisions: Decisions = DECISIONS) -> None:
        self.kube, self.now = FakeKube(), NOW
        self.metrics = OperatorMetrics(lambda: 0, lambda: 0)
        self.restart(decisions)

    def restart(self, decisions: Decisions = DECISIONS) -> None:
        """Start a new process, whose empty cache is filled by lists."""
        self.watch_state = WatchState()
        self.cache = self.watch_state.cache
        self.reconciler = Reconciler(
            watch_state=self.watch_state,
            port=self.kube,
            decisions=decisions,
            launcher=LAUNCHER,
            metrics=self.metrics,
            instance="op-0",
            clocks=ReconcilerClocks(lambda: self.now),
        )
        for found in self.kube.objects.values():
            self.cache.observed(found)
        self.kube.changes.clear()

    def submit(self) -> Object:
        body: dict[str, Any] = {"kind": "PSTrainingJob", "metadata": {"name": "digits"}, "spec": {"a": 1}}
        made = self.kube.put({"apiVersion": "pstraining.dev/v1alpha1", **body})
        self.kube.deliver(self.cache)
        return made

    async def settle(self) -> int:
        """Run passes until none follows at once; return their number."""
        for number in range(1, 50):
            if await self.reconciler.reconcile(KEY) != 0.0:
                return number
        raise AssertionError("does not settle")

    def stored(self) -> Object:
        return self.kube.objects["PSTrainingJob", *KEY]

    def errors(self, name: str) -> float:
        return self.metrics.registry.get_sample_value("pstraining_errors_total", {"class": name}) or 0.0


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_job_settles_on_its_own_writes_before_any_event(bench: Bench) -> None:
    bench.submit()
    assert await bench.settle() == 3
    assert bench.kube.world == {("PSTrainingJob", "digits"), ("Deployment", "digits-worker-0"), ("ConfigMap", "digits")}
    assert [r[:2] for r in bench.kube.writes()] == [
        ("create", "Deployment"),
        ("create", "ConfigMap"),
        ("patch_status", "PSTrainingJob"),
        ("create", "Event"),
        ("patch_status", "PSTrainingJob"),
        ("create", "Event"),
    ]
    assert [e["reason"] for e in bench.kube.events] == ["Pending", "Running"]
    assert bench.kube.deliver(bench.cache) == set(), "the watch has no news for us"


async def test_nothing_is_written_twice(bench: Bench) -> None:
    bench.submit()
    await bench.settle()
    bench.kube.writes()
    for _ in range(3):
        assert await bench.reconciler.reconcile(KEY) is None
    bench.restart()
    assert await bench.reconciler.reconcile(KEY) is None
    assert bench.kube.writes() == []


@pytest.mark.parametrize("dies_after", range(7))
async def test_a_crash_between_any_two_writes_is_recovered(bench: Bench, dies_after: int) -> None:
    bench.submit()
    sent = 0

    def die(verb: str, kind: str, namespace: str, name: str) -> Exception | None:
        nonlocal sent
        sent += 1
        return RuntimeError("killed") if sent > dies_after else None

    bench.kube.failures = die
    with contextlib.suppress(RuntimeError):
        await bench.settle()
    bench.kube.failures = lambda *_: None
    bench.restart()
    await bench.settle()
    assert len(bench.kube.world) == 3
    assert bench.stored()["status"]["phase"] == "Running"
    creations = [r for r in bench.kube.writes() if r[0] == "create" and r[1] != "Event"]
    assert len(creations) <= 3, "the one that failed, and the rest"


async def test_a_status_from_an_outdated_snapshot_is_not_written(bench: Bench) -> None:
    bench.submit()
    bench.kube.put({**bench.stored(), "spec": {"a": 2}})
    with pytest.raises(Conflict):
        await bench.reconciler.reconcile(KEY)
    assert bench.kube.events == []
    assert bench.kube.deliver(bench.cache) == {KEY}
    await bench.settle()
    assert bench.stored()["status"] == {"phase": "Running", "observedGeneration": 2}
    assert [e["reason"] for e in bench.kube.events] == ["Running"], "posted once, from the stored status"


async def test_events_are_posted_only_after_the_status_is_stored(bench: Bench) -> None:
    bench.submit()
    bench.kube.failures = lambda verb, *_: Transient("away") if verb == "patch_status" else None
    with pytest.raises(Transient):
        await bench.reconciler.reconcile(KEY)
    assert bench.kube.events == []


@pytest.mark.parametrize("posted", [True, False])
async def test_a_warning_is_logged_once(caplog: pytest.LogCaptureFixture, posted: bool) -> None:
    def warn(snapshot: Snapshot, status: dict[str, Any]) -> tuple[Event, ...]:
        return tuple(replace(e, type="Warning", message="No model is kept.") for e in events(snapshot, status)[:1])

    decisions = replace(DECISIONS, events=lambda s, status: warn(s, status) if status["phase"] == "Pending" else ())
    bench = Bench(decisions)
    bench.kube.failures = lambda verb, kind, *_: None if posted or kind != "Event" else Transient("away")
    bench.submit()
    await bench.settle()
    bench.restart(decisions)
    await bench.settle()
    assert [r.message for r in caplog.records if "No model" in r.message] == ["Pending: No model is kept."]


async def test_a_failed_event_does_not_fail_the_pass(bench: Bench) -> None:
    bench.submit()
    bench.kube.failures = lambda verb, kind, *_: Transient("away") if kind == "Event" else None
    await bench.settle()
    assert bench.stored()["status"]["phase"] == "Running"
    assert bench.errors("Transient") == 2


async def test_an_occupied_name_is_checked_again_later(bench: Bench) -> None:
    bench.submit()
    bench.kube.put({"kind": "ConfigMap", "metadata": {"name": "digits", "namespace": "default"}, "data": {"b": "1"}})
    await bench.settle()
    assert await bench.reconciler.reconcile(KEY) == REFUSED_DELAY
    assert bench.kube.objects["ConfigMap", *KEY]["data"] == {"b": "1"}
    bench.kube.remove("ConfigMap", *KEY)
    await bench.settle()
    assert bench.stored()["status"]["phase"] == "Running"


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (Refused("exceeded quota", status=403), REFUSED_DELAY),
        (Refused("unknown field", status=400), None),
        (Refused('admission webhook "a.b" denied the request: no label team', status=400), REFUSED_DELAY),
        (Refused("terminating", status=403, causes=(StatusCause("NamespaceTerminating", "", ""),)), REFUSED_DELAY),
    ],
)
async def test_the_time_of_a_retry_after_a_rejection(bench: Bench, error: ApiError, again: float | None) -> None:
    bench.submit()
    bench.kube.failures = lambda verb, kind, *_: error if (verb, kind) == ("create", "Deployment") else None
    await bench.settle()
    assert await bench.reconciler.reconcile(KEY) == again
    assert ("ConfigMap", "digits") not in bench.kube.world


async def test_an_event_in_a_namespace_that_is_being_deleted_is_no_error(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise each deletion of a namespace with jobs would fire the alert PSTrainingWritesRefused."""
    refused = Refused("terminating", status=403, causes=(StatusCause("NamespaceTerminating", "", ""),))
    bench.submit()
    bench.kube.failures = lambda verb, kind, *_: refused if kind == "Event" else None
    await bench.settle()
    assert bench.stored()["status"]["phase"] == "Running"
    assert bench.errors("Refused") == 0
    assert "was not posted" not in caplog.text


async def test_a_job_that_replaces_another_starts_when_the_names_are_free(bench: Bench) -> None:
    """As after `kubectl replace --force`: the garbage collector deletes the former objects a moment later."""
    bench.submit()
    await bench.settle()
    bench.kube.remove("PSTrainingJob", *KEY)
    for change, found in bench.kube.changes:
        bench.watch_state.receive(found, change)
    bench.kube.changes.clear()
    bench.submit()
    await bench.settle()
    assert await bench.reconciler.reconcile(KEY) == REFUSED_DELAY
    bench.kube.changes.clear()
    bench.kube.collect_garbage()
    enqueued = [set(bench.watch_state.receive(found, change)) for change, found in bench.kube.changes]
    assert enqueued
    assert all(keys == {KEY} for keys in enqueued)
    await bench.settle()
    assert bench.stored()["status"]["phase"] == "Running"


async def test_the_plan_names_the_next_pass() -> None:
    def later(facts: Facts | Unreadable, launcher: LauncherFiles) -> Plan:
        return Plan(plan(facts, launcher).actions, NOW + timedelta(seconds=90))

    bench = Bench(replace(DECISIONS, plan=later))
    bench.submit()
    await bench.settle()
    bench.now += timedelta(seconds=30)
    assert await bench.reconciler.reconcile(KEY) == pytest.approx(60, abs=0.1)
    bench.now += timedelta(seconds=300)
    assert await bench.reconciler.reconcile(KEY) == pytest.approx(0, abs=0.1)


async def test_an_unstable_job_is_slowed_down(caplog: pytest.LogCaptureFixture) -> None:
    def restless(facts: Facts | Unreadable, launcher: LauncherFiles) -> Plan:
        found = facts.snapshot.child(Kind.CONFIG_MAP, "digits")
        if found is None:
            return plan(facts, launcher)
        body = {**found.manifest, "data": {"n": str(int(found.manifest["data"].get("n", 0)) + 1)}}
        return Plan((Apply(Kind.CONFIG_MAP, "digits", found.uid, body, Reason.DRIFTED),))

    bench = Bench(replace(DECISIONS, plan=restless))
    bench.submit()
    waits = [await bench.reconciler.reconcile(KEY) for _ in range(BURST + 3)]
    assert waits == [0.0] * BURST + [0.5] * 3
    written = len(bench.kube.writes())
    assert await bench.reconciler.reconcile(KEY) == 0.5
    assert bench.kube.writes() == []
    bench.now += timedelta(seconds=0.5)
    assert await bench.reconciler.reconcile(KEY) == 0.0
    assert len(bench.kube.writes()) == 1
    assert written >= BURST
    assert caplog.text.count("passes in a row wrote something") == 1
    bench.now += timedelta(seconds=60)
    assert [await bench.reconciler.reconcile(KEY) for _ in range(BURST + 1)] == [0.0] * BURST + [0.5]


async def test_a_job_in_deletion_is_left_alone(bench: Bench) -> None:
    bench.submit()
    bench.kube.put({**bench.stored(), "metadata": {"name": "digits", "deletionTimestamp": "2030-01-01T12:00:00Z"}})
    bench.kube.deliver(bench.cache)
    assert await bench.reconciler.reconcile(KEY) is None
    assert bench.kube.writes() == []


async def test_a_deleted_job_is_forgotten(bench: Bench) -> None:
    bench.submit()
    await bench.settle()
    assert bench.metrics.registry.get_sample_value("pstraining_jobs", {"phase": "Running"}) == 1
    bench.kube.remove("PSTrainingJob", *KEY)
    bench.kube.collect_garbage()
    bench.kube.deliver(bench.cache)
    bench.kube.writes()
    assert await bench.reconciler.reconcile(KEY) is None
    assert bench.kube.writes() == []
    assert bench.metrics.registry.get_sample_value("pstraining_jobs", {"phase": "Running"}) == 0
    assert len(bench.cache) == 0


async def test_a_job_deleted_unnoticed_is_not_kept(bench: Bench) -> None:
    bench.submit()
    bench.kube.remove("PSTrainingJob", *KEY)
    await bench.settle()
    assert bench.cache.jobs() == ()
    bench.kube.collect_garbage()
    assert bench.kube.world == set()


async def test_a_recreated_job_gets_its_own_children(bench: Bench) -> None:
    bench.submit()
    await bench.settle()
    bench.kube.remove("PSTrainingJob", *KEY)
    bench.submit()
    await bench.settle()
    assert bench.stored()["status"]["phase"] == "Pending", "the old children still hold the names"
    assert bench.errors("NameTaken") == 0
    bench.kube.collect_garbage()
    assert bench.kube.deliver(bench.cache) == {KEY}, "their deletion causes another pass"
    await bench.settle()
    assert bench.stored()["status"]["phase"] == "Running"
    uid = bench.stored()["metadata"]["uid"]
    owners = [o["metadata"]["ownerReferences"][0]["uid"] for k, o in bench.kube.objects.items() if k[0] == "ConfigMap"]
    assert owners == [uid]


@pytest.mark.parametrize(
    "odd",
    [
        lambda job: job["metadata"].pop("generation"),
        lambda job: job.pop("spec"),
        lambda job: job.update(status=None),
        lambda job: job["metadata"].update(labels=None, annotations=None),
    ],
)
async def test_malformed_jobs_do_no_harm(bench: Bench, odd: Callable[[dict[str, Any]], Any]) -> None:
    made: Manifest = bench.submit()
    job = bench.stored()
    odd(job)
    job["metadata"]["resourceVersion"] = str(int(made["metadata"]["resourceVersion"]) + 1)
    bench.cache.observed(job)
    await bench.settle()
    assert len(bench.kube.world) == 3


@pytest.mark.parametrize("label", [names.LABEL_JOB, names.LABEL_JOB_UID])
async def test_a_child_gets_back_the_labels_by_which_it_is_found(bench: Bench, label: str) -> None:
    bench.submit()
    await bench.settle()
    child = bench.kube.objects["Deployment", "default", "digits-worker-0"]
    bench.kube.changes.clear()
    left = {name: value for name, value in child["metadata"]["labels"].items() if name != label}
    bench.kube.put({**child, "metadata": {**child["metadata"], "labels": left}})
    ((_, seen),) = bench.kube.changes
    # The watch selects objects by the label with the uid, and reports one without it as deleted.
    bench.watch_state.receive(seen, "DELETED" if label == names.LABEL_JOB_UID else "MODIFIED")
    bench.kube.writes()
    assert await bench.settle() < 5
    assert [w for w in bench.kube.writes() if w[1] == "Deployment"] == [
        ("create", "Deployment", child["metadata"]["name"]),
        ("replace", "Deployment", child["metadata"]["name"]),
    ]
    assert child["metadata"]["labels"][label]
    bench.kube.changes.clear()
    bench.kube.put({**child, "spec": {"replicas": 7}})
    assert bench.kube.deliver(bench.cache) == {KEY}, "later changes are noticed"


async def test_only_a_pass_that_wrote_is_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pstraining")
    bench.submit()
    await bench.settle()
    lines = [r for r in caplog.records if r.name == "pstraining.controller.reconciler"]
    assert [r.getMessage() for r in lines] == [
        "Create Deployment digits-worker-0 (Desired); Create ConfigMap digits (Desired); Status Pending",
        "Status Running",
    ]
    assert (lines[0].namespace, lines[0].job, lines[0].generation) == ("default", "digits", 1)  # type: ignore[attr-defined]


async def test_the_test_double_receives_outcomes(bench: Bench) -> None:
    seen: list[Outcomes] = []

    def note(facts: Facts | Unreadable, outcomes: Outcomes) -> dict[str, Any]:
        seen.append(outcomes)
        return {"phase": "Pending"}

    bench.restart(replace(DECISIONS, next_status=note))
    bench.submit()
    await bench.settle()
    assert [len(o.outcomes) for o in seen] == [2, 0]


@pytest.mark.parametrize("labels", [{names.LABEL_INDEX: "x"}, {names.LABEL_TERM: "-1"}, {names.LABEL_INDEX: "1.5"}])
async def test_malformed_pods_do_no_harm(bench: Bench, labels: dict[str, str]) -> None:
    uid = bench.submit()["metadata"]["uid"]
    found = pod("worker", 0)
    found["metadata"]["labels"] |= {names.LABEL_JOB_UID: uid, **labels}
    bench.kube.put(found)
    bench.kube.deliver(bench.cache)
    assert await bench.settle() == 3
