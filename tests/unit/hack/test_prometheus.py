"""What a PodMonitor means to Prometheus, and how the dashboard is drawn."""

import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hack.dashboard import ROWS
from hack.picture import filled, picture, shown
from hack.prometheus import Access, Series, configuration

ACCESS = Access("https://10.0.0.1:6443", "ca", "certificate", "key")
SVG = "{http://www.w3.org/2000/svg}"


def monitor(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "jobs", "namespace": "system"},
        "spec": {"podMetricsEndpoints": [{"port": "pst-metrics"}], **spec},
    }


def scraped(body: dict[str, Any]) -> dict[str, Any]:
    found = configuration([body], ACCESS, Path("rules.yaml"))
    assert found["rule_files"] == ["rules.yaml"]
    first, kubelet = found["scrape_configs"]
    assert kubelet["kubernetes_sd_configs"][0]["role"] == "node"
    return dict(first)


def kept(config: dict[str, Any]) -> dict[str, str]:
    return {"".join(r["source_labels"]): r["regex"] for r in config["relabel_configs"] if r.get("action") == "keep"}


def test_a_monitor_selects_pods_by_labels_and_port_and_keeps_the_labels_it_names() -> None:
    exists = [{"key": "example.org/job-name", "operator": "Exists"}]
    selector = {"matchLabels": {"app": "a.b"}, "matchExpressions": exists}
    config = scraped(monitor(selector=selector, podTargetLabels=["example.org/job-name"]))
    assert kept(config) == {
        "__meta_kubernetes_pod_phase": "Pending|Running|Unknown",
        "__meta_kubernetes_pod_label_app": r"a\.b",
        "__meta_kubernetes_pod_labelpresent_example_org_job_name": "true",
        "__meta_kubernetes_pod_container_port_name": r"pst\-metrics",
    }
    targets = {r["target_label"]: r for r in config["relabel_configs"] if "target_label" in r}
    assert targets["example_org_job_name"]["source_labels"] == ["__meta_kubernetes_pod_label_example_org_job_name"]
    assert targets["job"]["replacement"] == "system/jobs"
    assert targets["__address__"]["replacement"] == "10.0.0.1:6443"
    assert targets["__metrics_path__"]["replacement"] == "/api/v1/namespaces/$1/pods/$2:$3/proxy/metrics"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"names": ["system"]}),
        ({"namespaceSelector": {"any": True}}, None),
        ({"namespaceSelector": {"matchNames": ["a", "b"]}}, {"names": ["a", "b"]}),
    ],
)
def test_a_monitor_looks_in_its_own_namespace_or_where_it_says(given: Any, expected: Any) -> None:
    (discovery,) = scraped(monitor(selector={}, **given))["kubernetes_sd_configs"]
    assert discovery.get("namespaces") == expected


def test_what_is_not_known_is_refused() -> None:
    odd = {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
    with pytest.raises(ValueError, match="not In"):
        scraped(monitor(selector=odd))


def test_every_panel_is_drawn_with_its_lines_names_and_gaps() -> None:
    values = ((0.0, 1.0), (1.0, 2500.0), (2.0, math.nan), (3.0, 4.0))
    line = Series({"peer": "ps-<0>", "pod": "p"}, values)
    drawn = picture(lambda expression: [line], {"namespace": "n", "job": "j", "__rate_interval": "1m"})
    graphs = ElementTree.fromstring(drawn).findall(f"{SVG}g")
    panels = [panel for row in ROWS.values() for panel in row]
    assert [graph.findtext(f"{SVG}text") for graph in graphs] == [panel.title for panel in panels]
    assert all(
        len(graph.findall(f"{SVG}polyline")) == 2 * len(p.queries) for graph, p in zip(graphs, panels, strict=True)
    )
    assert "Job n/j" in drawn
    assert "ps-&lt;0&gt;: 4 B/s" in drawn
    assert "no data" not in drawn


def test_a_panel_without_data_says_so() -> None:
    drawn = picture(lambda expression: [], {"namespace": "n", "job": "j", "__rate_interval": "1m"})
    assert drawn.count("no data") == sum(len(row) for row in ROWS.values())


def test_variables_are_filled_in() -> None:
    assert filled('a{x="$job"}[$__rate_interval]', {"job": "j", "__rate_interval": "1m"}) == 'a{x="j"}[1m]'


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.25, "percentunit", "25%"),
        (1234.0, "short", "1.23 k"),
        (2_500_000.0, "Bps", "2.5 MB/s"),
        (3e9, "bytes", "3 GB"),
        (12.0, "bytes", "12 B"),
        (0.05, "s", "0.05 s"),
        (math.nan, "s", "-"),
        (7.0, "short", "7"),
    ],
)
def test_values_are_short(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text
