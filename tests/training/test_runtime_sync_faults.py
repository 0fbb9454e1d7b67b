"""Synchronous jobs of real processes that lose a process."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.soak_marks import in_all, in_soak
from tests.training.test_runtime_faults import finished, job, made_since, steps_of, transcript, unattended, until

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]
SYNC = {"mode": "Sync"}


@in_all("tests/e2e/test_training_faults.py::test_a_loss_costs_the_other_tasks_only_seconds")  # on kubelets
def test_a_killed_worker_is_waited_for_briefly_and_rejoins() -> None:
    with job(None, workers=2, more=SYNC) as run:
        until(run, lambda: all(steps_of(run, f"worker-{k}") > 5 for k in range(2)), "all workers' steps")
        run.kill("worker-1")
        killed = time.time()
        unattended(run, made_since(run, "worker-0", 10), "steps without it")
        again = run.processes["worker-1"]
        until(run, lambda: any(e["time"] > killed for e in again.events("worker")), "its return")
        assert run.processes["worker-0"].starts == 1


@in_soak
def test_workers_continue_synchronously_without_a_chief(tmp_path: Path) -> None:
    with job(tmp_path, steps=2000, workers=2, more=SYNC) as run:
        chief = run.processes["chief"]
        until(run, lambda: steps_of(run, "worker-0") > 50, "steps")
        before = steps_of(run, "worker-0")
        run.kill("chief")
        assert finished(run) == 0, transcript(run)
        assert chief.term == 2
        (refused,) = run.processes["worker-0"].events("refused")
        assert refused["step"] > before + 20, "steps were applied until the next chief started"
        gaps = [event["gap_seconds"] for event in run.processes["worker-0"].events("worker")]
        assert max(gaps) <= 1.0, transcript(run)
        assert len(chief.events("initialized")) == 1, "the next chief resumes from the servers' state"
        assert chief.events("result")[0]["step"] == 2000


@in_all("tests/e2e/test_training_faults.py::test_a_loss_costs_the_other_tasks_only_seconds")  # on kubelets
def test_a_lost_server_is_restored_and_all_continue_from_one_step(tmp_path: Path) -> None:
    lose_a_server(tmp_path, SYNC)


def lose_a_server(folder: Path, settings: dict[str, Any]) -> None:
    """Kill a server of a synchronous job, which resumes from a checkpoint; demand that no update is repeated or left
    out.
    """
    with job(folder, workers=2, ps=2, more=settings) as run:
        chief = run.processes["chief"]
        until(run, lambda: chief.events("checkpoint"), "a checkpoint")
        run.kill("ps-1")
        restored = until(run, lambda: chief.events("restored"), "a restore")[0]
        for worker in ("worker-0", "worker-1"):
            until(run, made_since(run, worker, 10), f"steps of {worker} after it")
        assert restored["step"] >= chief.events("checkpoint")[0]["step"]
