"""Each alert under promtool: series that trigger it, and similar series that do not."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from pstraining import __version__
from pstraining.controller.metrics import REFUSALS, REPLACED
from tests.support.promql import alerts

from .conftest import CHART, KUBERNETES, REPOSITORY, ROOT, Helm, Render

N, JOB = 'namespace="system"', 'namespace="team",pstraining_dev_job_name="digits"'
Series = dict[str, str]


@dataclass(frozen=True)
class Case:
    """Series with one value per minute, the minute of the evaluation, and the expected alert."""

    fires: Series
    calm: Series
    labels: dict[str, str]
    at: int = 40


def counter(per_minute: float, minutes: int = 60) -> str:
    return f"0+{per_minute}x{minutes}"


def steps(*per_minute: float) -> Series:
    """Return series of workers' steps, by worker."""
    return {
        f'pstraining_worker_steps_total{{{JOB},pstraining_dev_index="{index}",pod="w-{index}"}}': counter(rate)
        for index, rate in enumerate(per_minute)
    }


def passes(failed: float) -> Series:
    return {
        f'pstraining_reconcile_seconds_count{{{N},result="{result}"}}': counter(rate)
        for result, rate in (("failed", failed), ("idle", 60 - failed))
    }


def longest(state: str, seconds: str) -> Series:
    return {f'pstraining_longest_seconds{{{N},state="{state}"}}': seconds}


def uneven(skew: str, mean: float, job: str = JOB) -> Series:
    """Return series of a job of two shards, whose mean traffic is given in bytes per second."""
    links = {
        f'pstraining_{way}_bytes_total{{{job},peer="ps-{shard}"}}': counter(60 * mean * share / 2)
        for way in ("sent", "received")
        for shard, share in enumerate((1.6, 0.4))
    }
    return {f"pstraining_load_skew{{{job}}}": skew, **links}


def stale(per_step: float) -> Series:
    return {
        f"pstraining_worker_staleness_sum{{{JOB}}}": counter(100 * per_step),
        f"pstraining_worker_staleness_count{{{JOB}}}": counter(100),
        f"pstraining_workers_present{{{JOB}}}": "3x60",
    }


def checkpoint(written_at: int, *, step: str = counter(100)) -> Series:
    """Return series of a job that wants a checkpoint every ten minutes, whose last one was written after these
    seconds.
    """
    return {
        f"pstraining_checkpoint_timestamp_seconds{{{JOB}}}": f"{written_at}x60",
        f"pstraining_checkpoint_interval_seconds{{{JOB}}}": "600x60",
        f"pstraining_global_step{{{JOB}}}": step,
    }


