"""What only a worker has: its own optimizer with `localSteps`, as in `fit`, and the residual of a codec."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.api.training import Mode
from pstraining.runtime.config.cluster import ENV_CLUSTER_FILE
from pstraining.runtime.config.settings import TrainingSettings
from pstraining.runtime.ps.record import Session
from tests.support.servers import GENERATION, SESSION, Rig, batches, large, small
from tests.training.test_runtime_updates import wait_until

pytestmark = [pytest.mark.training, pytest.mark.timeout(240)]
LOCAL_STEPS = 2


def falling() -> Any:
    """Return an optimizer with a schedule."""
    import keras

    return keras.optimizers.SGD(keras.optimizers.schedules.PolynomialDecay(0.5, 9, end_learning_rate=0.0))


def train_in_a_process(rig: Rig, number: int, part: Any, step: int) -> None:
    """Train batches up to this global step in the process of worker 0 with this number."""
    from pstraining.runtime.updates.base import Identity
    from pstraining.runtime.worker.loop import Worker
    from pstraining.runtime.worker.router import StaticRouter

    identity, store = Identity(0, number), rig.new_store()
    training = TrainingSettings(mode=Mode.SYNC, steps=step, local_steps=LOCAL_STEPS)
    where = StaticRouter(store, rig.mode.make(store, identity))
    worker = Worker(where, identity, lambda: iter(part), training=training)
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_until(lambda: rig.store.read()[0].step == step)
    rig.control.set_record(1, done=1)
    thread.join(60)
    rig.control.set_record(1, done=0)


def assert_as_fit(client: Any, optimizer: Callable[[], Any], *parts: Any) -> None:
    """Train each part's batches in another process of worker 0, one after the other, and compare with Keras."""
    rig, step = Rig(client, optimizer, ps=1, build=small, mode="Sync", localSteps=LOCAL_STEPS), 0
    rig.start()
    for number, part in enumerate(parts):
        step += len(part) // LOCAL_STEPS
        train_in_a_process(rig, 2 + number, part, step)
    alone = small()
    alone.compile(optimizer(), "sparse_categorical_crossentropy", jit_compile=False)
    for variable, tensor in zip(alone.trainable_variables, rig.model.tensors, strict=True):
        variable.assign(rig.initial[tensor.path])
    for batch in [batch for part in parts for batch in part]:
        alone.train_on_batch(*batch)
    found = rig.control.snapshot(fence=1).variables
    for variable, tensor in zip(alone.trainable_variables, rig.model.tensors, strict=True):
        np.testing.assert_allclose(found[tensor.path], variable.numpy(), rtol=0, atol=1e-6)


def test_the_trial_of_a_step_does_not_change_a_workers_own_optimizer(client: Any) -> None:
    """Before a worker registers, it runs a step to trace its functions."""
    import keras

    assert_as_fit(client, lambda: keras.optimizers.Adam(0.05), batches(4))


def test_a_trial_changes_no_sum_of_metrics(client: Any) -> None:
    """The sums of metrics that `compile` was given are those of before the trial, as are a training step's own."""
    import tensorflow as tf

    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    step = Model(small, falling, Objective("sparse_categorical_crossentropy", metrics=["accuracy"])).step
    emit, (batch,) = tf.function(step.loss, autograph=False), batches(1)
    with step.trial():
        emit(batch)
    assert not any(step.compiled.sums())
    emit(batch)
    with step.trial():
        emit(batch)
    assert step.compiled.sums()[1:] == [16.0, 1.0]


def test_a_restarted_workers_own_optimizer_continues_its_schedule(client: Any) -> None:
    """A schedule counts the steps of earlier processes, as it does on the servers without `localSteps`."""
    made = batches(8)
    assert_as_fit(client, falling, made[:4], made[4:])


