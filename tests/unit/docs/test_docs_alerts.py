"""Every alert of the chart has a section on the page of alerts, and uses exported metrics."""

import re
from typing import Any

import pytest

from hack.docs.pages import ROOT, pages
from tests.support.promql import TARGET, alerts, exported, named_labels, named_metrics
from tests.unit.docs.test_docs_commands import problem

PAGE = pages()[ROOT / "docs" / "operators" / "alerts.md"]
SECTIONS = dict(
    re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE.path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
)
ALERTS = {rule["alert"]: rule for rule in alerts()}
EXPORTED = exported()
OF_THE_OPERATOR = ("PSTrainingOperatorDown", "PSTrainingOperatorNotLeading")
"""Alerts that cover all jobs together."""


def test_every_alert_has_its_section_and_the_other_way_round() -> None:
    assert list(SECTIONS) == list(ALERTS), "in the same order"


@pytest.mark.parametrize("name", ALERTS)
def test_a_section_says_what_it_means_and_what_to_do(name: str) -> None:
    assert re.findall(r"^\*\*(Meaning|Impact|Look at|Do)\b", SECTIONS[name], re.MULTILINE) == [
        *("Meaning", "Impact", "Look at", "Do")
    ]
    assert "\n    kubectl " in SECTIONS[name], "a command shows more"


@pytest.mark.parametrize("rule", ALERTS.values(), ids=list(ALERTS))
def test_an_alert_uses_only_exported_metrics(rule: dict[str, Any]) -> None:
    asked = named_metrics(rule["expr"])
    assert asked
    assert asked <= EXPORTED.keys()
    own = {label for name in asked for label in EXPORTED[name]}
    assert named_labels(rule["expr"]) <= own | TARGET


@pytest.mark.parametrize("rule", ALERTS.values(), ids=list(ALERTS))
def test_an_alert_has_all_annotations(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description"}
    used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    assert used <= named_labels(rule["expr"])


@pytest.mark.parametrize("rule", [rule for name, rule in ALERTS.items() if name not in OF_THE_OPERATOR])
def test_an_alert_names_the_job_or_the_command_that_does(rule: dict[str, Any]) -> None:
    commands = re.findall(r"`(kubectl [^`]+)`", re.sub(r"\{\{.*?\}\}", "NAME", rule["annotations"]["description"]))
    assert commands or "$labels.pstraining_dev_job_name" in rule["annotations"]["summary"]
    assert not [wrong for command in commands if (wrong := problem(command))]


@pytest.mark.parametrize(
    ("expression", "metrics", "labels"),
    [
        ('sum by (a) (rate(x_total{b="y z",c!~"d"}[5m])) / max(e) > 0.1', {"x_total", "e"}, {"a", "b", "c"}),
        ("a < on (b) group_left () (0.5 * quantile by (b) (0.5, c))", {"a", "c"}, {"b"}),
        ("time() - a > 600 and on (b) changes(c[10m]) > 0", {"a", "c"}, {"b"}),
        ("a == 0 and on (b) c offset 10m", {"a", "c"}, {"b"}),
    ],
)
def test_expressions_are_read(expression: str, metrics: set[str], labels: set[str]) -> None:
    assert named_metrics(expression) == metrics
    assert named_labels(expression) == labels
