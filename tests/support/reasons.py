"""A check that the reference lists every reason that a test encounters."""

from collections.abc import Mapping
from typing import Any

from pstraining.api.condition_reasons import OF_ACTIONS, OF_CONDITIONS
from pstraining.api.conditions import Condition
from pstraining.core.actions import Plan


def documented(status: Mapping[str, Any], made: Plan) -> None:
    """Demand that the reference lists every reason of a status and of a plan, as it is spelled there."""
    for condition in status.get("conditions", ()):
        reasons = OF_CONDITIONS[Condition(condition["type"])]
        known = reasons.true if condition["status"] == "True" else reasons.false
        assert condition["reason"] in known, f"OF_CONDITIONS lacks {condition['status']} of {condition}"
    assert not {action.reason for action in made.actions} - {*OF_ACTIONS}, made
