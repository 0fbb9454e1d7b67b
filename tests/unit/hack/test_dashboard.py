"""The dashboard uses exported metrics, and its panels leave no holes."""

import json
import re
from itertools import combinations
from typing import Any

import pytest

from hack.docs.pages import ROOT
from tests.support.promql import TARGET, exported, named_labels, named_metrics

BODY: dict[str, Any] = json.loads((ROOT / "charts/pstraining/files/dashboard.json").read_text(encoding="utf-8"))
COLUMNS = 24
"""The columns of Grafana's grid."""
PANELS = [panel for panel in BODY["panels"] if panel["type"] != "row"]
OTHERS = {"container_memory_working_set_bytes": {"container"}}
"""Metrics of the kubelet."""
EXPORTED = exported() | OTHERS
VARIABLES = {f"${variable['name']}" for variable in BODY["templating"]["list"]} | {"$__rate_interval"}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_uses_only_exported_metrics(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        asked = named_metrics(target["expr"])
        assert asked
        assert asked <= EXPORTED.keys()
        known = {label for name in asked for label in EXPORTED[name]} | TARGET
        assert named_labels(target["expr"]) <= known
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known
        assert set(re.findall(r"\$\w+", target["expr"])) <= VARIABLES


def test_variables_use_only_exported_metrics() -> None:
    for variable in BODY["templating"]["list"][1:]:
        assert re.match(r"label_values\((\w+)", variable["definition"])[1] in EXPORTED  # type: ignore[index]


def test_panels_lie_beside_each_other() -> None:
    taken = [panel["gridPos"] for panel in BODY["panels"]]
    assert all(at["x"] + at["w"] <= COLUMNS for at in taken)
    for one, other in combinations(taken, 2):
        apart = one["x"] >= other["x"] + other["w"] or other["x"] >= one["x"] + one["w"]
        assert apart or one["y"] >= other["y"] + other["h"] or other["y"] >= one["y"] + one["h"]
    assert len({panel["id"] for panel in BODY["panels"]}) == len(BODY["panels"])
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
