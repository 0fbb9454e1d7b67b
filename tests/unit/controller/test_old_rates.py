"""The rate and the estimate in the progress of a job that does not train."""

from dataclasses import replace

import pytest

from tests.support.fakekube_decisions import DECISIONS
from tests.unit.controller.test_reconciler import KEY, Bench

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("phase", ["Running", "Suspended", "Queued", "Succeeded", "Failed"])
async def test_a_job_that_does_not_train_has_no_rate(phase: str) -> None:
    bench = Bench(replace(DECISIONS, next_status=lambda facts, outcomes: {"phase": phase}))
    version = str(bench.submit()["metadata"]["resourceVersion"])
    rates = {"samplesPerSecond": "12.5", "estimatedRemainingSeconds": 60}
    await bench.kube.patch_progress(*KEY, version, {"step": 7, **rates})
    bench.kube.deliver(bench.cache)
    await bench.settle()
    assert bench.stored()["status"]["training"] == ({"step": 7, **rates} if phase == "Running" else {"step": 7})
    bench.kube.writes()
    assert await bench.reconciler.reconcile(KEY) is None
    assert bench.kube.writes() == []
