"""Runs with assigned data, and runs from a checkpoint, can be repeated bit for bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.local import LocalJob
from pstraining.runtime.ps.data_ledger import SplitPosition
from tests.support.servers import SESSION, Rig, batches, small
from tests.support.soak_marks import ALL, in_all, in_soak, some
from tests.support.worker_threads import Crew
from tests.training.test_runtime_faults import finished, transcript, until

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]
PS = 3 if ALL else 1


def sgd() -> Any:
    import keras

    return keras.optimizers.SGD(0.1)


def test_workers_get_their_splits_in_the_order_of_their_indices(client: Any) -> None:
    rig = Rig(client, sgd, ps=PS, build=small, workers=3, mode="Sync", ordered_sums=True, with_ledger=True)
    rig.start()
    assert rig.store.assign_split(SESSION, (2, 1), 4) == (1, 2, 0)
    assert rig.store.assign_split(SESSION, (0, 1), 4) == (1, 0, 0)
    assert rig.store.assign_split(SESSION, (1, 1), 4) == (1, 1, 0)
    shares = batches(3)
    done = [[SplitPosition(k, 1, finished=True)] for k in range(3)]
    Crew(rig, [[share] for share in shares], progress=done).join()
    assert rig.store.assign_split(SESSION, (2, 1), 4)[0] == 0, "one is left, and the first worker has it"
    assert rig.store.assign_split(SESSION, (0, 1), 4) == (1, 3, 0)
    assert rig.control.data_left() == (4, 1)
    for who in rig.identities[1:]:
        rig.store.deregister(who.worker, who.incarnation)
    # The other workers have no data to train on, and are not waited for.
    Crew(rig, [[shares[0]]], progress=[[SplitPosition(3, 1, finished=True)]]).join()
    assert rig.control.data_left() == (4, 0)


@pytest.mark.parametrize(
    "name",
    some(
        ["Adam", "Adagrad"],
        lambda name: name == "Adam",
        in_all(
            "tests/training/test_runtime_ordered.py::test_a_run_resumes_from_its_state_as_if_uninterrupted"
        ),  # with Adam
    ),
)
def test_a_run_resumes_from_its_state_as_if_uninterrupted(client: Any, name: str) -> None:
    import keras

    workers = 2 if ALL else 1
    rig = Rig(
        client,
        lambda: getattr(keras.optimizers, name)(0.05),
        ps=PS,
        build=small,
        workers=workers,
        mode="Sync",
        ordered_sums=True,
    )
    shares = [batches(20, seed=worker) for worker in range(workers)]
    rig.start()
    Crew(rig, [share[:10] for share in shares]).join()
    half = rig.control.snapshot(fence=1)
    Crew(rig, [share[10:] for share in shares]).join()
    whole = rig.control.snapshot(fence=1)
    rig.start(half)
    Crew(rig, [share[10:] for share in shares]).join()
    again = rig.control.snapshot(fence=1)
    assert again.step == whole.step == 20
    for path, value in whole.variables.items():
        np.testing.assert_array_equal(again.variables[path], value)


@in_soak
def test_a_job_restarted_from_a_checkpoint_ends_bit_equal(tmp_path: Path) -> None:
    """A job that is restarted from a checkpoint after the loss of all processes ends bit-equal to an uninterrupted
    job.
    """

    def job(folder: Path) -> LocalJob:
        return LocalJob(
            ["-m", "tests.support.deterministic_program"],
            ps=2,
            workers=3,
            training={"mode": "Sync", "orderedSums": True, "epochs": 6},
            checkpoint={"path": str(folder), "intervalSeconds": 1},
        )

    def whole(folder: Path) -> Any:
        with job(folder) as run:
            assert finished(run) == 0, transcript(run)
            restored = [event["step"] for event in run.processes["chief"].events("restored")]
        state = Checkpoints(folder, keep=3).newest()
        assert state is not None
        return state, restored

    expected, _ = whole(tmp_path / "whole")
    with job(tmp_path / "parts") as run:
        until(run, lambda: run.processes["chief"].events("checkpoint"), "a checkpoint")
    found, restored = whole(tmp_path / "parts")
    assert restored
    assert 0 < restored[0] < found.step == expected.step
    for path, value in expected.variables.items():
        np.testing.assert_array_equal(found.variables[path], value)
