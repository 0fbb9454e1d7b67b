"""The chart's Grafana dashboard, from a table of panels; `python hack/generate.py` writes it as Grafana's JSON."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COLUMNS, HEIGHT = 24, 7
"""Of Grafana's grid: its columns, and the rows of a panel."""
RATE = "$__rate_interval"
JOB = 'namespace="$namespace",pstraining_dev_job_name="$job"'
INDEX = "pstraining_dev_index"
OPERATOR = "pod, namespace"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """One graph.

    Attributes:
        queries: of each line, its name with Grafana's placeholders, and the expression.
        unit: Grafana's word for it.
        width: columns of the grid.
    """

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    width: int = 8
    description: str = ""


def _rate(metric: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{JOB}{more}}}[{RATE}]))"


def _quantile(share: str, metric: str, labels: str = "") -> str:
    return f"histogram_quantile({share}, sum by (le) (rate({metric}_bucket{{{labels}}}[{RATE}])))"


STEPS = _rate("pstraining_worker_steps_total", INDEX)
TRAINING = (
    Panel("Step", (("step", f"max(pstraining_global_step{{{JOB}}})"),)),
    Panel("Loss", (("loss", f"max(pstraining_loss{{{JOB}}})"),)),
    Panel(
        "Workers",
        (("take part", f"max(pstraining_workers_present{{{JOB}}})"),),
        description="As the chief last saw them.",
    ),
    Panel("Steps a second", ((f"worker {{{{{INDEX}}}}}", STEPS),)),
    Panel("Examples a second", (("all workers", f"sum(rate(pstraining_worker_samples_total{{{JOB}}}[{RATE}]))"),)),
    Panel(
        "Time of a step",
        tuple((f"p{p}", _quantile(f"0.{p}", "pstraining_worker_step_seconds", JOB)) for p in ("50", "99")),
        "s",
    ),
    Panel(
        "Staleness",
        (
            (
                f"worker {{{{{INDEX}}}}}",
                _rate("pstraining_worker_staleness_sum", INDEX)
                + " / "
                + _rate("pstraining_worker_staleness_count", INDEX),
            ),
        ),
        description="Others' updates that the mean update has missed; always 0 in mode Sync.",
    ),
    Panel(
        "Speed beside the median worker",
        ((f"worker {{{{{INDEX}}}}}", f"{STEPS} / scalar(quantile(0.5, {STEPS}))"),),
        "percentunit",
        description="Below 75 % it is a straggler.",
    ),
    Panel(
        "Gradient faults",
        (
            ("NaN or infinity", f"sum(increase(pstraining_worker_left_out_total{{{JOB}}}[{RATE}]))"),
            ("too late", f"sum(increase(pstraining_worker_dropped_total{{{JOB}}}[{RATE}]))"),
        ),
    ),
    Panel("Sent to", (("{{peer}}", _rate("pstraining_sent_bytes_total", "peer")),), "Bps"),
    Panel("Received from", (("{{peer}}", _rate("pstraining_received_bytes_total", "peer")),), "Bps"),
    Panel(
        "Load of the heaviest shard",
        (("times the mean", f"max(pstraining_load_skew{{{JOB}}})"),),
        description="From 1.5 on the chief's event uneven_load names it.",
    ),
    Panel(
        "Memory of parameter servers",
        (
            (
                "{{pod}}",
                'sum by (pod) (container_memory_working_set_bytes{namespace="$namespace",pod=~"$job-(ps|standby)-.*",'
                'container!="",container!="POD"})',
            ),
        ),
        "bytes",
        description="From the kubelet, whose metrics Prometheus must scrape.",
    ),
    Panel(
        "Redundancy",
        (("share of time without", f"max(rate(pstraining_unreplicated_seconds_total{{{JOB}}}[{RATE}]))"),),
        "percentunit",
        description="Time in which some shard had fewer members in sync than it may have. Hot standbys only.",
    ),
    Panel(
        "Losses",
        (
            ("others went on", f"sum(increase(pstraining_takeovers_total{{{JOB}}}[{RATE}]))"),
            ("checkpoint restored", f"sum(increase(pstraining_restores_total{{{JOB}}}[{RATE}]))"),
            ("reconnected", f"sum(increase(pstraining_reconnects_total{{{JOB}}}[{RATE}]))"),
        ),
    ),
    Panel(
        "Age of the last checkpoint",
        (
            ("age", f"time() - max(pstraining_checkpoint_timestamp_seconds{{{JOB}}})"),
            ("interval", f"max(pstraining_checkpoint_interval_seconds{{{JOB}}})"),
        ),
        "s",
    ),
    Panel("Writing a checkpoint", (("time", f"max(pstraining_checkpoint_seconds{{{JOB}}})"),), "s"),
    Panel(
        "Checkpoints",
        (
            ("written", f"sum(increase(pstraining_checkpoints_total{{{JOB}}}[{RATE}]))"),
            ("failed", f"sum(increase(pstraining_checkpoint_failures_total{{{JOB}}}[{RATE}]))"),
        ),
    ),
)
"""Of one job: what its chief and workers serve."""
ACTING = (
    Panel(
        "Leadership",
        (("{{namespace}}/{{pod}}", f"max by ({OPERATOR}) (pstraining_leader)"),),
        description="1: it holds the Lease and acts.",
        width=6,
    ),
    Panel("Jobs", (("{{phase}}", "sum by (phase) (pstraining_jobs)"),), width=6),
    Panel(
        "Longest in a state",
        (("{{state}}", "max by (state) (pstraining_longest_seconds)"),),
        "s",
        width=6,
        description="How long the job stands there that has done so longest.",
    ),
    Panel(
        "Queue",
        (
            ("jobs", "sum(pstraining_queue_depth)"),
            ("age of the oldest in seconds", "max(pstraining_queue_oldest_age_seconds)"),
        ),
        width=6,
    ),
    Panel(
        "Passes a second",
        (("{{result}}", f"sum by (result) (rate(pstraining_reconcile_seconds_count[{RATE}]))"),),
        width=6,
    ),
    Panel(
        "Time of a pass",
        tuple((f"p{p}", _quantile(f"0.{p}", "pstraining_reconcile_seconds")) for p in ("50", "99")),
        "s",
        width=6,
    ),
    Panel(
        "Writes to the API server a second",
        (("{{verb}} {{kind}}", f"sum by (kind, verb) (rate(pstraining_writes_total[{RATE}]))"),),
        width=6,
    ),
    Panel(
        "Errors a second",
        (
            ("{{class}}", f"sum by (class) (rate(pstraining_errors_total[{RATE}]))"),
            ("repeated passes", f"sum(rate(pstraining_queue_retries_total[{RATE}]))"),
        ),
        width=6,
    ),
    Panel(
        "Restarts",
        (("{{role}} {{reason}}", f"sum by (role, reason) (increase(pstraining_restarts_total[{RATE}]))"),),
        width=6,
    ),
    Panel(
        "Take-overs",
        (("{{cause}}", f'sum by (cause) (increase(pstraining_takeovers_total{{cause!=""}}[{RATE}]))'),),
        width=6,
    ),
    Panel(
        "Memory of the operator",
        (("{{pod}}", f"process_resident_memory_bytes and on ({OPERATOR}) pstraining_leader"),),
        "bytes",
        width=6,
    ),
    Panel(
        "Processor time of the operator",
        (("{{pod}}", f"rate(process_cpu_seconds_total[{RATE}]) and on ({OPERATOR}) pstraining_leader"),),
        "percentunit",
        width=6,
    ),
)
"""Of the operator, for all its jobs."""
ROWS = {"Job $namespace/$job": TRAINING, "Operator": ACTING}