def test_a_workers_own_schedule_returns_with_a_restore(client: Any) -> None:
    """After a restore to an earlier step, a schedule has the rates of the steps that are made again. A worker that goes
    on counting its own steps would end the schedule before the job.
    """
    from pstraining.runtime.worker.loop import Worker
    from pstraining.runtime.worker.router import StaticRouter

    rig, made = Rig(client, falling, ps=1, build=small, mode="Sync", localSteps=LOCAL_STEPS), batches(LOCAL_STEPS)
    rig.start()
    identity, store = rig.identities[0], rig.new_store()
    training = TrainingSettings(mode=Mode.SYNC, steps=8, local_steps=LOCAL_STEPS)
    where = StaticRouter(store, rig.mode.make(store, identity))
    worker = Worker(where, identity, lambda: iter(made), training=training)
    moves: list[dict[str, Any]] = []
    for generation in (GENERATION, GENERATION + 1):  # the servers are restored to step 0 in between
        if moves:
            rig.start(generation=generation)
        worker._session = session = worker._wait_for_state()
        assert session is not None
        worker._updates.start_session(session)
        assert worker._updates.step(made).applied
        state = rig.snapshot().variables
        moves.append({path: state[path] - value for path, value in rig.initial.items()})
    worker._batches.close()
    for path, move in moves[0].items():
        np.testing.assert_allclose(moves[1][path], move, rtol=0, atol=1e-6)


def test_in_async_a_move_is_divided_by_the_workers_that_the_job_has_now(client: Any) -> None:
    """A job that is scaled from four workers to one would learn four times slower otherwise."""
    import keras

    count, made = [4], batches(2 * LOCAL_STEPS)
    rig = Rig(
        client, lambda: keras.optimizers.SGD(0.1), ps=1, build=small, localSteps=LOCAL_STEPS, count=lambda: count[0]
    )
    rig.start()
    alone = small()
    alone.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", jit_compile=False)
    held = [rig.initial[tensor.path] for tensor in rig.model.tensors]
    for number, part in ((4, made[:LOCAL_STEPS]), (1, made[LOCAL_STEPS:])):
        count[0] = number
        assert rig.workers[0].step(part).applied
        for variable, value in zip(alone.trainable_variables, held, strict=True):
            variable.assign(value)
        for batch in part:
            alone.train_on_batch(*batch)
        ends = [variable.numpy() for variable in alone.trainable_variables]
        held = [value + (end - value) / number for value, end in zip(held, ends, strict=True)]
    found = rig.control.snapshot(fence=1).variables
    for value, tensor in zip(held, rig.model.tensors, strict=True):
        np.testing.assert_allclose(found[tensor.path], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", ["Sync", "Async"])
def test_a_restore_ends_the_residual_of_a_codec(client: Any, mode: str) -> None:
    """It is a part of gradients whose batches are trained again. A failover to other members keeps it."""
    import keras

    compression = {"push": "OneBit", "pull": "None"}
    rig = Rig(client, lambda: keras.optimizers.SGD(0.1), ps=1, build=large, mode=mode, compression=compression)
    rig.start()
    updates, (first, second, third) = rig.workers[0], batches(3)
    updates.warm_up([first])
    updates.start_session(SESSION)
    state = rig.snapshot()
    rig.train([first, second])
    held = [np.array(own.numpy()) for row in updates._compressor._residuals for own in row]
    assert any(map(np.any, held))
    updates.warm_up([first])
    updates.start_session(Session(2, GENERATION))
    for own, before in zip((own for row in updates._compressor._residuals for own in row), held, strict=True):
        np.testing.assert_array_equal(own.numpy(), before)

    def trained(generation: int) -> Any:
        rig.control.restore(state, fence=1, generation=generation, fresh=False)
        assert rig.store.register(0, rig.identities[0].incarnation)
        assert rig.step(third, Session(1, generation)).applied
        return rig.snapshot().variables

    found = trained(GENERATION + 1)
    updates._compressor.forget()  # the residual of the step after the first restore
    for path, value in trained(GENERATION + 2).items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)


def test_a_schedule_continues_for_the_workers_that_the_job_has_now(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restore, a worker that has trained since before the job was scaled has the rates of one that starts."""
    from pstraining.runtime.worker.loop import Worker
    from pstraining.runtime.worker.router import StaticRouter

    (tmp_path / "cluster.json").write_text(json.dumps({"cluster": {"worker": ["a:1"] * 4}}))
    monkeypatch.setenv(ENV_CLUSTER_FILE, str(tmp_path / "cluster.json"))
    rig = Rig(client, falling, ps=1, build=small, mode="Async", localSteps=LOCAL_STEPS)
    rig.start()
    training = TrainingSettings(mode=Mode.ASYNC, steps=100, local_steps=LOCAL_STEPS)
    where = StaticRouter(rig.store, rig.workers[0])
    worker = Worker(where, rig.identities[0], lambda: iter(batches(LOCAL_STEPS)), training=training)
    worker._warm_up(8, SESSION)
    assert rig.model.other_local_steps.numpy() == 8 * LOCAL_STEPS / 4
