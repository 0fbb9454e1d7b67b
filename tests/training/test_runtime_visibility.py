"""The reports of a running job: metrics, bytes, progress lines, summaries."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pstraining.runtime.local import LocalJob
from tests.support import metered_job
from tests.support.netns import own_network
from tests.support.soak_marks import in_soak
from tests.training.test_runtime_faults import steps_of, until

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Return a job whose metrics were scraped, and its folder."""
    if os.geteuid() != 0:
        pytest.skip("a network of its own needs root")
    folder = tmp_path_factory.mktemp("counted")
    with own_network():
        return metered_job.run(folder), folder


def test_the_traffic_counters_equal_the_networks_bytes(seen: tuple[dict[str, Any], Path]) -> None:
    reported, _ = seen
    assert reported["carried"] > 10e6
    # Both ends of a scrape differ in time, and bytes on their way are not acknowledged yet.
    assert reported["payload"] / reported["carried"] == pytest.approx(1, abs=0.05)


def test_every_task_exports_its_metrics(seen: tuple[dict[str, Any], Path]) -> None:
    before, after = seen[0]["before"], seen[0]["after"]
    chief = after["chief"]
    steps = sum(after[worker]["pstraining_worker_steps_total"] for worker in metered_job.TASKS[1:])
    assert before["chief"]["pstraining_global_step"] < chief["pstraining_global_step"] <= steps + 2
    assert chief["pstraining_epoch"] == chief["pstraining_global_step"] // 40
    assert chief["pstraining_workers_present"] == 2
    assert chief["pstraining_checkpoints_total"] >= 1
    assert chief["pstraining_checkpoint_bytes"] > 3 * 4 * 200_000, "parameters and two slots of 220,002"
    assert any(chief["pstraining_epoch_log{loss}"] == pytest.approx(loss) for loss in seen[0]["losses"])
    for worker in metered_job.TASKS[1:]:
        found = after[worker]
        made = found["pstraining_worker_steps_total"]
        assert made > before[worker]["pstraining_worker_steps_total"]
        assert found["pstraining_worker_samples_total"] == 10 * made
        assert found["pstraining_worker_step_seconds_count"] >= made - 2
        assert found["pstraining_worker_staleness_sum"] > 0, "two workers, asynchronously"
        assert found["pstraining_worker_longest_gap_seconds"] > 0
        assert found["pstraining_sent_bytes_total{ps-0}"] > 0
        moved = sum(value for name, value in found.items() if name.startswith("pstraining_sent_bytes_total{"))
        assert moved > 0.8 * 220_002 * 4 * made, "a gradient of all parameters a step"
    assert "pstraining_worker_steps_total" not in chief


def test_the_chiefs_progress_line_shows_epoch_samples_and_bytes(seen: tuple[dict[str, Any], Path]) -> None:
    line = seen[0]["lines"][-1]
    form = (
        r"step \d+/40000  epoch \d+/1000  loss [\d.]+  [\d.]+ steps/s  (\d+) samples/s"
        r"  up ([\d.]+) MB/s  down ([\d.]+) MB/s  ETA \d+ s"
    )
    found = re.fullmatch(form, line)
    assert found, line
    assert float(found[1]) > 0
    assert float(found[2]) > 0.5


@in_soak
@pytest.mark.parametrize("stride", [1, 2], ids=["even", "odd rows alone"])
def test_an_overloaded_shard_is_reported(monkeypatch: pytest.MonkeyPatch, stride: int) -> None:
    monkeypatch.setenv("UNEVEN_STRIDE", str(stride))
    training = {"mode": "Async", "steps": 1_000_000, "minShardBytes": 0}
    with LocalJob(["-m", "tests.support.skewed_program"], ps=2, workers=1, training=training) as run:
        chief = run.processes["chief"]
        if stride == 2:
            until(run, lambda: chief.events("uneven_load"), "the load is reported", 120)
            reported = chief.events("uneven_load")[0]
            assert (reported["shard"], reported["times"] > 1.5) == (1, True)
        else:
            until(run, lambda: steps_of(run, "worker-0") > 200, "enough steps for a comparison", 120)
            assert not chief.events("uneven_load")


def test_tensorboard_finds_the_same_numbers(seen: tuple[dict[str, Any], Path]) -> None:
    import tensorflow as tf

    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted((seen[1] / "checkpoints" / "tensorboard").glob("events.*")):
        for record in tf.data.TFRecordDataset(str(file)):
            written = tf.compat.v1.Event.FromString(record.numpy())
            for value in written.summary.value:
                assert value.metadata.plugin_data.plugin_name == "scalars"
                found.setdefault(value.tag, []).append((written.step, float(tf.make_ndarray(value.tensor))))
    names = {"loss", "workers", "steps_per_second", "samples_per_second", "sent_bytes_per_second"}
    assert names | {"epoch/loss", "epoch/learning_rate"} <= found.keys()
    steps = [step for step, _ in found["epoch/loss"]]
    assert len(steps) >= 2
    assert steps == sorted(steps)
    assert all(rate == pytest.approx(0.01) for _, rate in found["epoch/learning_rate"])


@pytest.mark.parametrize("workers", [2, 4])
def test_a_stall_counts_the_workers_that_the_job_has_now(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chief's process continues when the job is scaled from three workers."""
    from pstraining.runtime.chief.reports.reporting import TrainingReporter
    from pstraining.runtime.config.cluster import ENV_CLUSTER_FILE, Cluster, Task
    from pstraining.runtime.telemetry.counters import ChiefCounters
    from pstraining.runtime.telemetry.progress import Rate, Seen, StallDetector

    file, now, sent = tmp_path / "cluster.json", [0.0], list[dict[str, Any]]()
    file.write_text(json.dumps({"cluster": {"worker": ["a:1"] * workers}}))
    monkeypatch.setenv(ENV_CLUSTER_FILE, str(file))
    reporter = TrainingReporter.__new__(TrainingReporter)
    cluster = Cluster("job", Task("chief", 0), {"worker": ("a:1",) * 3})
    admin: Any = SimpleNamespace(client=SimpleNamespace(cluster=cluster))
    reporter._at = lambda: admin
    reporter._counters, reporter._rate, reporter._present = ChiefCounters(), Rate(None), (0, 1)
    reporter._stall, reporter._report_progress = StallDetector(lambda: now[0]), lambda **fields: sent.append(fields)
    for step, now[0] in ((0, 0.0), (1, 1.0), (1, 1e6)):
        reporter._send_progress(Seen(step))
    expected = {2: "all 2 workers take part", 4: "2 of 4 workers are missing: worker-2, worker-3."}
    assert expected[workers] in sent[-1]["stalled"]