SYSTEM = {"namespace": "system"}
TEAM = {"namespace": "team", "pstraining_dev_job_name": "digits"}
TAKEOVER, ERRORS = f"pstraining_takeovers_total{{{N},cause=", f"pstraining_errors_total{{{N},class="
RESTARTS = f'pstraining_restarts_total{{{N},role="worker",reason="OOMKilled"}}'
CASES = {
    "PSTrainingOperatorDown": Case({}, {f"pstraining_leader{{{N}}}": "1x20 _x2 1x40"}, {}),
    "PSTrainingOperatorNotLeading": Case(
        {f'pstraining_leader{{{N},pod="a"}}': "0x60", f'pstraining_leader{{{N},pod="b"}}': "0x60"},
        {f'pstraining_leader{{{N},pod="a"}}': "0x60", f'pstraining_leader{{{N},pod="b"}}': "1x60"},
        SYSTEM,
    ),
    "PSTrainingNamespaceForbidden": Case(
        {f'pstraining_watch_forbidden{{{N},watched_namespace="a"}}': "1x60"},
        {f'pstraining_watch_forbidden{{{N},watched_namespace="a"}}': "0x30 1x4 0x1 1x4 0x20"},
        SYSTEM | {"watched_namespace": "a"},
    ),
    "PSTrainingReconcileErrors": Case(passes(7), passes(5), SYSTEM),
    "PSTrainingQueueOld": Case(
        {f"pstraining_queue_oldest_age_seconds{{{N}}}": "90x60"},
        {f"pstraining_queue_oldest_age_seconds{{{N}}}": "90x36 0x1 90x20"},
        SYSTEM,
    ),
    "PSTrainingApiErrors": Case(
        {f'{ERRORS}"Transient"}}': counter(7)},
        {f'{ERRORS}"Transient"}}': counter(5), f'{ERRORS}"Conflict"}}': counter(60)},
        SYSTEM | {"class": "Transient"},
    ),
    "PSTrainingWritesRefused": Case(
        {f'{ERRORS}"NameTaken"}}': "0x35 1x30"}, {f'{ERRORS}"NameTaken"}}': "1x60"}, SYSTEM | {"class": "NameTaken"}
    ),
    "PSTrainingJobWaits": Case(
        longest("Restarting", "0+60x60"),
        longest("Pending", "880x60") | longest("Degraded", "9999x60"),
        SYSTEM | {"state": "Restarting"},
    ),
    "PSTrainingRestartsOften": Case(
        {RESTARTS: "1x30 8x30"},
        {RESTARTS: "1x30 6x30", RESTARTS.replace("OOMKilled", REPLACED): "1x30 40x30"},
        SYSTEM | {"role": "worker", "reason": "OOMKilled"},
    ),
    "PSTrainingWithoutRedundancy": Case(longest("Degraded", "0+60x60"), longest("Degraded", "580x60"), SYSTEM),
    "PSTrainingTookOver": Case(
        {f'{TAKEOVER}"not ready"}}': "0x35 1x30", f"pstraining_takeovers_total{{{JOB}}}": "1x60"},
        {f'{TAKEOVER}"not ready"}}': "1x60", f'{TAKEOVER}"requested"}}': "0x35 1x30"},
        SYSTEM | {"cause": "not ready"},
    ),
    "PSTrainingStandsStill": Case(
        {f"pstraining_global_step{{{JOB}}}": "500x60"}, {f"pstraining_global_step{{{JOB}}}": "500x33 501x30"}, TEAM
    ),
    "PSTrainingStraggler": Case(steps(100, 100, 70), steps(100, 100, 80), TEAM | {"pstraining_dev_index": "2"}),
    "PSTrainingStale": Case(stale(13), stale(11), TEAM),
    "PSTrainingHotShard": Case(
        uneven("1.6x60", 2e6),
        uneven("1.6x30 1.4x1 1.6x30", 2e6) | uneven("1.6x60", 0.9e6, JOB.replace("digits", "small")),
        TEAM,
    ),
    "PSTrainingGradientsLeftOut": Case(
        {f"pstraining_worker_left_out_total{{{JOB}}}": "0x35 2x30"},
        {f"pstraining_worker_left_out_total{{{JOB}}}": "2x60"},
        TEAM,
    ),
    "PSTrainingCheckpointFails": Case(
        {f"pstraining_checkpoint_failures_total{{{JOB}}}": "0x30 1x2 2x30"},
        {f"pstraining_checkpoint_failures_total{{{JOB}}}": "1x35 2x30"},
        TEAM,
    ),
    # Evaluated in second 3600, when a checkpoint may be 2400 s old.
    "PSTrainingCheckpointOld": Case(checkpoint(-900), checkpoint(1500), TEAM, at=60),
    "PSTrainingMemberMissing": Case(
        {f"pstraining_unreplicated_seconds_total{{{JOB}}}": counter(60)},
        {f"pstraining_unreplicated_seconds_total{{{JOB}}}": counter(50)},
        TEAM,
    ),
}


