"""The reasons in the metric of restarts, also of those that count against no failure budget."""

from typing import Any

import pytest

from pstraining.api import names
from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.watch_state import WatchState
from tests.support.builders import job, pod, terminated
from tests.support.fakekube import FakeKube
from tests.support.reconcilers import reconciler_at_now

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
    reconciler = reconciler_at_now(kube, state, metrics)

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
