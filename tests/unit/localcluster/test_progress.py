"""The output while the user waits."""

import io

import pytest

from localcluster.progress import Progress, Step, format_grid, format_heartbeat, format_seconds, format_table


@pytest.mark.parametrize(("seconds", "text"), [(0.421, "0.42 s"), (7.25, "7.2 s"), (83.4, "83 s")])
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_a_heartbeat_names_every_running_step() -> None:
    steps = [Step("building helm (2 of 4)", 10.0, "512 packages compiled"), Step("apt", 20.0)]
    assert format_heartbeat(steps, 40.0) == "... building helm (2 of 4) (30 s, 512 packages compiled); apt (20 s)"


def test_steps_are_printed_timed_and_recorded() -> None:
    now = [100.0]
    out = io.StringIO()
    progress = Progress(out=out, clock=lambda: now[0])
    with progress.step("building etcd"):
        now[0] += 12
    assert out.getvalue().splitlines() == ["[    0s] building etcd", "[   12s] building etcd: done in 12 s"]
    assert progress.timings == [("building etcd", 12.0)]


def test_a_failure_is_printed_and_raised() -> None:
    out = io.StringIO()
    progress = Progress(out=out, clock=lambda: 0.0)
    with pytest.raises(ValueError, match="boom"), progress.step("work"):
        raise ValueError("boom")
    assert "work: FAILED after" in out.getvalue()


def test_the_table_leaves_out_what_took_no_time() -> None:
    text = format_table([("long", 12.34), ("nothing", 0.01)], total=13.0)
    assert "12.3 s" in text
    assert "nothing" not in text
    assert text.splitlines()[-1].endswith("13.0 s")


def test_a_grid_aligns_its_columns() -> None:
    assert format_grid(("A", "LONG"), [("xyz", "1")]) == "A    LONG\nxyz  1"
