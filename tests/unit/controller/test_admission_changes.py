"""An admission policy that sets a field of a child back ends the passes: the operator does not write forever."""

from dataclasses import replace

import pytest

from pstraining.api.conditions import Reason
from pstraining.controller.reconciler import REFUSED_DELAY
from pstraining.core.actions import Apply, Kind, PatchStatus, Plan
from pstraining.core.facts import Facts, Unreadable
from pstraining.kube.errors import Refused, Transient
from pstraining.resources.launcher import LauncherFiles
from tests.support.fakekube_decisions import DECISIONS, plan
from tests.unit.controller.test_reconciler import KEY, Bench

pytestmark = pytest.mark.asyncio


async def test_a_field_that_an_admission_policy_sets_back_ends_the_passes() -> None:
    """The API server stores nothing where a mutating webhook sets the former value, so no watch event follows."""
    policy = {"n": "theirs"}

    def persistent(facts: Facts | Unreadable, launcher: LauncherFiles) -> Plan:
        found = facts.snapshot.child(Kind.CONFIG_MAP, "digits")
        if found is None:
            return plan(facts, launcher)
        body = {**found.manifest, "data": policy}  # what the API server stores instead of ours
        return Plan((Apply(Kind.CONFIG_MAP, "digits", found.uid, body, Reason.DRIFTED),))

    bench = Bench(replace(DECISIONS, plan=persistent))
    bench.submit()
    await bench.settle()
    bench.kube.writes()
    assert await bench.reconciler.reconcile(KEY) is None, "the next pass follows an event"
    assert [request[:2] for request in bench.kube.writes()] == [("apply", "ConfigMap")]
    policy["n"] = "other"
    assert await bench.reconciler.reconcile(KEY) == 0.0, "a change that is stored is followed by a pass"


async def test_a_report_to_kueue_is_repeated_although_an_object_of_the_pass_is_invalid() -> None:
    report = PatchStatus(Kind.WORKLOAD, "w", "u", "1", {}, Reason.PODS_REPORTED)

    def reporting(facts: Facts | Unreadable, launcher: LauncherFiles) -> Plan:
        return Plan((report, *plan(facts, launcher).actions))

    def failure(verb: str, kind: str, *_: str) -> Exception | None:
        if kind == Kind.WORKLOAD:
            return Transient('failed calling webhook "vworkload.kb.io": no endpoints available', status=500)
        return Refused("unknown field", status=400) if (verb, kind) == ("create", "Deployment") else None

    bench = Bench(replace(DECISIONS, plan=reporting))
    bench.submit()
    bench.kube.failures = failure
    await bench.settle()
    assert await bench.reconciler.reconcile(KEY) == REFUSED_DELAY
