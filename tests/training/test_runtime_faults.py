"""Jobs of real processes that lose a process: the digits example, killed at every place.

Most of the jobs train slowly and without an end, which leaves the processor to the returning processes.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.local import LocalJob, LocalProcess
from tests.support.servers import SPREAD
from tests.support.soak_marks import THOROUGH, in_all

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]
DIGITS = ["-m", "examples.digits"]
PACED = ["-m", "tests.support.paced"]


def job(
    folder: Path | None,
    *,
    steps: int | None = None,
    workers: int = 1,
    more: dict[str, Any] | None = None,
    **options: Any,
) -> LocalJob:
    """Return the digits example: at full speed with a number of steps, paced and endless without one."""
    checkpoint = {"path": str(folder), "keep": 3, "intervalSeconds": 1} if folder else None
    training = {**({"steps": steps} if steps else {}), **SPREAD, **(more or {})}
    program = DIGITS if steps else PACED
    return LocalJob(program, workers=workers, restarts=1, training=training, checkpoint=checkpoint, **options)


def until(run: LocalJob, condition: Callable[[], Any], what: str, seconds: float = 180) -> Any:
    """Supervise the job until the condition holds."""

    def supervised() -> Any:
        if not (found := condition()):
            code = run.supervise()
            assert code is None, f"the job ended with {code} before {what}\n{transcript(run)}"
        return found

    return unattended(run, supervised, what, seconds)


def unattended(run: LocalJob, condition: Callable[[], Any], what: str, seconds: float = 180) -> Any:
    """Wait until the condition holds, without restarting lost processes."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"no sign of {what}\n{transcript(run)}"
        time.sleep(0.05)
    return found


def made_since(run: LocalJob, worker: str, steps: int) -> Callable[[], bool]:
    """Whether a worker has reported this number of steps since this call."""
    before = steps_of(run, worker)
    return lambda: steps_of(run, worker) >= before + steps


def checkpoint_since(chief: LocalProcess, moment: float) -> Callable[[], bool]:
    """Whether a chief has written a checkpoint after that time."""
    return lambda: any(line["time"] > moment for line in chief.events("checkpoint"))


def finished(run: LocalJob, seconds: float = 200) -> int:
    deadline = time.monotonic() + seconds
    while (code := run.supervise()) is None:
        assert time.monotonic() < deadline, f"the job did not end\n{transcript(run)}"
        time.sleep(0.05)
    return code


def transcript(run: LocalJob) -> str:
    lines = []
    for process in run.processes.values():
        relevant = [
            line for line in process.lines if line.startswith("{") or "rror" in line or line.startswith("step ")
        ]
        lines += [f"[{process.task.label}] {line}" for line in relevant[-15:]]
    return "\n".join(lines)


def steps_of(run: LocalJob, worker: str) -> int:
    return max((line["step"] for line in run.processes[worker].events("worker")), default=0)


def test_a_lost_server_is_restored_from_the_newest_readable_checkpoint(tmp_path: Path) -> None:
    steps = 3000 if THOROUGH else 1200
    with job(tmp_path, steps=steps, ps=2) as run:
        chief = run.processes["chief"]
        until(run, lambda: len(chief.events("checkpoint")) >= 2, "two checkpoints")
        run.processes["chief"].popen.send_signal(19)  # SIGSTOP: no further checkpoint while the newest is damaged
        checkpoints = Checkpoints(tmp_path, keep=3)
        newest = checkpoints.steps()[-1]
        arrays = checkpoints.path(newest) / "state.npz"
        arrays.write_bytes(arrays.read_bytes()[:-100])
        run.kill("ps-1")
        run.processes["chief"].popen.send_signal(18)
        restored = until(run, lambda: chief.events("restored"), "a restore")[0]
        assert 0 < restored["step"] < newest
        assert [line["step"] for line in chief.events("checkpoint_unreadable")] == [newest]
        assert finished(run) == 0, transcript(run)
        result = chief.events("result")[0]
        assert result["step"] >= steps
        assert result["test_accuracy"] >= 0.9
        others = [process for process in run.processes.values() if process.task.label != "ps-1"]
        assert all(process.starts == 1 for process in others), transcript(run)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalJob]:
    """Return a job that keeps training, and whose small model is on the first of three servers."""
    with job(tmp_path_factory.mktemp("small"), ps=3, more={"minShardBytes": 64 * 1024}) as run:
        yield run


