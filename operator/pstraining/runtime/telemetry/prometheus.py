"""A task's metrics for Prometheus, over HTTP on a separate port. A failure here never ends training.

Metrics have no labels for job, role and index, because Prometheus adds them. Imports no TensorFlow.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pstraining.api import contract, numbers
from pstraining.launcher.listener import Listener
from pstraining.runtime.telemetry.counters import ChiefCounters, Histogram, Traffic, WorkerCounters
from pstraining.runtime.telemetry.events import event

if TYPE_CHECKING:
    from prometheus_client.core import Metric

WORKER: Final = {
    "steps": "Steps of this worker that are part of the parameters.",
    "samples": "Samples of these steps.",
    "dropped": "Steps that came too late for their round in Sync, or whose round was given up. They are trained again.",
    "left_out": "Gradients that contain NaN or infinity, and were not applied.",
}
"""Counters of a worker."""
CHIEF: Final = {
    "restores": "Restores of a checkpoint on the parameter servers by this chief.",
    "takeovers": "Failovers to other members in sync that this chief has observed.",
    "unreplicated_seconds": "Seconds in which a shard had fewer members in sync than configured.",
    "checkpoints": "Checkpoints that this chief has written.",
    "checkpoint_failures": "Checkpoints that could not be written; training continued.",
}
"""Counters of the chief."""
STATE: Final = {
    "global_step": ("step", "The job's step that this chief has read last."),
    "epoch": ("epoch", "The current epoch, from 0."),
    "loss": ("loss", "Mean loss of all workers over the last seconds."),
    "chief_busy_seconds": (
        "busy_seconds",
        "Seconds since this chief began to save, to restore, to evaluate or to wait for callbacks; otherwise 0. It "
        "reads no step meanwhile.",
    ),
    "workers_present": ("workers", "Workers that take part."),
    "load_skew": ("skew", "Bytes that workers exchange with the heaviest shard, as a multiple of the mean of all."),
    "checkpoint_step": ("checkpoint_step", "Step of the last checkpoint that this chief has written."),
    "checkpoint_seconds": ("checkpoint_seconds", "Seconds that the last checkpoint took."),
    "checkpoint_bytes": ("checkpoint_bytes", "Size of the last checkpoint on disk."),
    "checkpoint_interval_seconds": (
        "checkpoint_interval",
        "Seconds from the last attempt at a checkpoint to the next.",
    ),
    "checkpoint_timestamp_seconds": ("checkpoint_time", "Time of the last checkpoint, in seconds since 1970."),
}
"""Gauges of the chief: the field of `ChiefCounters`, and the help text."""

TABLE_KEYS: Final = (
    "Keys of a table with rows by key since the servers' state was restored or moved: inserted; evicted for another "
    "key; no_room, a gradient that was dropped; below_min_count, a gradient of a key without a row; expired."
)


class TaskMetrics:
    """The metrics of a task, collected at each scrape.

    Args:
        worker: the worker's counters; None on a task that does not train.
        chief: the chief's counters; None on a task that is not the chief.
        links: returns the bytes to and from each parameter server.
        reconnects: returns the number of reconnects.
        devices: number of the devices that compute, by type.
    """

    def __init__(
        self,
        *,
        worker: WorkerCounters | None,
        chief: ChiefCounters | None,
        links: Callable[[], Mapping[str, Traffic]],
        reconnects: Callable[[], int],
        devices: Mapping[str, int] | None = None,
    ) -> None:
        self._worker, self._chief, self._links, self._reconnects = worker, chief, links, reconnects
        self._devices = devices or {}

    def collect(self) -> Iterator["Metric"]:
        """Yield the metrics for prometheus_client's registry."""
        yield from self._of_connections()
        if self._worker:
            yield from _of_worker(self._worker)
        if self._chief:
            yield from _of_chief(self._chief)

    def _of_connections(self) -> Iterator["Metric"]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        sent = CounterMetricFamily(
            "pstraining_sent_bytes", "Bytes to a parameter server, without TCP's headers.", labels=["peer"]
        )
        received = CounterMetricFamily(
            "pstraining_received_bytes", "Bytes from a parameter server, without TCP's headers.", labels=["peer"]
        )
        for peer, moved in sorted(self._links().items()):
            sent.add_metric([peer], moved.sent)
            received.add_metric([peer], moved.received)
        yield from (sent, received)
        computing = GaugeMetricFamily(
            "pstraining_compute_devices", "Devices of this task that compute, by type: GPU, CPU.", labels=["type"]
        )
        for kind, number in sorted(self._devices.items()):
            computing.add_metric([kind], number)
        yield computing
        yield CounterMetricFamily(
            "pstraining_reconnects",
            "Number of times that the connection to the parameter servers was restored.",
            value=self._reconnects(),
        )


