"""Reconcilers over a fake API server, for tests of single effects."""

from pstraining.controller.clocks import ReconcilerClocks
from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.reconciler import Decisions, Reconciler
from pstraining.controller.watch_state import WatchState
from pstraining.core import facts, planner, status
from pstraining.core.policies.diagnosis import unexplained
from pstraining.core.reduced_status import reduced_status
from tests.support.builders import LAUNCHER, NOW
from tests.support.fakekube import FakeKube

CORE = Decisions(facts.gather, planner.plan, status.next_status, status.events, reduced_status, unexplained)
"""The decisions of the operator."""
AT_NOW = ReconcilerClocks(lambda: NOW)


def reconciler_at_now(
    kube: FakeKube,
    state: WatchState,
    metrics: OperatorMetrics | None = None,
    decisions: Decisions = CORE,
    clocks: ReconcilerClocks = AT_NOW,
) -> Reconciler:
    """Return a reconciler whose clock shows `NOW`."""
    return Reconciler(
        watch_state=state,
        port=kube,
        decisions=decisions,
        launcher=LAUNCHER,
        metrics=metrics or OperatorMetrics(lambda: 0, lambda: 0),
        instance="op-0",
        clocks=clocks,
    )
