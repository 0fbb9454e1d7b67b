"""A returning member receives the state while training continues, and is then bit-equal to its source."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pstraining.runtime.replication.transfer import chunks, state_transfer
from pstraining.runtime.replication.view import View
from pstraining.runtime.updates.synchronous.two_phase_commit import ReplicatedAccumulators
from tests.support.placement import computing_on, watched
from tests.support.replicated_job import SHARDS, ReplicatedJob
from tests.support.servers import Rig, batches, large, small
from tests.support.soak_marks import ALL, in_all, in_soak, some
from tests.training.test_runtime_embedding import batches as clicked
from tests.training.test_runtime_embedding import ours

pytestmark = [pytest.mark.training, pytest.mark.minutes, pytest.mark.timeout(600)]
BEFORE, AFTER, LAST = 2, 3, 2
"""Steps before a loss, after the member's return, and after the loss of the other member."""
MOST = 60
"""The number of steps of a run."""
PIECE = 300_000


def adam() -> Any:
    import keras

    return keras.optimizers.Adam(0.01)


def averaged() -> Any:
    import keras

    return keras.optimizers.AdamW(0.01, amsgrad=True, use_ema=True, ema_overwrite_frequency=3)


def factored() -> Any:
    import keras

    return keras.optimizers.Adafactor(0.01)


def deep() -> Any:
    """Return a model with three tensors of more than 256 KB, two of them on the first server."""
    import keras

    widths = [keras.layers.Dense(400, activation="tanh") for _ in range(4)]
    return keras.Sequential([keras.Input((8,)), *widths, keras.layers.Dense(3, activation="softmax")])


def replicated_job(
    client: Any,
    patch: pytest.MonkeyPatch,
    optimizer: Callable[[], Any] = adam,
    *,
    tables: bool = False,
    shards: int = SHARDS,
    incremental_bytes: int = 0,
    **training: Any,
) -> ReplicatedJob:
    model = {"build": ours(), "loss": "binary_crossentropy"} if tables else {"build": large}

    def rig(client: Any) -> Rig:
        return Rig(client, optimizer, ps=shards, members=2, **{"mode": "Sync", **model, **training})

    data, piece = (clicked(MOST, seed=3), 200) if tables else (batches(MOST, seed=3), PIECE)
    return ReplicatedJob(
        client, patch, rig, data, shards=shards, chunk_bytes=piece, incremental_bytes=incremental_bytes
    )


def tasks_of(view: View) -> list[list[str]]:
    return [[process.task for process in own] for own in view.shards]


def watched_fetches(client: Any, found: ReplicatedJob, patch: pytest.MonkeyPatch) -> list[bool]:
    """Record for each further call whether it fetches all parameters."""
    fetches: list[bool] = []
    call, pull = client.call, found._worker._ops.pull

    def noted(function: Any, *reported: Any) -> Any:
        fetches.append(function is pull)
        return call(function, *reported)

    patch.setattr(client, "call", noted)
    return fetches


def learn_all(found: ReplicatedJob) -> int:
    """Transfer a chunk to each learner and make a step, in turn; return the number of turns."""
    times = 0
    while found.state_transfer.run(0.0):
        found.train()
        times += 1
    return times


def assert_as_if_undisturbed(found: ReplicatedJob) -> None:
    """Demand that all members in sync have the state of an undisturbed run, which this call makes in the same job."""
    ended, steps = found.states(), found.made
    while any(len(own) < 2 for own in found.view.shards):
        found.establish(readmit=True)
        learn_all(found)
    found.restore_initial()
    found.train(steps)
    expected = found.states()
    for task, values in ended.items():
        for number, (a, b) in enumerate(zip(values, expected[task], strict=True)):
            np.testing.assert_array_equal(a, b, err_msg=f"value {number} of {task}")


@pytest.mark.parametrize(
    ("optimizer", "training"),
    [
        (adam, {}),
        pytest.param(
            adam,
            {"tables": True},
            marks=in_all(
                "tests/training/test_runtime_state_transfer.py"
                "::test_steps_continue_during_a_state_transfer_and_the_learner_ends_bit_equal"
            ),  # the same chunks
        ),
        pytest.param(
            factored,
            {"build": deep},
            marks=in_all(
                "tests/training/test_runtime_state_transfer.py"
                "::test_steps_continue_during_a_state_transfer_and_the_learner_ends_bit_equal"
            ),  # chunks that are whole vectors
        ),
        pytest.param(adam, {"compression": {"push": "None", "pull": "Int8"}}, marks=in_soak),
        pytest.param(averaged, {"compression": {"push": "None", "pull": "TopK"}}, marks=in_soak),
        pytest.param(adam, {"compression": {"push": "None", "pull": "Auto"}}, marks=in_soak),
    ],
    ids=["slots and statistics", "tables", "whole tensors", "a codec's shadow", "averages and another shadow", "forms"],
)
def test_steps_continue_during_a_state_transfer_and_the_learner_ends_bit_equal(
    client: Any, monkeypatch: pytest.MonkeyPatch, optimizer: Any, training: dict[str, Any]
) -> None:
    found = replicated_job(client, monkeypatch, optimizer, **training)
    found.train(BEFORE)
    found.lose(0, 0)
    found.establish()
    assert tasks_of(found.view) == [["ps-2"], ["ps-1", "ps-3"]]
    found.train()
    found.establish(readmit=True)
    assert tasks_of(found.view) == [["ps-2"], ["ps-1", "ps-3"]], "a learner does not count"
    assert [process.task for process in found.view.learners] == ["ps-0"]
    times = learn_all(found)
    assert times > 1, "steps were applied between chunks"
    found.establish(readmit=True)
    assert tasks_of(found.view) == [["ps-0", "ps-2"], ["ps-1", "ps-3"]]
    assert not found.view.learners
    found.train(AFTER)
    states = found.states()
    for a, b in zip(states["ps-0"], states["ps-2"], strict=True):
        np.testing.assert_array_equal(a, b)
    if "Auto" in str(training):  # the clock chooses the form of a step
        return
    if ALL:  # the former learner alone has the state; in `make test`, that of both is compared
        found.lose(0, 1)
        found.establish()
        assert tasks_of(found.view) == [["ps-0"], ["ps-1", "ps-3"]]
        found.train(LAST)
    assert_as_if_undisturbed(found)


