"""Assigned data: no sample is lost or trained twice, whichever process is killed."""

import copy
import gc
import json
import os
import random
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pstraining.api import contract
from pstraining.api.training import Mode
from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.config.settings import CheckpointSettings, SettingsError, TrainingSettings
from pstraining.runtime.data.sources import Ranges
from pstraining.runtime.local import LocalJob
from pstraining.runtime.ps.data_ledger import SplitPosition
from tests.support import counting
from tests.support.crashing_workers import Kills, Line, killable
from tests.support.servers import SESSION, SPREAD, Rig, batches, small
from tests.support.soak_marks import ALL, THOROUGH, in_all, some
from tests.training.test_runtime_faults import finished, steps_of, transcript, until
from tests.training.test_runtime_updates import wait_until

pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]
KILLS = int(os.environ.get("PSTRAINING_KILLS", "5"))
"""Processes that are killed; `make soak` kills 30."""
SIMULATED_KILLS = int(os.environ.get("PSTRAINING_SIMULATED_KILLS", "100" if THOROUGH else "12" if ALL else "7"))
"""Threads that are killed, each of whose successors traces again; `make soak` kills 1,000."""
WORKERS = 3
"""Workers of a job whose processes are killed."""
THREADS, SERVERS = (3, 2) if THOROUGH else (2, 1)
"""Workers and servers of a job whose threads are killed. Each new process traces again for each server."""


def sgd() -> Any:
    import keras

    return keras.optimizers.SGD(0.1)


@pytest.mark.parametrize(
    "mode",
    some(
        ["Async", "Sync"],
        lambda mode: mode == "Sync",
        in_all("tests/training/test_runtime_ledger.py::test_the_data_position_advances_only_with_the_update"),
    ),
)
def test_the_data_position_advances_only_with_the_update(client: Any, mode: str) -> None:
    rig = Rig(client, sgd, ps=2, build=small, mode=mode, with_ledger=True)
    rig.start()
    who = (0, 1)
    assert rig.store.assign_split(SESSION, who, 3) == (1, 0, 0)
    assert rig.store.assign_split(SESSION, who, 3) == (1, 0, 0), "a worker that asks again gets the same split"
    (one,) = batches(1)
    assert rig.workers[0].step([one], SplitPosition(0, 1, finished=False)).applied
    assert rig.store.assign_split(SESSION, who, 3) == (1, 0, 1), "a process that takes over continues behind the update"
    assert rig.workers[0].step([one], SplitPosition(0, 2, finished=True)).applied
    assert rig.store.assign_split(SESSION, who, 3) == (1, 1, 0)
    assert rig.store.assign_split(SESSION, (0, 0), 3)[0] == -1, "an older process gets nothing"
    saved = rig.control.snapshot(fence=1)
    for _ in range(2):
        _, position, _ = rig.store.assign_split(SESSION, who, 3)
        assert rig.workers[0].step([one], SplitPosition(position, 1, finished=True)).applied
    assert rig.store.assign_split(SESSION, who, 3)[0] == 0, "all is handed out"
    assert rig.control.data_left() == (3, 0)

    rig.start(saved)
    assert rig.store.assign_split(SESSION, who, 3) == (1, 1, 0), "a checkpoint also has the place in the data"


