"""How `make test` goes from layer to layer, and what it says at the end."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from hack import run_tests
from hack.cluster.errors import ClusterError
from hack.run_tests import Layer, Outcome

GOOD, BAD = ("true",), ("false",)


class Surroundings:
    """Needs nothing, or cannot make what a layer with a cluster needs."""

    def environment(self, layer: Layer) -> Mapping[str, str]:
        if layer.cluster:
            raise ClusterError("no cluster today")
        return {"PATH": "/usr/bin:/bin"}


def run(*layers: Layer) -> tuple[list[Outcome], str, int]:
    outcomes, why_not = run_tests.run(layers, Surroundings())  # type: ignore[arg-type]
    return outcomes, why_not, run_tests.summarize(layers, outcomes, why_not)


def test_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes, why_not, status = run(Layer("a", checks=(GOOD, GOOD), cheap=True), Layer("b", checks=(GOOD,)))
    assert [o.good for o in outcomes] == [True, True]
    assert (why_not, status) == ("", 0)
    assert capsys.readouterr().out.endswith("\n3 passed, 0 failed\n")


def test_a_cheap_failure_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes, why_not, status = run(Layer("a", checks=(BAD, GOOD), cheap=True), Layer("b", checks=(GOOD,)))
    assert [o.name for o in outcomes] == ["a"]
    assert (why_not, status) == ("a failed", 1)
    assert "not run b" in capsys.readouterr().out


def test_a_later_failure_does_not_keep_others_from_running(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes, _, status = run(Layer("a", checks=(BAD,)), Layer("b", checks=(GOOD,)))
    assert [o.good for o in outcomes] == [False, True]
    assert status == 1
    assert capsys.readouterr().out.endswith("\n1 passed, 1 failed\n")


def test_a_layer_that_cannot_be_set_up_fails(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes, _, status = run(Layer("a", checks=(GOOD,), cluster=True), Layer("b", checks=(GOOD,)))
    assert [o.good for o in outcomes] == [False, True]
    assert status == 1
    assert "no cluster today" in capsys.readouterr().err


def test_a_layer_that_hangs_is_ended_and_the_next_one_is_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_tests, "LONGEST_S", 0.1)
    hanging = ("sleep", "600")
    outcomes, _, status = run(Layer("a", checks=(hanging, GOOD)), Layer("b", checks=(GOOD,)))
    assert [o.good for o in outcomes] == [False, True]
    assert status == 1
    assert "sleep was ended after 0.1 s" in capsys.readouterr().out


def test_a_layer_without_tests_fails(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes, _, status = run(Layer("a", tests=("tests/there-is-none",)))
    assert outcomes[0].problem == "there are no tests"
    assert status == 1
    assert "FAILED" in capsys.readouterr().out


def test_a_report_is_added_up(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite tests="10" failures="1" errors="2" skipped="3"/></testsuites>', "utf-8")
    outcome = Outcome("a")
    run_tests.read_report(report, outcome)
    assert (outcome.passed, outcome.failed, outcome.skipped) == (4, 3, 3)
    assert "4 passed, 3 failed, 3 skipped" in outcome.line()


def test_every_folder_of_tests_belongs_to_one_layer() -> None:
    folders = {p.relative_to(run_tests.ROOT).as_posix() for p in (run_tests.ROOT / "tests").iterdir() if p.is_dir()}
    with_tests = {f for f in folders if any((run_tests.ROOT / f).rglob("test_*.py"))}
    listed = [folder for layer in run_tests.LAYERS for folder in layer.tests]
    assert len(listed) == len(set(listed))
    # The campaign takes too long for every run: `make campaign` runs it, the controlplane layer a part of it.
    assert with_tests - {"tests/campaign"} <= set(listed)


def test_the_makefile_has_a_target_for_every_layer() -> None:
    makefile = (run_tests.ROOT / "Makefile").read_text("utf-8")
    for layer in run_tests.LAYERS:
        assert f"\ntest-{layer.name}: install ## " in makefile
