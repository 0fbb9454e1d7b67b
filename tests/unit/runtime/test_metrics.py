"""The response to a scrape, and the handling of a scrape that fails."""

import json
import socket
import urllib.request
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pstraining.api import contract
from pstraining.runtime.telemetry import prometheus
from pstraining.runtime.telemetry.counters import ChiefCounters, Traffic, WorkerCounters


def everything() -> prometheus.TaskMetrics:
    worker = WorkerCounters()
    for step in (3, 5):
        worker.record_step(step, 0.5, samples=32, applied=True, staleness=step - 3)
    worker.left_out = 1
    chief = ChiefCounters(
        step=5,
        epoch=2,
        loss=0.25,
        workers=3,
        scalars={"val_loss": 0.75},
        checkpoint_failures=2,
        checkpoint_interval=7.5,
        tables={"items": (7, {"inserted": 9, "evicted": 2})},
    )
    return prometheus.TaskMetrics(
        worker=worker,
        chief=chief,
        links=lambda: {"ps-0": Traffic(10, 20), "ps": Traffic(1, 2)},
        reconnects=lambda: 4,
        devices={"GPU": 2},
    )


def scraped(port: int) -> dict[tuple[str, str], float]:
    """Return values by name and by the value of the only label."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        (sample.name, "".join(sample.labels.values())): sample.value for family in families for sample in family.samples
    }


def reported(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_scrape_finds_every_number(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(contract.ENV_METRICS_PORT, "0")
    prometheus.serve(everything(), in_pod=False)
    found = scraped(reported(capsys)["port"])
    expected = {
        ("pstraining_sent_bytes_total", "ps-0"): 10,
        ("pstraining_received_bytes_total", "ps"): 2,
        ("pstraining_reconnects_total", ""): 4,
        ("pstraining_compute_devices", "GPU"): 2,
        ("pstraining_worker_steps_total", ""): 2,
        ("pstraining_worker_samples_total", ""): 64,
        ("pstraining_worker_left_out_total", ""): 1,
        ("pstraining_worker_dropped_total", ""): 0,
        ("pstraining_worker_step_seconds_count", ""): 1,
        ("pstraining_worker_staleness_sum", ""): 2,
        ("pstraining_worker_staleness_bucket", "0.0"): 1,
        ("pstraining_worker_staleness_bucket", "1.0"): 1,
        ("pstraining_global_step", ""): 5,
        ("pstraining_epoch", ""): 2,
        ("pstraining_loss", ""): 0.25,
        ("pstraining_workers_present", ""): 3,
        ("pstraining_epoch_log", "val_loss"): 0.75,
        ("pstraining_table_rows", "items"): 7,
        ("pstraining_table_keys_total", "evicteditems"): 2,
        ("pstraining_checkpoint_failures_total", ""): 2,
        ("pstraining_checkpoint_interval_seconds", ""): 7.5,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert ("pstraining_checkpoint_timestamp_seconds", "") not in found, "there was none yet"


def test_an_occupied_port_is_only_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        monkeypatch.setenv(contract.ENV_METRICS_PORT, str(taken.getsockname()[1]))
        prometheus.serve(everything(), in_pod=True)
    line = reported(capsys)
    assert line["event"] == "no_metrics"
    assert "in use" in line["reason"]


@pytest.mark.parametrize(
    ("text", "in_pod", "expected"),
    [
        (None, False, None),
        (None, True, contract.METRICS_PORT),
        ("9100", True, 9100),
        ("0", False, 0),
        ("x", True, None),
        ("65536", True, None),
        ("9" * 5000, True, None),
    ],
)
def test_the_port_is_the_pods_default_or_the_templates(text: str | None, in_pod: bool, expected: int | None) -> None:
    environ = {} if text is None else {contract.ENV_METRICS_PORT: text}
    assert prometheus.port(environ, in_pod=in_pod) == expected


def test_the_port_is_no_port_of_training() -> None:
    assert contract.METRICS_PORT not in {contract.TF_PORT, contract.STATUS_PORT, *contract.RING_PORTS}
