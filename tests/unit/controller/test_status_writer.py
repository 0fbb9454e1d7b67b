"""A status that the API server rejects: the replacement that is stored, the report, and the time of the next
attempt.
"""

import json
from typing import Any

import pytest

from pstraining.controller.clocks import ReconcilerClocks
from pstraining.controller.informer_cache import Key
from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.reconciler import Decisions, Reconciler
from pstraining.controller.status_writer import RETRY_SECONDS
from pstraining.controller.watch_state import WatchState
from pstraining.core import facts, status
from pstraining.core.actions import Kind, Manifest, Plan
from pstraining.core.facts import Facts, Unreadable
from pstraining.core.policies.diagnosis import unexplained
from pstraining.core.reduced_status import reduced_status
from pstraining.kube.errors import NotFound, Refused, from_response
from pstraining.kube.port import Object
from tests.support.builders import LAUNCHER, NOW, job, pod, terminated
from tests.support.fakekube import FakeKube

pytestmark = pytest.mark.asyncio
KEY: Key = ("default", "digits")
WORKERS = 30
ANSWERS = {
    "StatusTooLarge": [
        (413, "Request entity too large: limit is 3145728"),
        (500, "etcdserver: request is too large"),
        (500, "rpc error: code = ResourceExhausted desc = trying to send message larger than max (2 vs. 1)"),
    ],
    "StatusRefused": [(422, "status.replicaRecords: Too many: must have at most 200 items"), (400, "unknown field")],
}
CASES = [(reason, *answer) for reason, answers in ANSWERS.items() for answer in answers]


class SmallKube(FakeKube):
    """An API server that rejects a status beyond a size."""

    limit = 10**9
    answer: tuple[int, str] = (413, "")
    sent = 0

    async def patch_status(self, namespace: str, name: str, body: Manifest) -> Object:
        self.sent += 1
        if len(json.dumps(body["status"])) > self.limit:
            code, message = self.answer
            raise from_response(code, json.dumps({"kind": "Status", "message": message}))
        return await super().patch_status(namespace, name, body)


class Bench:
    """A job of WORKERS workers that all fail, and an API server whose limit their records exceed."""

    def __init__(self) -> None:
        self.kube, self.seconds = SmallKube(), 0.0
        watch_state = WatchState()
        self.cache = watch_state.cache
        metrics = OperatorMetrics(lambda: 0, lambda: 0)
        decisions = Decisions(facts.gather, no_plan, status.next_status, status.events, reduced_status, unexplained)
        self.reconciler = Reconciler(
            watch_state=watch_state,
            port=self.kube,
            decisions=decisions,
            launcher=LAUNCHER,
            metrics=metrics,
            instance="op-0",
            clocks=ReconcilerClocks(lambda: NOW, lambda: self.seconds),
        )
        self.uid = self.kube.put(job(workers=WORKERS))["metadata"]["uid"]
        self.kube.deliver(self.cache)

    async def fail_all(self) -> None:
        """Settle, then fail every worker, with room only for the stored status and a condition."""
        await self.settle()
        for index in range(WORKERS):
            failed = pod("worker", index, state=terminated(1), ready=False, job_uid=self.uid)
            self.cache.observed(failed)
        self.kube.limit = len(json.dumps(self.status)) + 1500
        self.kube.sent = 0

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.kube.objects["PSTrainingJob", *KEY]["status"]
        return found

    def condition(self, kind: str) -> dict[str, Any]:
        return next((c for c in self.status["conditions"] if c["type"] == kind), {})

    async def settle(self) -> float | None:
        for _ in range(10):
            if (delay := await self.reconciler.reconcile(KEY)) != 0.0:
                return delay
        raise AssertionError("does not settle")

    def events(self, reason: str) -> list[str]:
        return [e["note"] for e in self.kube.events if e["reason"] == reason]


def no_plan(_: Facts | Unreadable, launcher: Any) -> Plan:
    return Plan()


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(("reason", "code", "message"), CASES)
async def test_a_rejected_status_is_stored_without_its_new_records(
    bench: Bench, reason: str, code: int, message: str
) -> None:
    await bench.fail_all()
    bench.kube.answer = (code, message)
    assert await bench.settle() == RETRY_SECONDS
    condition = bench.condition("StatusIncomplete")
    assert (condition["status"], condition["reason"]) == ("True", reason)
    assert message in condition["message"]
    assert bench.status["replicaRecords"] == []
    assert bench.status["worker"]["lastFailure"]["exitCode"] == 1
    assert bench.events("StatusIncomplete") == [condition["message"]]


async def test_a_rejected_status_is_not_sent_in_every_pass(bench: Bench) -> None:
    await bench.fail_all()
    await bench.settle()
    assert bench.kube.sent == 2, "the whole status and the reduced one"
    for seconds in (1.0, RETRY_SECONDS - 1.0):
        bench.seconds = seconds
        assert await bench.settle() == RETRY_SECONDS - seconds
    assert bench.kube.sent == 2
    bench.seconds = RETRY_SECONDS
    assert await bench.settle() == RETRY_SECONDS
    assert bench.kube.sent == 3, "the stored status reports the refusal already"


async def test_the_whole_status_is_stored_once_the_api_server_accepts_it(bench: Bench) -> None:
    await bench.fail_all()
    await bench.settle()
    bench.kube.limit = 10**9
    bench.seconds = RETRY_SECONDS
    await bench.settle()
    assert len(bench.status["replicaRecords"]) == WORKERS
    assert (bench.status["worker"]["restarts"], bench.status["restarts"]) == (WORKERS, WORKERS), "each counts once"
    condition = bench.condition("StatusIncomplete")
    assert (condition["status"], condition["reason"]) == ("False", "StatusAccepted")


async def test_an_event_reports_that_even_the_reduced_status_is_rejected(bench: Bench) -> None:
    await bench.fail_all()
    bench.kube.limit = 10
    assert await bench.settle() == RETRY_SECONDS
    assert await bench.settle() == RETRY_SECONDS
    assert bench.kube.sent == 2
    assert len(bench.events("StatusRefused")) == 1


async def test_a_forbidden_status_is_left_to_the_queue(bench: Bench) -> None:
    await bench.fail_all()
    bench.kube.answer = (403, "forbidden")
    with pytest.raises(Refused):
        await bench.settle()


async def test_a_recreated_job_starts_without_the_rejection(bench: Bench) -> None:
    await bench.fail_all()
    await bench.settle()
    bench.kube.remove(Kind.PS_TRAINING_JOB, *KEY)
    bench.kube.put(job(workers=WORKERS) | {"metadata": {"name": "digits", "namespace": "default"}})
    bench.kube.deliver(bench.cache)
    assert await bench.settle() is None
    assert bench.condition("StatusIncomplete") == {}


async def test_a_proxys_404_does_not_mean_that_the_job_is_deleted(bench: Bench) -> None:
    """An answer about the job is a Status object. A job that counts as deleted would never be managed again."""
    away = NotFound("default backend - 404", status=404)
    bench.kube.failures = lambda verb, kind, namespace, name: away if verb == "patch_status" else None
    with pytest.raises(NotFound):
        await bench.settle()
    bench.kube.failures = lambda verb, kind, namespace, name: None
    await bench.settle()
    assert bench.status["phase"]
