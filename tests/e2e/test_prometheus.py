"""A real Prometheus scrapes a real job as the chart's PodMonitors define: panels have data, alerts report a fault."""

import json
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.prometheus import Access, Prometheus, configuration, lately
from localcluster import faults
from tests.e2e.conftest import OPERATOR_IMAGE, RELEASE, RELEASE_NAMESPACE, ROOT, cluster_command
from tests.support.examples import Example
from tests.support.kube import DeadlineError, Kube, wait_for
from tests.support.ports import free_port
from tests.support.promql import filled, named_metrics
from tests.support.soak_marks import in_all

pytestmark = pytest.mark.cluster

CHART = ROOT / "charts" / "pstraining"
SPEC = {
    "training": {"mode": "Sync", "steps": 10_000_000},
    "ps": {"replicas": 1, "standby": {"mode": "Hot"}},
}
MONITORED = {name: {"enabled": True} for name in ("podMonitor", "jobsPodMonitor", "rules", "dashboard")}
RATE = "10s"
SHOWN_S = 120
"""The dashboard's range, in seconds."""


def rendered(helm: str, namespace: str) -> dict[str, list[Any]]:
    """Return the chart's objects with all monitoring options, by kind."""
    command = [helm, "template", RELEASE, str(CHART), "-n", namespace, "--kube-version", "1.34", "--values", "-"]
    command += OPERATOR_IMAGE
    text = json.dumps({"metrics": MONITORED})
    done = subprocess.run(command, input=text, check=True, capture_output=True, text=True)
    found: dict[str, list[Any]] = {}
    for item in yaml.safe_load_all(done.stdout):
        found.setdefault(item["kind"], []).append(item)
    return found


@pytest.fixture
def chart(helm: str, installed: str) -> dict[str, list[Any]]:
    return rendered(helm, installed)


@pytest.fixture
def prometheus(kube: Kube, chart: dict[str, list[Any]], namespace: str, tmp_path: Path) -> Iterator[Prometheus]:
    """Run Prometheus with the chart's alerts, without their delays, for the jobs of one namespace."""
    (rule,) = chart["PrometheusRule"]
    for group in rule["spec"]["groups"]:
        for alert in group["rules"]:
            alert.pop("for", None)
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump(rule["spec"]))
    own = kube.configuration
    access = Access(kube.host, str(own.ssl_ca_cert), str(own.cert_file), str(own.key_file))
    for monitor in chart["PodMonitor"]:
        # Pods of an earlier test's jobs may still be terminating.
        if monitor["spec"].get("namespaceSelector") == {"any": True}:
            monitor["spec"]["namespaceSelector"] = {"matchNames": [namespace]}
    settings = configuration(chart["PodMonitor"], access, rules)
    running = Prometheus(cluster_command("tool", "prometheus"), tmp_path, settings, free_port())
    yield running
    running.stop()


def firing(prometheus: Prometheus, namespace: str) -> set[str]:
    """Return the firing alerts on the jobs of a namespace, and those without a job."""
    ours = {namespace, RELEASE_NAMESPACE, None}
    return {
        rule["name"]
        for rule in prometheus.rules()
        for alert in rule["alerts"]
        if alert["state"] == "firing" and alert["labels"].get("namespace") in ours
    }


def failover_alert(prometheus: Prometheus) -> dict[str, Any] | None:
    """Return the alert on a failover that a chief reports, once it fires."""
    (rule,) = (rule for rule in prometheus.rules() if rule["name"] == "PSTrainingTookOver")
    found = (a for a in rule["alerts"] if a["state"] == "firing" and "pstraining_dev_job_name" in a["labels"])
    return next(found, None)


@in_all("tests/chart/test_alerts.py::test_an_alert_fires")  # Prometheus runs for minutes
def test_every_panel_has_data_and_a_lost_server_raises_an_alert(
    kube: Kube, prometheus: Prometheus, chart: dict[str, list[Any]], namespace: str, shared: Path
) -> None:
    # Panels about the operator's actions have data only if it acts while it is scraped.
    wait_for(lambda: prometheus.now("pstraining_leader"), "the operator is scraped", every=0.5)
    example = Example.start(kube, namespace, "digits", shared, SPEC)
    variables = {"namespace": namespace, "job": example.name, "__rate_interval": RATE}
    board = json.loads(chart["ConfigMap"][0]["data"]["pstraining.json"])
    queries = [
        (panel["title"], filled(target["expr"], variables))
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]
    example.wait_event("checkpoint")

    def has_data(expression: str) -> bool:
        """Whether a panel has data within the range; a panel of durations is empty while nothing happens."""
        lines = lately(prometheus.url, expression, SHOWN_S)
        return any(math.isfinite(value) for line in lines for _, value in line.values)

    def empty() -> list[tuple[str, str]]:
        return [query for query in queries if not has_data(query[1])]

    try:
        wait_for(lambda: not empty(), "every panel has data", 180, every=1)
    except DeadlineError as error:
        raise DeadlineError(f"{error}: {empty()}") from None
    labels = prometheus.now("pstraining_global_step")[0].labels
    expected = {"namespace": namespace, "pstraining_dev_job_name": example.name, "pstraining_dev_role": "chief"}
    assert expected.items() <= labels.items()
    _alerts_can_be_asked(prometheus)
    try:
        wait_for(lambda: not firing(prometheus, namespace), "no alert fires on a job that is well", 60, every=1)
    except DeadlineError as error:
        raise DeadlineError(f"{error}: {firing(prometheus, namespace)}") from None

    faults.kill_container(f"{namespace}/{example.pod('ps')}")
    alert = wait_for(lambda: failover_alert(prometheus), "the alert on the take-over fires", 180, every=0.5)
    assert alert["labels"]["severity"] == "info"
    assert alert["labels"]["namespace"] == namespace
    assert alert["annotations"]["summary"] == f"Failover of a parameter server to its standby: {example.name}"
    assert alert["annotations"]["runbook"].startswith("docs/operators/alerts.md#pstrainingtookover ")
    wait_for(
        lambda: not firing(prometheus, namespace) - {"PSTrainingTookOver"}, "no other alert fires for long", 60, every=1
    )


def _alerts_can_be_asked(prometheus: Prometheus) -> None:
    """Demand that each alert is evaluated without an error, and that its metrics exist."""
    for rule in prometheus.rules():
        assert (rule["health"], rule.get("lastError", "")) == ("ok", ""), rule["name"]
        for metric in named_metrics(rule["query"]):
            assert prometheus.now(f"count({metric})"), f"{rule['name']}: {metric}"
