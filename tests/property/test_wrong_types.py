"""A value of a wrong type in a template, at every path, is reported: by `validate`, and in the job's status."""

from typing import Any

import pytest

from pstraining.api.conditions import Condition
from pstraining.cli.validation.documents import wrong_with
from pstraining.cli.validation.schema import Severity, validate
from pstraining.core import planner
from pstraining.core.actions import Outcomes
from pstraining.core.facts import Unreadable, gather
from pstraining.core.observe import observe
from pstraining.core.status import next_status
from tests.property.test_nulls import TEMPLATE, at, paths, whole
from tests.support.builders import LAUNCHER, NOW
from tests.support.copying import copied
from tests.support.soak_marks import ALL

WRONG: tuple[Any, ...] = ([], {}, "x", 7, [7], [[]], {"x": 7}, [{"x": []}], True)
PATHS = sorted(paths(TEMPLATE), key=str)


def with_value(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    found = copied(TEMPLATE)
    *above, last = path
    at(found, above)[last] = value
    return whole(found)


def cases() -> list[tuple[tuple[str | int, ...], Any]]:
    """Return every path with every value, or with one that changes from path to path."""
    return [(path, v) for n, path in enumerate(PATHS) for v in (WRONG if ALL else (WRONG[n % len(WRONG)],))]


def test_no_value_makes_a_pass_or_validate_fail() -> None:
    unreadable = 0
    for path, value in cases():
        job = with_value(path, value)
        findings = wrong_with(copied(job))
        if any(f.severity is Severity.ERROR for f in validate(copied(job))):
            continue  # the API server rejects the job
        facts = gather(observe(job, (), ()), NOW)
        planner.plan(facts, LAUNCHER)
        if isinstance(facts, Unreadable):
            unreadable += 1
            assert any(f.severity is Severity.ERROR for f in findings), (path, value, facts.error)
    assert unreadable


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        (("metadata", "labels"), [7], "metadata.labels must be a valid dictionary"),
        (("spec", "initContainers"), "x", "spec.initContainers must be a valid list"),
        (("spec", "securityContext"), [], "spec.securityContext must be a valid dictionary"),
        (("spec", "tolerations", 0), "x", "spec.tolerations[0] must be a valid dictionary"),
        (("spec", "affinity"), [], "spec.affinity must be a valid dictionary"),
        (("spec", "volumes"), 7, "spec.volumes must be a valid list"),
        (
            ("spec", "containers", 0, "resources", "limits"),
            [7],
            "spec.containers[0].resources.limits must be a valid dictionary",
        ),
        (
            ("spec", "containers", 0, "ports", 0, "containerPort"),
            [],
            "spec.containers[0].ports[0].containerPort must be a valid integer",
        ),
    ],
)
def test_the_status_names_the_field(path: tuple[str | int, ...], value: Any, error: str) -> None:
    facts = gather(observe(with_value(path, value), (), ()), NOW)
    assert planner.plan(facts, LAUNCHER).actions == ()
    (condition,) = next_status(facts, Outcomes())["conditions"]
    assert (condition["type"], condition["status"]) == (Condition.INVALID_TEMPLATE, "True")
    assert condition["message"].startswith("This operator cannot read the job: spec.")
    assert condition["message"].endswith(f".template: {error}")
