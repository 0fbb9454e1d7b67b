"""The troubleshooting page has every reason of a problem, and quotes only real messages."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from hack.docs.pages import ROOT, pages
from pstraining.api.conditions import ALWAYS_PRESENT, Condition, Phase, Reason
from pstraining.api.crd import custom_resource_definition
from pstraining.api.run_policy import FailureReason

PAGE = pages()[ROOT / "docs" / "users" / "troubleshoot.md"]
TEXT = PAGE.path.read_text(encoding="utf-8")
SPANS = {span.text for span in PAGE.spans}
OPERATOR = ROOT / "operator" / "pstraining"
QUIET = {
    "it goes well": {"ChildrenCreated", "Training", "NotRestarting", "NotSuspended", "NotFinished", "JobFinished"},
    "a queue has admitted the job, or the job has left it": {"Admitted", "NotQueued"},
    "why an action is taken, beside what its condition says": {
        *(
            "Desired",
            "NotDesired",
            "Drifted",
            "ClusterMapChanged",
            "NextTerm",
            "NextAttempt",
            "OldTerm",
            "ProgramEnded",
            "TakeOver",
            "QuotaReturned",
            "PodsReported",
            "SwitchLayout",
        ),
    },
}
"""Reasons that need no action and so are missing on the page."""
KUBERNETES = {"Terminating"}
"""Messages of Kubernetes that the page quotes."""
QUOTED = {
    "waiting for PS": "launcher/launch.py",
    "it has not read the chief's attempt": "launcher/terms.py",
    "it runs for layout": "launcher/terms.py",
    "Waiting for Lease": "kube/lease.py",
    "could not be renewed in time; pausing": "kube/lease.py",
    "The API server does not serve PSTrainingJobs yet": "controller/main.py",
    "is not a setting": "controller/settings.py",
    "Retrying in": "controller/reconciler.py",
    "may not be listed": "controller/watch.py",
    "This operator cannot read the job": "core/facts.py",
    "cannot be scheduled": "core/policies/diagnosis.py",
}
"""Quotations from logs and messages, with their source."""


def enums(schema: Mapping[str, Any]) -> Iterator[str]:
    """Return every value of each enumerated field of the API."""
    yield from (value for value in schema.get("enum", ()) if isinstance(value, str))
    for child in (*(schema.get("properties") or {}).values(), schema.get("items")):
        yield from enums(child) if child else ()


SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
KNOWN = {*Reason, *Condition, *Phase, *FailureReason, *enums(SCHEMA), *KUBERNETES}
QUIET_REASONS = {reason for reasons in QUIET.values() for reason in reasons}


@pytest.mark.parametrize("reason", sorted({*Reason} - QUIET_REASONS))
def test_every_reason_of_a_problem_is_on_the_page(reason: str) -> None:
    assert reason in SPANS


@pytest.mark.parametrize("word", [*FailureReason, *Phase, *(c for c in Condition if c not in ALWAYS_PRESENT)])
def test_every_failure_phase_and_unusual_condition_is_on_the_page(word: str) -> None:
    assert word in SPANS


def test_quiet_reasons_are_reasons() -> None:
    assert {*Reason} >= QUIET_REASONS


def test_quoted_messages_exist_in_the_source() -> None:
    assert not {text for text in SPANS if re.fullmatch(r"[A-Z]+[a-z][A-Za-z]*", text)} - KNOWN


@pytest.mark.parametrize(("words", "file"), QUOTED.items())
def test_quoted_output_is_printed(words: str, file: str) -> None:
    assert words in re.sub(r"\s+", " ", TEXT)
    assert words in (OPERATOR / file).read_text(encoding="utf-8")


def test_events_of_the_runtime_are_documented() -> None:
    events = set(re.findall(r"^\| `([a-z_]+)` \|", TEXT, re.MULTILINE)) | {"state_transfer"}
    source = "".join(path.read_text(encoding="utf-8") for path in sorted((OPERATOR / "runtime").rglob("*.py")))
    reported = set(re.findall(r"\bevent\(\s*\"([a-z_]+)\"", source))
    assert len(events) > 10
    assert not events - reported


def test_metrics_are_the_operators() -> None:
    source = (OPERATOR / "controller" / "metrics.py").read_text(encoding="utf-8")
    metrics = {text.removesuffix("_total") for text in SPANS if text.startswith("pstraining_")}
    assert metrics
    assert not [m for m in metrics if f'"{m}"' not in source]