def test_with_other_data_the_incomplete_epoch_starts_again(
    client: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With other data, the epoch that was not complete starts again; its positions would mean other samples."""
    from pstraining.runtime.chief.chief import Chief
    from pstraining.runtime.chief.options import ChiefOptions
    from pstraining.runtime.chief.shutdown import GracefulStop

    def chief_of(rig: Rig, block: int, folder: str = "") -> Any:
        training = TrainingSettings(epochs=2)
        checkpoint = CheckpointSettings(path=str(tmp_path / folder), interval_seconds=3600)
        order = Ranges(60, block, counting.read).order
        return Chief(
            client, rig.store, ChiefOptions(training, checkpoint, None, by_splits=True, order=order), stop=stop
        )

    stop, (one,) = GracefulStop(), batches(1)
    rig = Rig(client, sgd, ps=1, build=small, with_ledger=True)
    rig.start()
    for position in range(8):
        assert rig.store.assign_split(SESSION, (0, 1), 12) == (1, position, 0)
        assert rig.workers[0].step([one], SplitPosition(position, 1, finished=True)).applied
    stop._asked = True
    with pytest.raises(SystemExit, match="143"):
        chief_of(rig, 10).run()

    for block, left in ((10, (8, 0)), (15, (4, 0)), (20, (3, 0))):
        if block < 20:  # later, the servers live, and have other data than all other tasks
            client.container += f".{block}"
        stop, rig = GracefulStop(), Rig(client, sgd, ps=1, build=small, with_ledger=True)
        capsys.readouterr()
        chief_of(rig, block)._establish_term()
        assert rig.control.data_left() == left
        assert ("data_begins_anew" in capsys.readouterr().out) == (block > 10)
    with pytest.raises(SettingsError, match="order, have changed since training began, and there is no checkpoint"):
        chief_of(rig, 10, "empty")._establish_term()
    chief_of(rig, 20, "empty")._establish_term()
    assert rig.control.data_left() == (3, 0), "the refusal has changed nothing"


def test_a_worker_that_is_out_of_data_has_reported_every_batch(client: Any) -> None:
    """A worker that is out of data has reported every batch before it deregisters to wait for the others; later reports
    would be rejected.
    """
    from pstraining.runtime.worker.loop import Worker
    from pstraining.runtime.worker.router import StaticRouter

    (whole,) = batches(1)

    def read(begin: int, end: int) -> Any:
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices(tuple(part[begin:end] for part in whole)).batch(4)

    source, training = Ranges(len(whole[0]), 8, read), TrainingSettings(mode=Mode.ASYNC, epochs=3)
    rig = Rig(client, sgd, ps=1, build=small, with_ledger=True)
    rig.start()
    store, updates = rig.store, rig.workers[0]
    worker = Worker(StaticRouter(store, updates), rig.identities[0], source, training=training)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    wait_until(lambda: rig.control.data_left() == (3 * source.count, 0) and not rig.control.workers_present())
    (report,) = rig.control.reports()
    rig.control.set_record(1, done=1)
    thread.join(60)
    assert not thread.is_alive()
    assert json.loads(report)["counters"]["samples"] == 3 * len(whole[0])


@pytest.mark.parametrize(
    "mode",
    some(
        ["Async", "Sync"],
        lambda mode: mode == "Async",
        in_all("tests/training/test_runtime_ledger.py::test_trained_or_reassigned_batches_are_rejected"),
    ),
)
def test_trained_or_reassigned_batches_are_rejected(client: Any, mode: str) -> None:
    """Batches that were trained or reassigned are rejected, such as those that a paused server receives after the
    worker has returned.
    """
    rig = Rig(client, sgd, ps=2, build=small, mode=mode, with_ledger=True)
    rig.start()
    assert rig.store.assign_split(SESSION, (0, 1), 3) == (1, 0, 0)
    one, two = batches(2)
    assert rig.workers[0].step([one], SplitPosition(0, 1, finished=False)).applied
    for void in (SplitPosition(0, 1, finished=False), SplitPosition(1, 1, finished=False)):
        reply = rig.workers[0].step([two], void)
        assert (reply.session_valid, reply.applied, reply.done) == (False, False, False)
        assert rig.store.read()[0].step == 1, "counted by the server with the ledger"
    assert rig.workers[0].step([two], SplitPosition(0, 2, finished=True)).applied
    assert rig.store.read()[0].step == 2


def test_the_splits_of_a_crashed_worker_are_reassigned(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pstraining.runtime.ps import data_ledger

    monkeypatch.setattr(data_ledger, "RECLAIM_SECONDS", 3.0)
    rig = Rig(client, sgd, ps=1, build=small, workers=2, with_ledger=True)
    rig.start()
    for who in ((1, 1), (0, 1)):
        rig.store.heartbeat(*who)  # traced now, so that the following calls take no time
    assert rig.store.assign_split(SESSION, (1, 1), 100_000) == (1, 0, 0)
    rig.store.heartbeat(1, 1)
    assert rig.store.assign_split(SESSION, (0, 1), 100_000) == (1, 1, 0)
    assert rig.workers[0].step(batches(1), SplitPosition(1, 1, finished=True)).applied
    deadline = time.monotonic() + 60
    while True:
        rig.store.heartbeat(0, 1)
        state, position, _ = rig.store.assign_split(SESSION, (0, 1), 100_000)
        assert state == 1
        if position == 0:
            return
        assert rig.workers[0].step(batches(1), SplitPosition(position, 1, finished=True)).applied
        assert time.monotonic() < deadline
        time.sleep(0.2)


@in_all(
    "tests/training/test_runtime_ledger.py::test_in_sync_no_sample_is_lost_or_trained_twice_for_a_crash_at_any_message"
)  # processes instead of threads
def test_in_sync_no_sample_is_lost_or_trained_twice_after_any_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = 1500 + 600 * KILLS
    monkeypatch.setenv("COUNTING_SAMPLES", str(samples))
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    with LocalJob(
        ["-m", "tests.support.counting"],
        ps=2,
        workers=WORKERS,
        restarts=10 * KILLS,
        training={"mode": "Sync", **SPREAD},
        checkpoint={"path": str(tmp_path), "keep": 2, "intervalSeconds": 1},
    ) as run:
        until(run, lambda: all(steps_of(run, f"worker-{k}") for k in range(WORKERS)), "all workers' steps")
        for number in range(KILLS):
            # The first kill is a server's, after which training repeats the samples since the newest checkpoint.
            names = [f"worker-{k}" for k in range(WORKERS)] + ["chief", "chief"]
            victim = "ps-1" if number == 1 else draw.choice(names)
            run.kill(victim)
            killed = time.time()
            until(run, partial(_has_continued, run, killed + 1), f"steps after {victim} was killed")
        assert finished(run, 300) == 0, transcript(run)
        state = Checkpoints(tmp_path, keep=2).newest()
    assert state is not None
    (accumulated,) = state.slots["accumulator"].values()
    times = counting.times_trained(accumulated[:samples], WORKERS)
    assert times.count(1) == samples, f"lost {times.count(0)}, twice {times.count(2)} of {samples} (seed {seed})"


def test_in_sync_no_sample_is_lost_or_trained_twice_for_a_crash_at_any_message(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Sync no sample is lost or trained twice when workers and chiefs, as threads on real servers, are killed at any
    call.

    Some of the replaced threads continue for a while beside their successors.
    """
    # These modules import Keras, which must not be loaded before the client has connected.
    from pstraining.runtime.checkpoint.state import SupersededError
    from pstraining.runtime.chief.chief import Chief
    from pstraining.runtime.chief.options import ChiefOptions
    from pstraining.runtime.updates.base import Identity
    from pstraining.runtime.worker.loop import Worker
    from pstraining.runtime.worker.router import StaticRouter

    seed = random.randrange(2**32)
    print(f"seed {seed}")
    samples = 60 * max(SIMULATED_KILLS, 12)
    monkeypatch.setattr(counting, "SAMPLES", samples)
    monkeypatch.setattr(counting, "PACE", 0.0)
    monkeypatch.setattr(client, "_guarded", killable(client._guarded))
    source = Ranges(samples, counting.BLOCK, counting.read)
    training = TrainingSettings(mode=Mode.SYNC, epochs=1)
    checkpoint = CheckpointSettings(path=str(tmp_path), interval_seconds=1, keep=2)
    rig = Rig(
        client,
        counting.optimizer,
        ps=SERVERS,
        build=counting.model,
        loss=counting.loss,
        workers=THREADS,
        mode="Sync",
        with_ledger=True,
    )
    rig.start()
    duties = ChiefOptions(training, checkpoint, None, training.positions(source.count))

    def work(worker: int, number: int) -> None:
        # A copy, because a replaced process may continue beside its successor, and processes share no memory.
        updates, identity = copy.copy(rig.workers[worker]), Identity(worker, 1 + number)
        updates._identity = identity.tensor()
        Worker(StaticRouter(updates._store, updates), identity, source, training=training).run()

    def lead(number: int) -> None:
        chief = Chief(client, rig.store, duties)
        chief._members.term = 1 + number
        with suppress(SupersededError):  # a replaced process
            chief.run()

    kills = Kills(SIMULATED_KILLS, seed)
    lines = [Line(kills, 1 / 40, partial(work, worker)) for worker in range(THREADS)]
    lines.append(Line(kills, 1 / 20, lead))
    deadline = time.monotonic() + 500 + 2 * SIMULATED_KILLS
    while any(line.is_alive() for line in lines):
        assert time.monotonic() < deadline, f"the job stands still (seed {seed})"
        if errors := [line.error for line in lines if line.error]:
            raise errors[0]
        time.sleep(0.05)
    assert kills.left == 0, f"the job was over after {kills.made} kills: it needs more samples"
    gc.collect()  # collect the killed threads' objects here, and not during another test's call
    state = Checkpoints(tmp_path, keep=2).newest()
    assert state is not None
    (accumulated,) = state.slots["accumulator"].values()
    times = counting.times_trained(accumulated[:samples], THREADS)
    assert times.count(1) == samples, f"lost {times.count(0)}, twice {times.count(2)} of {samples} (seed {seed})"


def test_a_worker_with_other_data_than_the_chief_ends_the_job(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os\n"
        "from pstraining.runtime import Ranges, Trainer\n"
        "from tests.support import counting\n"
        "seed = int(os.environ['PSTRAINING_TASK_TYPE'] == 'chief')\n"
        "data = Ranges(3000, counting.BLOCK, counting.read, seed=seed)\n"
        "Trainer(counting.model, counting.optimizer, counting.loss, data, epochs=1).run()\n"
    )
    with LocalJob([str(program)], workers=1) as run:
        assert run.wait() == contract.EXIT_BAD_SETTINGS, run.leader.lines
    assert run.leader.lines[-1].startswith("data: worker 0 has other splits than the chief, or in another order")


def _has_continued(run: LocalJob, since: float) -> bool:
    """Whether worker 0 has reported steps after that time, or the job is over."""
    return any(e["time"] > since for e in run.processes["worker-0"].events("worker")) or run.supervise() is not None
