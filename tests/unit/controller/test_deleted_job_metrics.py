"""The metrics of a job that is being deleted, and that finalizers or its pods still keep."""

from datetime import timedelta

import pytest

from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.watch_state import WatchState
from tests.support.builders import NOW, stamp
from tests.support.fakekube import FakeKube
from tests.support.fakekube_decisions import DECISIONS
from tests.support.reconcilers import reconciler_at_now

pytestmark = pytest.mark.asyncio
KEY = ("default", "digits")
WAITS = {
    "phase": "Pending",
    "conditions": [{"type": "Running", "status": "False", "lastTransitionTime": stamp(NOW - timedelta(hours=1))}],
}


async def test_a_job_in_deletion_waits_for_nothing() -> None:
    """Otherwise, the alert PSTrainingJobWaits would fire for a job on a lost node until the node is back."""
    kube, state = FakeKube(), WatchState()
    metrics = OperatorMetrics(lambda: 0, lambda: 0, clock=lambda: NOW)
    reconciler = reconciler_at_now(kube, state, metrics, DECISIONS)
    value = metrics.registry.get_sample_value
    metrics.record_status(KEY, WAITS)
    assert value("pstraining_longest_seconds", {"state": "Pending"}) == 3600
    metadata = {"name": "digits", "deletionTimestamp": stamp(NOW), "finalizers": ["foregroundDeletion"]}
    made = kube.put({"apiVersion": "pstraining.dev/v1alpha1", "kind": "PSTrainingJob", "metadata": metadata})
    kube.put(made, **WAITS)
    kube.deliver(state.cache)
    assert await reconciler.reconcile(KEY) is None
    assert value("pstraining_longest_seconds", {"state": "Pending"}) == 0
    assert value("pstraining_jobs", {"phase": "Pending"}) == 1
