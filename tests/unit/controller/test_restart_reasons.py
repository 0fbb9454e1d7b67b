"""The reasons in the metric of restarts, also of those that count against no failure budget."""

from typing import Any

import pytest

from pstraining.api import names
from pstraining.controller.clocks import ReconcilerClocks
from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.reconciler import Decisions, Reconciler
from pstraining.controller.watch_state import WatchState
from pstraining.core import facts, planner, status
from pstraining.core.policies.diagnosis import unexplained
from pstraining.core.reduced_status import reduced_status
from tests.support.builders import LAUNCHER, NOW, job, pod, terminated
from tests.support.fakekube import FakeKube

pytestmark = pytest.mark.asyncio
KEY = ("default", "digits")
RULE = {"failurePolicy": {"rules": [{"action": "Ignore", "onReasons": ["OOMKilled"]}]}}


@pytest.mark.parametrize(
    ("reason", "spec", "found"),
    [
        ("Deleted", {}, {"deleting": True}),
        ("Evicted", {}, {"deleting": True, "disrupted": True}),
        ("Error", {}, {"restarts": 1, "last": terminated(1)}),
        ("OOMKilled", RULE, {"restarts": 1, "last": terminated(137, reason="OOMKilled")}),
        ("Replaced", {}, {"deleting": True, "replaced": True}),
    ],
)
async def test_a_restart_is_counted_with_its_cause(reason: str, spec: dict[str, Any], found: dict[str, Any]) -> None:
    kube, state, metrics = FakeKube(), WatchState(), OperatorMetrics(lambda: 0, lambda: 0)
    decisions = Decisions(facts.gather, planner.plan, status.next_status, status.events, reduced_status, unexplained)
    reconciler = Reconciler(
        watch_state=state,
        port=kube,
        decisions=decisions,
        launcher=LAUNCHER,
        metrics=metrics,
        instance="op-0",
        clocks=ReconcilerClocks(lambda: NOW),
    )

    async def run() -> None:
        kube.deliver(state.cache)
        while await reconciler.reconcile(KEY) == 0.0:
            kube.deliver(state.cache)

    replaced = found.pop("replaced", False)
    kube.put(job(spec=spec))
    await run()
    uid = kube.objects["PSTrainingJob", *KEY]["metadata"]["uid"]
    server = pod(names.PS, job_uid=uid, **found)
    server["metadata"]["annotations"] = {names.ANNOTATION_REPLACED: "true"} if replaced else {}
    kube.put(server, **server["status"])
    await run()
    counted = {
        sample.labels["reason"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "pstraining_restarts_total" and sample.value
    }
    assert counted == {reason: 1}
