"""Jobs without a queue, in a namespace with a default queue of Kueue."""

from typing import Any

import pytest

from pstraining.core.actions import Kind
from pstraining.resources import kueue
from tests.support.queued_world import queued


@pytest.mark.parametrize("spec", [{}, {"managedBy": "kueue.x-k8s.io/multikueue"}], ids=["", "MultiKueue"])
def test_a_job_without_a_queue_gets_the_default_queue_before_it_has_pods(spec: dict[str, Any]) -> None:
    """A job without a queue gets the default queue before it has pods, because Kueue would admit its pods one by
    one.
    """
    world = queued(quota=0, **spec)
    world.default_queue = True
    assert world.job is not None
    world.job["metadata"]["labels"] = {"team": "a"}
    world.reconcile()
    assert world.job["metadata"]["labels"] == {"team": "a", kueue.LABEL_QUEUE: "default"}
    assert [kind for _, kind, _ in world.writes] == [Kind.PS_TRAINING_JOB]
    world.run()
    assert not world.pods
    assert world.workload["spec"]["queueName"] == "default"


@pytest.mark.parametrize("spec", [{}, {"runPolicy": {"suspend": True}}], ids=["runs", "suspended"])
def test_a_job_that_does_not_start_gets_no_queue(spec: dict[str, Any]) -> None:
    world = queued(**spec)
    assert world.job is not None
    world.job["metadata"]["labels"] = {}
    world.run()
    world.default_queue = True
    world.run()
    assert world.job["metadata"]["labels"] == {}