@pytest.fixture(scope="session")
def promtool() -> str:
    command = [sys.executable, "-m", "localcluster", "tool", "promtool"]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def run(
    promtool: str, folder: Path, name: str, series: Series, labels: dict[str, str] | None, *, at: int | None = None
) -> str:
    """Return promtool's output if the result is not the expected one: the alert with these labels, or none."""
    query = f'ALERTS{{alertname="{name}",alertstate="firing"}}'
    severity = next(rule["labels"]["severity"] for rule in alerts() if rule["alert"] == name)
    expected = {"alertname": name, "alertstate": "firing", "severity": severity, **(labels or {})}
    text = ",".join(f'{key}="{value}"' for key, value in expected.items())
    samples = [] if labels is None else [{"labels": f"ALERTS{{{text}}}", "value": 1}]
    test: dict[str, Any] = {
        "interval": "1m",
        "input_series": [{"series": key, "values": value} for key, value in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": f"{at or CASES[name].at}m", "exp_samples": samples}],
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(CHART / "files" / "alerts.yaml")], "tests": [test]}))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_every_alert_has_its_cases() -> None:
    assert list(CASES) == [rule["alert"] for rule in alerts()]


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires(promtool: str, tmp_path: Path, name: str) -> None:
    assert not run(promtool, tmp_path, name, CASES[name].fires, CASES[name].labels)


@pytest.mark.parametrize("name", CASES)
def test_an_alert_does_not_fire_without_cause(promtool: str, tmp_path: Path, name: str) -> None:
    assert not run(promtool, tmp_path, name, CASES[name].calm, None)


def test_a_job_that_does_not_train_with_another_number_of_servers_waits(promtool: str, tmp_path: Path) -> None:
    series = longest("Rescaling", "0+60x60")
    assert not run(promtool, tmp_path, "PSTrainingJobWaits", series, SYSTEM | {"state": "Rescaling"})


def test_a_checkpoint_is_not_too_old_while_no_step_is_applied(promtool: str, tmp_path: Path) -> None:
    assert not run(promtool, tmp_path, "PSTrainingCheckpointOld", checkpoint(-900, step="7x60"), None)


def test_a_job_that_never_writes_a_checkpoint_has_none_that_is_new(promtool: str, tmp_path: Path) -> None:
    series = {name: values for name, values in checkpoint(0).items() if "timestamp" not in name}
    assert not run(promtool, tmp_path, "PSTrainingCheckpointOld", series, TEAM)


@pytest.mark.parametrize("saves", [False, True])
def test_a_chief_that_has_just_started_may_save_first(promtool: str, tmp_path: Path, saves: bool) -> None:
    """The chief before it saved long ago, or ended after a save that the new one does not know."""
    series = {
        f'pstraining_checkpoint_timestamp_seconds{{{JOB},pod="a"}}': "3000x50" if saves else "-9000x5",
        f'pstraining_checkpoint_interval_seconds{{{JOB},pod="a"}}': "600x5",
        f'pstraining_checkpoint_interval_seconds{{{JOB},pod="b"}}': f"_x{6 if saves else 30} 600x60",
        f'pstraining_global_step{{{JOB},pod="b"}}': counter(100),
    }
    assert not run(promtool, tmp_path, "PSTrainingCheckpointOld", series, None)


def test_a_chief_with_hot_standbys_reports_a_failover_with_the_jobs_name(promtool: str, tmp_path: Path) -> None:
    assert not run(
        promtool, tmp_path, "PSTrainingTookOver", {f"pstraining_takeovers_total{{{JOB}}}": "0x35 1x30"}, TEAM
    )


@pytest.mark.parametrize(("series", "fires"), [("_x30 0x30", False), ("_x24 0x36", True)])
def test_a_chief_may_prepare_for_ten_minutes_before_its_first_step(
    promtool: str, tmp_path: Path, series: str, fires: bool
) -> None:
    """Of a chief that has started in minute 31, or in minute 25."""
    expected = TEAM if fires else None
    assert not run(promtool, tmp_path, "PSTrainingStandsStill", {f"pstraining_global_step{{{JOB}}}": series}, expected)


