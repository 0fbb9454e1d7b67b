"""Small runs of the benchmarks of accuracy and of Auto compression."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pstraining.runtime.compression.auto_select import CODED
from tests.support.soak_marks import in_all, in_soak

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]


@in_all(
    "tests/unit/bench/test_training_figures.py::test_every_threshold_has_one_load_and_every_figure_one_row"
)  # seven short trainings
def test_a_run_is_reproducible_and_depends_on_its_seed(client: Any) -> None:
    from bench.training.accuracy import VARIANTS, Course
    from bench.training.tasks import TASKS

    task = replace(TASKS["digits"], steps=40)
    plain = Course(client, task, VARIANTS["Sync"], "smoke.plain")
    first = plain.run(0, 0)
    assert 50 < first < 98, "it learns in 40 updates, and has not learned all"
    variant = VARIANTS["OneBit both ways"]  # an encoded sum may differ by a unit if its summands meet in another order
    ordered = replace(variant, training={**variant.training, "ordered_sums": True})
    coded = Course(client, task, ordered, "smoke.coded")
    lossy = coded.run(0, 0)
    assert 50 < lossy < 98
    again, other = plain.run(0, 0), plain.run(0, 1)
    assert abs(again - first) < 0.3, "nothing is left of the run before but the order in which two workers' sums meet"
    assert coded.run(0, 0) == lossy, "nor of its workers' residuals"
    assert other != first
    ring = Course(client, task, VARIANTS["Hybrid"], "smoke.ring")
    assert abs(ring.run(0, 0) - first) < 0.3, "the same sums, by another way"
    assert abs(ring.run(0, 0) - first) < 0.3, "nor does a worker keep the parameters of the run before"


@in_soak
@pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own needs root")
def test_a_slow_link_gets_the_codec(tmp_path: Path) -> None:
    """Auto compression selects a codec for a model of 16.8 MB behind a link of 100 Mbit/s."""
    command = ["bench.training.auto", "--links", "100", "--models", "16.8 MB", "--mode", "Async", "--slices", "1"]
    ended = subprocess.run(
        [sys.executable, "-m", *command, "--seconds", "1", "--out", str(tmp_path / "points.json")],
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
    (point,) = json.loads((tmp_path / "points.json").read_text())
    assert point["chosen"] == CODED
    assert point["seconds"]["Auto"] < 0.6 * point["seconds"]["None"]
