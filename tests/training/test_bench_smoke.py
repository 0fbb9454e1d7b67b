"""The runtime's benchmark measures every kind of load; only `make bench` judges the values."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.training.registry import MEASUREMENTS
from tests.support.soak_marks import THOROUGH, in_all, in_soak

ROOT = Path(__file__).parents[2]
KINDS: list[Any] = [
    "start",
    pytest.param("small, Async", marks=in_soak),
    pytest.param("links", marks=in_soak),
]
KINDS += ["bytes: balance", "straggler: backup", "small, Sync", "big, dense", "hot standby: 4 MB"] if THOROUGH else []
pytestmark = [
    pytest.mark.training,
    pytest.mark.minutes,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root"),
]


@in_all(
    "tests/unit/bench/test_training_figures.py::test_every_threshold_has_one_load_and_every_figure_one_row"
)  # `make bench` runs the benchmark
@pytest.mark.parametrize("kind", KINDS)
def test_figures_come_out(kind: str, tmp_path: Path) -> None:
    (measurement,) = [found for found in MEASUREMENTS if kind in found.name]
    options = ["--small", "--seconds", "1", "--rounds", "1", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "bench.training", *options, "--only", measurement.name]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=390)
    written = tmp_path / "training.json"
    assert written.exists(), done.stderr[-3000:]
    kept = json.loads(written.read_text())["figures"]
    assert set(kept) == set(measurement.figures), done.stderr[-3000:]
    assert all(figure["value"] > 0 for figure in kept.values()), kept
    assert done.returncode == 1, "figures that were never taken fail the run"
    assert "missing: bytes a sample: dense / Int8" in done.stderr


@in_soak
def test_the_figures_of_gpus_come_out_on_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    options = ["--cpu", "--way", "overlapped", "--rounds", "1", "--seconds", "1", "--steps", "5", "--out", str(out)]
    subprocess.run([sys.executable, "-m", "bench.training.gpu", *options], cwd=ROOT, check=True, timeout=390)
    found = json.loads(out.read_text())
    assert found.keys() == {"resnet", "transformer"}
    assert all(row["runtime"]["overlapped"][0] > 0 and row["copy_seconds"] > 0 for row in found.values())