def _of_worker(account: WorkerCounters) -> Iterator["Metric"]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, text in WORKER.items():
        yield CounterMetricFamily(f"pstraining_worker_{name}", text, value=getattr(account, name))
    yield _histogram(
        "pstraining_worker_step_seconds", "Seconds from the end of a step to the end of the next.", account.seconds
    )
    yield _histogram(
        "pstraining_worker_staleness",
        "Updates of other workers between the pull of the parameters and the worker's own update. Always 0 in Sync.",
        account.staleness,
    )
    yield GaugeMetricFamily("pstraining_worker_longest_gap_seconds", "Longest step so far.", value=account.longest_gap)


def _of_chief(account: ChiefCounters) -> Iterator["Metric"]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, text in CHIEF.items():
        yield CounterMetricFamily(f"pstraining_{name}", text, value=getattr(account, name))
    for name, (field, text) in STATE.items():
        if (value := getattr(account, field)) is not None:
            yield GaugeMetricFamily(f"pstraining_{name}", text, value=value)
    rows = GaugeMetricFamily("pstraining_table_rows", "Rows of a table with rows by key.", labels=["table"])
    keys = CounterMetricFamily("pstraining_table_keys", TABLE_KEYS, labels=["table", "outcome"])
    for table, (number, counts) in sorted(account.tables.items()):
        rows.add_metric([table], number)
        for outcome, count in counts.items():
            keys.add_metric([table, outcome], count)
    yield from (rows, keys)
    logs = GaugeMetricFamily("pstraining_epoch_log", "The last epoch's logs: loss, val_loss and so on.", labels=["log"])
    for name, value in sorted(account.scalars.items()):
        logs.add_metric([name], value)
    yield logs


def _histogram(name: str, text: str, histogram: Histogram) -> "Metric":
    from prometheus_client.core import HistogramMetricFamily

    return HistogramMetricFamily(name, text, buckets=histogram.cumulative(), sum_value=histogram.sum)


def port(environ: Mapping[str, str], *, in_pod: bool) -> int | None:
    """Return the port from the environment, or the pod's metrics port; None for no server, 0 for any free port."""
    text = environ.get(contract.ENV_METRICS_PORT, "")
    if (given := numbers.number(text)) is not None and given < 65536:
        return given
    if text:
        event("no_metrics", reason=f"{contract.ENV_METRICS_PORT} is not a port: {text!r}")
        return None
    return contract.METRICS_PORT if in_pod else None


def serve(metrics: TaskMetrics, *, in_pod: bool) -> None:
    """Serve scrapes in daemon threads; on failure, emit an event and continue."""
    wanted = port(os.environ, in_pod=in_pod)
    if wanted is None:
        return
    try:
        from prometheus_client import CollectorRegistry, MetricsHandler

        registry = CollectorRegistry(auto_describe=False)
        registry.register(metrics)
        listener = Listener(wanted, MetricsHandler.factory(registry))
        listener.start("metrics")
        event("metrics", port=listener.port)
    except (ImportError, OSError) as error:
        event("no_metrics", port=wanted, reason=str(error))
