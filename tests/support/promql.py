"""The names that a PromQL expression uses, and those that the code exports; covers the syntax of this repository."""

import re
from collections.abc import Mapping
from typing import Any

import yaml
from prometheus_client import CollectorRegistry

from hack.docs.pages import ROOT
from pstraining.api import names
from pstraining.controller import metrics as operator
from pstraining.core.actions import Kind
from pstraining.runtime.telemetry import prometheus as runtime
from pstraining.runtime.telemetry.counters import ChiefCounters, Traffic, WorkerCounters

_GROUPING = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_MATCHERS = re.compile(r"\{([^}]*)\}")
_STRING = re.compile(r'"[^"]*"')
_RANGE = re.compile(r"\[[^\]]*\]|\boffset\s+\w+")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?!\s*\()\b")
_KEYWORDS = {"and", "or", "unless", "bool"}
TARGET = {"namespace", "pod"} | {
    re.sub(r"\W", "_", label) for label in (names.LABEL_JOB, names.LABEL_ROLE, names.LABEL_INDEX)
}
"""Labels that PodMonitors add to every target."""


def filled(expression: str, variables: Mapping[str, str]) -> str:
    """Return an expression with the values of Grafana's variables."""
    return re.sub(r"\$(\w+)", lambda found: variables[found[1]], expression)


def named_metrics(expression: str) -> set[str]:
    """Return the metrics in an expression."""
    text = _RANGE.sub(" ", _MATCHERS.sub(" ", _GROUPING.sub(" ", _STRING.sub('""', expression))))
    return set(_WORD.findall(text)) - _KEYWORDS


def named_labels(expression: str) -> set[str]:
    """Return the labels by which an expression groups, matches or selects."""
    text = _STRING.sub('""', expression)
    grouped = {word for found in _GROUPING.findall(text) for word in _WORD.findall(found)}
    return grouped | {word for found in _MATCHERS.findall(text) for word in _WORD.findall(found)}


def exported() -> dict[str, set[str]]:
    """Return every metric that the operator, a chief and a worker can export, with its own labels."""
    mine = operator.OperatorMetrics(lambda: 0, lambda: 0)
    mine.count_forbidden((), dict)
    mine.passed("wrote", 0.1)
    mine.wrote(Kind.CONFIG_MAP, "create")
    mine.failed(OSError(), retried=True)
    mine.status_changed(("ns", "job"), {}, {"phase": "Running", "worker": {"restarts": 1}})
    chief = ChiefCounters(checkpoint_time=0.0, checkpoint_interval=1.0, scalars={"loss": 0.5})
    tasks = runtime.TaskMetrics(
        worker=WorkerCounters(), chief=chief, links=lambda: {"ps-0": Traffic(1, 2)}, reconnects=lambda: 0
    )
    registry = CollectorRegistry(auto_describe=False)
    registry.register(tasks)
    found: dict[str, set[str]] = {}
    for family in (*mine.registry.collect(), *registry.collect()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def alerts() -> list[dict[str, Any]]:
    """Return the chart's alerts, as their file has them."""
    text = (ROOT / "charts" / "pstraining" / "files" / "alerts.yaml").read_text(encoding="utf-8")
    return [rule for group in yaml.load(text, Loader=yaml.CSafeLoader)["groups"] for rule in group["rules"]]