def test_a_lease_is_over_for_good_if_the_clock_is_set_back(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = replicated_job(client, monkeypatch)
    found.train()
    lease = found.rig.store.shards[0].member_state.lease

    def change(seconds: float) -> None:
        """Move the end of the lease, as a clock that changes by the opposite."""

        def emit() -> Any:
            with tf.device(found.rig.store.shards[0].device):
                done = lease.assign_add(tf.constant(seconds, tf.float64), read_value=False)
            with tf.control_dependencies([done]), tf.device(client.local):
                return tf.constant(0)

        client.call(tf.function(emit, autograph=False))

    change(86400.0)
    step = threading.Thread(target=found.train, daemon=True)
    step.start()
    step.join(2.0)
    assert step.is_alive(), "no step is applied"
    assert found.read([lease]) == [0.0], "it does not hold again a day later"
    found.view_changer.establish()  # renews it
    step.join(60.0)
    assert found.made == 2


@in_all(
    "tests/training/test_runtime_state_transfer.py"
    "::test_steps_continue_during_a_state_transfer_and_the_learner_ends_bit_equal"
)  # A chunk of another step is rejected and sent again. Without the check, the member in sync differs from its source.
def test_with_a_chunk_of_another_step_the_learner_differs(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused, it is given again; with the check switched off the member that is in sync differs."""
    found = replicated_job(client, monkeypatch)
    found.lose(0, 0)
    found.establish(readmit=True)
    (learner,), (source, *_) = found.view.learners, found.view.shards[0]
    assert found.send_chunk_late(source, learner) == 0, "refused"
    assert found.state_transfer.run(0.0)
    assert found.chunk_counts() == [1], "of the same step it is taken"
    monkeypatch.setattr(chunks.StateTransferOps, "_is_at_same_step", lambda *_: tf.constant(True))
    assert found.send_chunk_late(source, learner) == 2
    learn_all(found)
    found.establish(readmit=True)
    assert tasks_of(found.view) == [["ps-0", "ps-2"], ["ps-1", "ps-3"]]
    with pytest.raises(AssertionError, match="value"):
        assert_as_if_undisturbed(found)


@in_all(
    "tests/property/test_view_exploration.py::test_no_interleaving_loses_an_acknowledged_step_during_a_state_transfer"
)  # on real servers
def test_a_lost_learner_costs_no_step_and_its_successor_restarts_the_transfer(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = replicated_job(client, monkeypatch)
    found.lose(0, 0)
    found.lose(1, 1)
    found.establish(readmit=True)
    assert [process.task for process in found.view.learners] == ["ps-0", "ps-3"]
    assert found.state_transfer.run(0.0)
    found.train()
    found.lose(0, 0)
    found.establish()
    assert [process.task for process in found.view.learners] == ["ps-3"], "the present learner continues"
    assert found.chunk_counts() == [0]
    found.train()
    found.establish(readmit=True)
    assert len(found.view.learners) == 2
    learn_all(found)
    found.establish(readmit=True)
    assert tasks_of(found.view) == [["ps-0", "ps-2"], ["ps-1", "ps-3"]]
    found.train()
    assert_as_if_undisturbed(found)


@in_all(
    "tests/training/test_runtime_state_transfer.py"
    "::test_steps_continue_during_a_state_transfer_and_the_learner_ends_bit_equal"
)  # and the chief is lost
def test_a_new_chief_continues_a_state_transfer(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = replicated_job(client, monkeypatch)
    found.lose(0, 0)
    found.establish(readmit=True)
    assert found.state_transfer.run(0.0)
    found.train()
    found.next_chief()
    found.establish()
    assert [process.task for process in found.view.learners] == ["ps-0"]
    assert found.chunk_counts() == [0], "under another ballot no chunk counts"
    learn_all(found)
    found.establish(readmit=True)
    assert tasks_of(found.view) == [["ps-0", "ps-2"], ["ps-1", "ps-3"]]
    found.train()
    assert_as_if_undisturbed(found)


@in_all(
    "tests/training/test_runtime_state_transfer.py::test_a_standby_takes_over_and_a_little_state_is_copied"
)  # after several attempts
def test_after_too_many_late_chunks_the_state_is_copied_between_two_steps(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = replicated_job(client, monkeypatch)
    found.train()
    found.lose(0, 0)
    with monkeypatch.context() as patch:
        patch.setattr(chunks.StateTransferOps, "_is_at_same_step", lambda *_: tf.constant(False))
        found.establish(readmit=True)
        for _ in range(state_transfer.MAX_MISSED_STEPS):
            assert found.state_transfer.run(0.0)
        assert found.chunk_counts() == [0]
        assert not found.state_transfer.run(0.0), "it is given up"
        found.establish(readmit=True)
    assert tasks_of(found.view) == [["ps-0", "ps-2"], ["ps-1", "ps-3"]]
    assert not found.view.learners
    found.train()
    assert_as_if_undisturbed(found)


@pytest.mark.parametrize(
    "mode",
    some(
        ["Sync", "Async", "Hybrid"],
        lambda mode: mode == "Sync",
        in_all("tests/training/test_runtime_state_transfer.py::test_a_standby_takes_over_and_a_little_state_is_copied"),
    ),
)
def test_a_standby_takes_over_and_a_little_state_is_copied(
    client: Any, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """A standby becomes primary after a failover, and a small state is copied.

    The worker computes on a device that stands in for an accelerator, before and after both changes.
    """
    shards = SHARDS if ALL else 1
    with computing_on(client, "CPU:1"):
        found = replicated_job(client, monkeypatch, shards=shards, incremental_bytes=10**9, build=small, mode=mode)
        first, *others = tasks_of(found.view)
        assert [first, *others] == [[f"ps-{number}", f"ps-{number + shards}"] for number in range(shards)]
        found.train()
        if mode == "Sync":
            with monkeypatch.context() as patch:
                fetches = watched_fetches(client, found, patch)
                found.next_chief()
                found.establish()
                found.train()
            assert fetches
            assert not any(fetches), "the worker has the servers' parameters"
        found.lose(0, 0)
        found.establish()
        assert tasks_of(found.view) == [first[1:], *others]
        with watched() as seen:
            found.train()
        assert seen.devices_of("MatMul") == {"worker 0 CPU:1"}
        found.establish(readmit=True)
        assert tasks_of(found.view) == [first, *others]
        if mode != "Async":
            members = (found.rig.store.member(0, number) for number in (0, 1))
            staged = [found.read(ReplicatedAccumulators.of(member).staged) for member in members]
            assert [any(map(np.any, one)) for one in staged] == [False, True], "variables of a round are not copied"
        found.train()
        assert_as_if_undisturbed(found)


@in_all(
    "tests/training/test_runtime_state_transfer.py::test_a_standby_takes_over_and_a_little_state_is_copied"
)  # it shows what would be fetched
@pytest.mark.parametrize("holds", [True, False])
def test_a_worker_does_not_pull_current_parameters_again(
    client: Any, monkeypatch: pytest.MonkeyPatch, holds: bool
) -> None:
    """A worker does not pull current parameters again. Otherwise all workers would fetch all parameters with every view
    change.
    """
    found = replicated_job(client, monkeypatch)
    found.train()
    monkeypatch.setattr(found._worker, "_may_hold", holds)
    fetches = watched_fetches(client, found, monkeypatch)
    found.next_chief()
    found.establish()
    found.train()
    assert any(fetches) != holds
    found.restore_initial()
    found.train()
    assert any(fetches), "of another set nothing is here"


def test_a_save_during_a_transfer_is_not_taken_from_the_learner(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner applies every step, but most of its state is missing: the checkpoint has the primary's."""
    from pstraining.runtime.chief.membership import Membership
    from pstraining.runtime.chief.store_admin import StoreAdmin
    from pstraining.runtime.telemetry.counters import ChiefCounters

    shards = SHARDS if ALL else 1
    found = replicated_job(client, monkeypatch, averaged if ALL else adam, shards=shards)
    found.train(BEFORE)
    found.lose(0, 1)
    monkeypatch.setattr(client, "cluster", replace(client.cluster, term=2))
    members = Membership(
        client,
        found.rig.store,
        restore=found._restore,
        check_abort=lambda: None,
        counters=ChiefCounters(),
    )
    members.establish(readmit=True)
    assert members.view_changer
    assert members.view_changer.transfer(0.0), "chunks are missing"
    primary = StoreAdmin(members.whole.for_assignment(((0,),) * shards)).snapshot(fence=members.fence)
    saved = members.admin.snapshot(fence=members.fence)
    assert saved.step == BEFORE
    for name, value in primary.tensors.items():
        np.testing.assert_array_equal(saved.tensors[name], value, err_msg=name)
    whole, sources = members.whole, [own.shard.device for own in members.admin.parts.sources]
    assert sources[0] == whole.member(0, 0).device, "its standby is a learner"
    assert sources[1:] == [whole.member(shard, 1).device for shard in range(1, shards)]
