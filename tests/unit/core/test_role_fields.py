"""Fields that every role has work for every role."""

from datetime import timedelta

import pytest

from pstraining.api.run_policy import FailureReason
from pstraining.core.policies import budgets
from pstraining.core.policies.failures import Consequence, decide
from tests.support.builders import job, typed

ROLES = ("ps", "worker", "chief", "evaluator")


@pytest.mark.parametrize("role", ROLES)
def test_restart_policy(role: str) -> None:
    made = typed(job(spec={role: {"restartPolicy": "Never"}}))
    for other in ROLES:
        found = decide(made, other, FailureReason.ERROR, 1).consequence
        assert (found is Consequence.FAIL_JOB) == (other == role)


@pytest.mark.parametrize("role", ROLES)
def test_limit(role: str) -> None:
    made = typed(job(spec={role: {"backoff": {"limit": 2}}, "runPolicy": {"backoffLimit": 5}}))
    assert {r: budgets.limit(made, r) for r in ROLES} == {r: 2 if r == role else 5 for r in ROLES}


@pytest.mark.parametrize("role", ROLES)
def test_window(role: str) -> None:
    made = typed(job(spec={role: {"backoff": {"windowSeconds": 60}}}))
    minute = timedelta(minutes=1)
    assert {r: budgets.window(made, r) for r in ROLES} == {r: minute if r == role else None for r in ROLES}


def test_a_rule_with_reasons_matches_only_them() -> None:
    made = typed(job(spec={"failurePolicy": {"rules": [{"reasons": ["OOMKilled"], "action": "FailJob"}]}}))
    assert decide(made, "worker", FailureReason.OOM_KILLED, 137).rule == 0
    assert decide(made, "worker", FailureReason.ERROR, 1).rule is None
