"""The benchmark on a GPU: its evaluation of reports, and its need for a GPU."""

import json
from typing import Any

import pytest

from bench.training import gpu


def reports(*pairs: tuple[int, float]) -> list[dict[str, Any]]:
    return [{"steps": steps, "monotonic": seconds} for steps, seconds in pairs]


def test_steps_per_second_exclude_the_warm_up() -> None:
    assert gpu.steps_per_second(reports((1, 0.0), (30, 10.0), (130, 20.0), (230, 30.0)), warm=30) == 10.0
    with pytest.raises(ValueError, match="1 reports after the warm-up"):
        gpu.steps_per_second(reports((1, 0.0), (30, 10.0)), warm=20)


def test_the_ratio_is_the_median_of_the_rounds() -> None:
    figures = gpu.Figures(fit=(10.0, 20.0, 10.0), runtime={"Async": (9.0, 20.0, 5.0)}, copy_seconds=0.01)
    assert figures.ratio("Async") == 0.9
    assert figures.transfer_share("Async") == pytest.approx(0.09)


def test_figures_are_printed_as_they_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> float:
        raise TimeoutError

    monkeypatch.setattr(gpu, "_plain", {"copies": 0.01, "fit": 9.0}.get)
    monkeypatch.setattr(gpu, "_job", stopped)
    monkeypatch.setenv("BENCH_GPU", "")
    with pytest.raises(TimeoutError):
        gpu.measure({"model": "resnet", "warm": 2}, ["Async"], rounds=1, seconds=1)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["what"], line["figure"]) for line in lines] == [("copies", 0.01), ("fit", 9.0)]


def test_a_missing_gpu_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu, "has_gpu", lambda: False)
    assert gpu.main([]) == 2
    assert "TensorFlow sees none on this machine" in capsys.readouterr().err


@pytest.mark.parametrize(("rate", "code"), [(9.1, 0), (8.9, 1)])
def test_the_bench_fails_if_no_run_with_one_server_reaches_the_limit(
    monkeypatch: pytest.MonkeyPatch, rate: float, code: int
) -> None:
    runtime = {"Async": (2.0,), "overlapped": (rate,), "overlapped, 4 servers": (9.9,)}
    monkeypatch.setattr(gpu, "has_gpu", lambda: True)
    monkeypatch.setattr(gpu, "measure", lambda *_, **__: gpu.Figures((10.0,), runtime, 0.001))
    assert gpu.main(["--only", "resnet"]) == code
