"""Synchronous jobs of real processes that lose one of them."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.cover import in_soak
from tests.training.test_runtime_faults import finished, job, made_since, steps_of, transcript, unattended, until

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]
SYNC = {"mode": "Sync"}


def test_a_killed_worker_is_waited_for_a_moment_and_takes_part_again() -> None:
    with job(None, steps=1000, workers=3, more=SYNC) as run:
        until(run, lambda: all(steps_of(run, f"worker-{k}") > 20 for k in range(3)), "all workers' steps")
        run.kill("worker-1")
        killed = time.time()
        unattended(run, made_since(run, "worker-0", 30), "steps without it")
        again = run.processes["worker-1"]
        until(run, lambda: any(e["time"] > killed for e in again.events("worker")), "its return")
        assert finished(run) == 0, transcript(run)
        result = run.processes["chief"].events("result")[0]
        assert result["step"] == 1000
        assert run.processes["worker-0"].starts == run.processes["worker-2"].starts == 1


@in_soak
def test_workers_go_on_in_step_while_there_is_no_chief(tmp_path: Path) -> None:
    with job(tmp_path, steps=2000, workers=2, more=SYNC) as run:
        chief = run.processes["chief"]
        until(run, lambda: steps_of(run, "worker-0") > 50, "steps")
        before = steps_of(run, "worker-0")
        run.kill("chief")
        assert finished(run) == 0, transcript(run)
        assert chief.term == 2
        (refused,) = run.processes["worker-0"].events("refused")
        assert refused["step"] > before + 20, "steps were made until the next chief came"
        gaps = [event["gap_seconds"] for event in run.processes["worker-0"].events("worker")]
        assert max(gaps) <= 1.0, transcript(run)
        assert len(chief.events("initialized")) == 1, "the next chief takes over what is there"
        assert chief.events("result")[0]["step"] == 2000


def test_a_lost_server_is_restored_and_all_go_on_from_one_step(tmp_path: Path) -> None:
    lose_a_server(tmp_path, SYNC)


def lose_a_server(folder: Path, settings: dict[str, Any]) -> None:
    """A job in step goes on from a checkpoint, and comes to its end."""
    with job(folder, steps=1000, workers=2, ps=2, more=settings) as run:
        chief = run.processes["chief"]
        until(run, lambda: chief.events("checkpoint"), "a checkpoint")
        run.kill("ps-1")
        until(run, lambda: chief.events("restored"), "a restore")
        assert finished(run) == 0, transcript(run)
        result = chief.events("result")[0]
        assert result["step"] == 1000
        assert result["test_accuracy"] >= 0.9