@pytest.mark.parametrize(
    ("busy", "at", "fires"),
    [("0x1 0+60x200", 110, False), ("0x1 0+60x200", 145, True)],
)
def test_a_chief_that_saves_or_evaluates_does_not_stand_still_for_two_hours(
    promtool: str, tmp_path: Path, busy: str, at: int, fires: bool
) -> None:
    """It reads no step meanwhile. One that hangs is reported in the end."""
    series = {f"pstraining_global_step{{{JOB}}}": "500x250", f"pstraining_chief_busy_seconds{{{JOB}}}": busy}
    expected = TEAM if fires else None
    assert not run(promtool, tmp_path, "PSTrainingStandsStill", series, expected, at=at)


def test_short_saves_do_not_hide_that_a_job_stands_still(promtool: str, tmp_path: Path) -> None:
    series = {
        f"pstraining_global_step{{{JOB}}}": "500x60",
        f"pstraining_chief_busy_seconds{{{JOB}}}": "0 60 120 " * 20,
    }
    assert not run(promtool, tmp_path, "PSTrainingStandsStill", series, TEAM)


@pytest.mark.parametrize("verdict", REFUSALS)
def test_refused_objects_fire_their_own_alert_only(promtool: str, tmp_path: Path, verdict: str) -> None:
    """Objects of a gang whose kind is not installed are tried six times a minute for each job."""
    series, labels = {f'{ERRORS}"{verdict}"}}': counter(12)}, SYSTEM | {"class": verdict}
    assert not run(promtool, tmp_path, "PSTrainingWritesRefused", series, labels)
    assert not run(promtool, tmp_path, "PSTrainingApiErrors", series, None)


def test_the_rules_are_rendered_with_their_runbooks(promtool: str, render: Render, tmp_path: Path) -> None:
    assert not render().of_kind("PrometheusRule")
    options = {
        "labels": {"release": "prometheus"},
        "alertLabels": {"team": "ml", "severity": "none"},
        "disabled": ["PSTrainingQueueOld"],
        "runbooks": "https://wiki.example.org/alerts",
    }
    page = "docs/operators/alerts.md"
    assert (ROOT / page).is_file()
    rule = render({"metrics": {"rules": {"enabled": True, **options}}}).one("PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    rendered = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    source = [alert for alert in alerts() if alert["alert"] != "PSTrainingQueueOld"]
    assert [r["alert"] for r in rendered] == [s["alert"] for s in source]
    for found, given in zip(rendered, source, strict=True):
        anchor = given["alert"].lower()
        assert found["annotations"] == given["annotations"] | {
            "runbook": f"{page}#{anchor} in pstraining {__version__}",
            "runbook_url": f"https://wiki.example.org/alerts#{anchor}",
        }
        assert found["labels"] == given["labels"] | {"team": "ml"}, "the severity stays"
        assert (found["expr"], found.get("for")) == (given["expr"], given.get("for"))
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(rule["spec"]))
    done = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_disabled_alert_that_does_not_exist_is_rejected(helm: Helm) -> None:
    """A misspelt alert would stay enabled."""
    given = "metrics.rules.enabled=true,metrics.rules.disabled={PSTrainingQueueOld,PSTrainingQueueOlds}"
    done = helm(
        *("template", "pstraining", str(CHART), "--kube-version", KUBERNETES),
        *("--set", f"image.repository={REPOSITORY}", "--set", given),
    )
    assert "metrics.rules.disabled names no alert: PSTrainingQueueOlds. The alerts are PSTraining" in done.stderr


def test_every_runbook_link_leads_to_a_published_page(render: Render) -> None:
    rule = render({"metrics": {"rules": {"enabled": True}}}).one("PrometheusRule")
    rendered = [alert["annotations"] for group in rule["spec"]["groups"] for alert in group["rules"]]
    assert rendered
    assert all("runbook" in found and "runbook_url" not in found for found in rendered)
