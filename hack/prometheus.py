"""A Prometheus process that scrapes a cluster as the chart's PodMonitors define.

The Prometheus operator translates PodMonitors to scrape configurations; `configuration` does the same for the fields
that the chart uses. In contrast to the operator, pods are scraped through the API server, which also works from outside
the cluster.
"""

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
READY_S = 30
"""Seconds until Prometheus must be ready after its start."""


@dataclass(frozen=True)
class Access:
    """The access to the API server: its address and files of TLS.

    Attributes:
        host: the server's address, `https://...`.
    """

    host: str
    ca: str
    certificate: str
    key: str

    @property
    def tls(self) -> Object:
        """Prometheus' configuration of TLS."""
        return {"ca_file": self.ca, "cert_file": self.certificate, "key_file": self.key}


@dataclass(frozen=True)
class Series:
    """A time series: its labels, and pairs of a time in seconds since 1970 and a value."""

    labels: dict[str, str]
    values: tuple[tuple[float, float], ...]


def configuration(monitors: Iterable[Object], access: Access, rules: Path, *, seconds: int = 1) -> Object:
    """Return Prometheus' configuration.

    Args:
        monitors: PodMonitors, as rendered by the chart.
        access: the access to the cluster.
        rules: the file with the alerts.
        seconds: interval of scrapes and of evaluations.
    """
    every = f"{seconds}s"
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(rules)],
        "scrape_configs": [*(_pods(monitor, access) for monitor in monitors), _kubelets(access)],
    }


def _pods(monitor: Object, access: Access) -> Object:
    """Return the scrape configuration for a PodMonitor with one endpoint."""
    metadata, spec = monitor["metadata"], monitor["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    namespaces = spec.get("namespaceSelector") or {"matchNames": [metadata["namespace"]]}
    meta = "__meta_kubernetes_pod_"
    relabel: list[Object] = [_keep(["phase"], "Pending|Running|Unknown", meta)]
    for label, value in (spec["selector"].get("matchLabels") or {}).items():
        relabel.append(_keep([f"label_{_safe(label)}"], re.escape(value), meta))
    for expression in spec["selector"].get("matchExpressions") or ():
        if expression["operator"] != "Exists":
            raise ValueError(f"only Exists is known here, not {expression['operator']}")
        relabel.append(_keep([f"labelpresent_{_safe(expression['key'])}"], "true", meta))
    relabel.append(_keep(["container_port_name"], re.escape(endpoint["port"]), meta))
    named = {"namespace": "__meta_kubernetes_namespace", "pod": f"{meta}name", "container": f"{meta}container_name"}
    labels = {_safe(label): f"{meta}label_{_safe(label)}" for label in spec.get("podTargetLabels") or ()}
    for target, source in (named | labels | {"instance": "__address__"}).items():
        relabel.append({"source_labels": [source], "regex": "(.+)", "target_label": target})
    job = f"{metadata['namespace']}/{metadata['name']}"
    constants = {"job": job, "endpoint": endpoint["port"]}
    relabel += [{"target_label": target, "replacement": value} for target, value in constants.items()]
    sources = ["namespace", "pod", f"{meta}container_port_number"]
    relabel += _through_api_server(access, sources, "/api/v1/namespaces/$1/pods/$2:$3/proxy/metrics")
    selected = {} if namespaces.get("any") else {"namespaces": {"names": namespaces["matchNames"]}}
    return _scrape(f"podMonitor/{job}", "pod", access, relabel) | {
        "kubernetes_sd_configs": [_discovery("pod", access) | selected]
    }


def _kubelets(access: Access) -> Object:
    """Return the scrape configuration for the kubelets' metrics of containers, which most installations scrape."""
    relabel = _through_api_server(access, ["__meta_kubernetes_node_name"], "/api/v1/nodes/$1/proxy/metrics/resource")
    return _scrape("kubelet", "node", access, relabel) | {"honor_labels": True}


def _scrape(name: str, role: str, access: Access, relabel: list[Object]) -> Object:
    return {
        "job_name": name,
        "scheme": "https",
        "tls_config": access.tls,
        "kubernetes_sd_configs": [_discovery(role, access)],
        "relabel_configs": relabel,
    }


def _discovery(role: str, access: Access) -> Object:
    return {"role": role, "api_server": access.host, "tls_config": access.tls}


def _keep(sources: list[str], regex: str, prefix: str) -> Object:
    return {"action": "keep", "source_labels": [prefix + source for source in sources], "regex": regex}


def _through_api_server(access: Access, sources: list[str], path: str) -> list[Object]:
    pattern = ";".join(["(.+)"] * len(sources))
    return [
        {"source_labels": sources, "regex": pattern, "replacement": path, "target_label": "__metrics_path__"},
        {"target_label": "__address__", "replacement": urllib.parse.urlsplit(access.host).netloc},
    ]


def _safe(label: str) -> str:
    return re.sub(r"\W", "_", label)


class Prometheus:
    """A Prometheus process, which runs until `stop`.

    Raises:
        RuntimeError: the process does not start; the message contains its output.
    """

    def __init__(self, program: str, folder: Path, settings: Mapping[str, Any], port: int) -> None:
        """Start the process in an empty folder, and wait until it is ready."""
        self.url, self._log = f"http://127.0.0.1:{port}", folder / "prometheus.log"
        file = folder / "prometheus.yaml"
        file.write_text(yaml.safe_dump(dict(settings), sort_keys=False))
        options = [f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
        with self._log.open("wb") as log:
            command = [program, *options, f"--web.listen-address=127.0.0.1:{port}"]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + READY_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"Prometheus does not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait(10)

    def now(self, expression: str) -> list[Series]:
        """Return the present values of an expression."""
        found = ask(self.url, "query", query=expression)["result"]
        return [Series(r["metric"], (_point(r["value"]),)) for r in found]

    def rules(self) -> list[Object]:
        """Return the alerts with their states."""
        return [rule for group in ask(self.url, "rules")["groups"] for rule in group["rules"]]

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def ask(url: str, path: str, **query: str) -> Any:
    """Return the data of a reply of Prometheus' API."""
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
        return json.load(answer)["data"]


def lately(url: str, expression: str, seconds: float) -> list[Series]:
    """Return an expression's values in the last `seconds`, at most about 300."""
    end, step = time.time(), max(1.0, seconds / 300)
    query = {"query": expression, "start": f"{end - seconds}", "end": f"{end}", "step": f"{step}"}
    found = ask(url, "query_range", **query)["result"]
    return [Series(r["metric"], tuple(_point(value) for value in r["values"])) for r in found]


def _point(value: list[Any]) -> tuple[float, float]:
    return float(value[0]), float(value[1])
