"""Hybrid jobs of real processes that lose a process."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.local import LocalJob
from tests.support import counting
from tests.support.servers import SPREAD
from tests.support.soak_marks import in_soak
from tests.training.test_runtime_faults import finished, job, steps_of, transcript, until
from tests.training.test_runtime_sync_faults import lose_a_server

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]
HYBRID = {"mode": "Hybrid"}


def rings(run: LocalJob, worker: str, members: list[int], since: float) -> list[dict[str, Any]]:
    """Return the rings of these workers that a worker has reported after that time."""
    reported = run.processes[worker].events("ring")
    return [event for event in reported if event["members"] == members and event["time"] > since]


@in_soak
def test_the_ring_reforms_within_a_second_without_a_killed_worker() -> None:
    with job(None, steps=2500, workers=3, more=HYBRID) as run:
        until(run, lambda: all(steps_of(run, f"worker-{k}") > 50 for k in range(3)), "all workers' steps")
        killed = time.time()
        run.kill("worker-1")
        until(run, lambda: all(rings(run, f"worker-{k}", [0, 2], killed) for k in (0, 2)), "a ring of two")
        formed = [rings(run, f"worker-{k}", [0, 2], killed)[0] for k in (0, 2)]
        assert max(event["time"] for event in formed) - killed <= 1.0, transcript(run)
        until(run, lambda: rings(run, "worker-1", [0, 1, 2], killed), "its return")
        assert finished(run) == 0, transcript(run)
        result = run.processes["chief"].events("result")[0]
        assert result["step"] == 2500
        assert result["test_accuracy"] >= 0.9
        assert run.processes["worker-0"].starts == run.processes["worker-2"].starts == 1
        assert not [event for process in run.processes.values() for event in process.events("diverged")]


@in_soak
def test_an_unresponsive_worker_is_excluded_and_may_rejoin() -> None:
    with job(None, steps=2500, workers=3, more=HYBRID) as run:
        until(run, lambda: all(steps_of(run, f"worker-{k}") > 50 for k in range(3)), "all workers' steps")
        stopped = time.time()
        run.processes["worker-1"].popen.send_signal(signal.SIGSTOP)
        formed = until(run, lambda: rings(run, "worker-0", [0, 2], stopped), "a ring of two")[0]
        assert formed["time"] - stopped <= 3.0, transcript(run)
        run.processes["worker-1"].popen.send_signal(signal.SIGCONT)
        until(run, lambda: rings(run, "worker-1", [0, 1, 2], stopped), "its return")
        assert finished(run) == 0, transcript(run)
        assert run.processes["chief"].events("result")[0]["step"] == 2500
        assert all(process.starts == 1 for process in run.processes.values())


@in_soak
def test_a_lost_server_is_restored_and_all_continue_from_one_step(tmp_path: Path) -> None:
    lose_a_server(tmp_path, HYBRID)


@in_soak
def test_the_next_chief_recovers_the_workers_state() -> None:
    with job(None, steps=2000, workers=2, more=HYBRID) as run:
        chief = run.processes["chief"]
        until(run, lambda: steps_of(run, "worker-0") > 50, "steps")
        run.kill("chief")
        assert finished(run) == 0, transcript(run)
        assert chief.term == 2
        assert len(chief.events("initialized")) == 1, "nothing is set back"
        assert chief.events("result")[0]["step"] == 2000
        assert chief.events("result")[0]["test_accuracy"] >= 0.9


@in_soak
def test_the_checkpoint_is_restored_after_the_loss_of_all_workers(tmp_path: Path) -> None:
    with job(tmp_path, steps=2000, workers=2, more=HYBRID) as run:
        chief = run.processes["chief"]
        until(run, lambda: chief.events("checkpoint"), "a checkpoint")
        for name in ("worker-0", "worker-1"):
            run.processes[name].popen.send_signal(signal.SIGSTOP)  # so that neither makes a step alone
        for name in ("worker-0", "worker-1"):
            run.kill(name)
        restored = until(run, lambda: chief.events("restored"), "a restore")[0]
        assert restored["step"] in [event["step"] for event in chief.events("checkpoint")]
        assert finished(run) == 0, transcript(run)
        assert chief.events("result")[0]["step"] == 2000


@in_soak
def test_no_sample_is_lost_or_trained_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTING_SAMPLES", "3000")
    checkpoint = {"path": str(tmp_path), "keep": 2, "intervalSeconds": 1}
    with LocalJob(
        ["-m", "tests.support.counting"],
        ps=2,
        workers=3,
        restarts=5,
        training={**HYBRID, **SPREAD},
        checkpoint=checkpoint,
    ) as run:
        until(run, lambda: all(steps_of(run, f"worker-{k}") for k in range(3)), "all workers' steps")
        run.kill("worker-1")
        killed = time.time()
        until(run, lambda: any(e["time"] > killed for e in run.processes["worker-1"].events("worker")), "its return")
        run.kill("chief")
        assert finished(run, 200) == 0, transcript(run)
        state = Checkpoints(tmp_path, keep=2).newest()
    assert state is not None
    (accumulated,) = state.slots["accumulator"].values()
    times = counting.times_trained(accumulated[:3000], 3)
    assert times.count(1) == 3000, f"lost {times.count(0)}, twice {times.count(2)}"
