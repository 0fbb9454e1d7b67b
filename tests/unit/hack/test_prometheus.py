"""The selection of targets by a PodMonitor, as Prometheus evaluates it."""

from pathlib import Path
from typing import Any

import pytest

from hack.prometheus import Access, configuration

ACCESS = Access("https://10.0.0.1:6443", "ca", "certificate", "key")


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
def test_a_monitor_selects_its_own_namespace_or_the_named_ones(given: Any, expected: Any) -> None:
    (discovery,) = scraped(monitor(selector={}, **given))["kubernetes_sd_configs"]
    assert discovery.get("namespaces") == expected


def test_unknown_fields_are_rejected() -> None:
    odd = {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
    with pytest.raises(ValueError, match="not In"):
        scraped(monitor(selector=odd))