def dashboard() -> str:
    """Grafana's JSON."""
    variables = [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        _variable("namespace", "label_values(pstraining_global_step, namespace)"),
        _variable("job", 'label_values(pstraining_global_step{namespace="$namespace"}, pstraining_dev_job_name)'),
    ]
    body = {
        "title": "pstraining",
        "uid": "pstraining",
        "tags": ["pstraining", "tensorflow"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": [{"id": number, **panel} for number, panel in enumerate(_panels(), start=1)],
    }
    return json.dumps(body, indent=2) + "\n"


def _variable(name: str, query: str) -> dict[str, Any]:
    body = {"query": query, "refId": name}
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": body,
        "definition": query,
        "refresh": 2,
        "sort": 1,
    }


def _panels() -> Iterator[dict[str, Any]]:
    top = 0
    for title, panels in ROWS.items():
        yield {"type": "row", "title": title, "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1}, "panels": []}
        top, left = top + 1, 0
        for panel in panels:
            yield _panel(panel, left, top)
            left += panel.width
            if left >= COLUMNS:
                top, left = top + HEIGHT, 0


def _panel(panel: Panel, left: int, top: int) -> dict[str, Any]:
    letters = "ABCDEFGH"
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {"refId": letter, "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for letter, (legend, expression) in zip(letters, panel.queries, strict=False)
        ],
    }