def test_the_next_chief_continues_with_the_servers_state(small: LocalJob) -> None:
    chief, worker = small.processes["chief"], small.processes["worker-0"]
    until(small, lambda: chief.events("checkpoint"), "a checkpoint")
    term, restores, refusals = chief.term, len(chief.events("restored")), len(worker.events("refused"))
    small.kill("chief")
    until(small, lambda: worker.events("refused")[refusals:], "the next chief, which fences the former session")
    (refused,) = worker.events("refused")[refusals:]
    until(small, checkpoint_since(chief, refused["time"]), "its checkpoint")
    assert chief.term == term + 1
    assert len(chief.events("initialized")) == 1
    assert len(chief.events("restored")) == restores, "the servers kept the state: nothing is set back"
    ended = [line["term"] for line in worker.events("refused")[refusals:]]
    assert ended == [term], "the session of the former term ended once"


def test_a_small_model_is_on_one_server_and_the_others_are_optional(small: LocalJob) -> None:
    chief = small.processes["chief"]
    until(small, lambda: chief.events("checkpoint"), "a checkpoint")
    assert chief.events("unused_servers")[-1]["servers"] == ["ps-1", "ps-2"]
    for name in ("ps-1", "ps-2"):
        small.kill(name)
    until(small, made_since(small, "worker-0", 30), "steps without them")
    assert not chief.events("restored"), transcript(small)
    small.kill("ps-0")
    until(small, lambda: chief.events("restored"), "a restore, with new processes of theirs in the map")
    until(small, made_since(small, "worker-0", 10), "steps after it")


@in_all("tests/e2e/test_training_faults.py::test_a_loss_costs_the_other_tasks_only_seconds")  # on kubelets
def test_the_other_worker_continues_while_one_is_killed_and_restarts() -> None:
    with job(None, workers=2) as run:
        until(run, lambda: steps_of(run, "worker-0") and steps_of(run, "worker-1"), "both workers' steps")
        run.kill("worker-1")
        killed = time.time()
        unattended(run, made_since(run, "worker-0", 30), "the other one's steps")
        again = run.processes["worker-1"]
        until(run, lambda: again.starts == 2 and any(e["time"] > killed for e in again.events("worker")), "its return")
        assert run.processes["worker-0"].starts == 1


def test_without_checkpoints_a_lost_server_starts_from_the_beginning() -> None:
    with job(None, chief=False) as run:
        leader = run.processes["worker-0"]
        until(run, lambda: steps_of(run, "worker-0") > 10, "steps")
        run.kill("ps-0")
        until(run, lambda: len(leader.events("initialized")) == 2, "a new beginning")
        until(run, made_since(run, "worker-0", 10), "steps after it")
        assert len(leader.events("no_checkpoints")) == 1


@in_all(
    "tests/training/test_runtime_faults.py::test_the_next_chief_continues_with_the_servers_state"
)  # without a chief
def test_a_restarted_worker_zero_without_a_chief_resumes_its_duties(tmp_path: Path) -> None:
    with job(tmp_path, workers=2, chief=False) as run:
        leader = run.processes["worker-0"]
        until(run, lambda: leader.events("checkpoint") and steps_of(run, "worker-1"), "a checkpoint")
        run.kill("worker-0")
        until(run, checkpoint_since(leader, time.time()), "a checkpoint of its next process")
        assert leader.starts == 2
        assert len(leader.events("initialized")) == 1
