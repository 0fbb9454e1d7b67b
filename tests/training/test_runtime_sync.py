"""Synchronous updates on real parameter servers equal one process, whatever happens to a worker."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.ps import worker_registry
from pstraining.runtime.updates.base import Identity
from tests.support.placement import USUAL, assert_computes
from tests.support.servers import SESSION, Rig, batches, in_float64, small, warm_up
from tests.support.soak_marks import ALL, THOROUGH, cover, in_all, some
from tests.support.worker_threads import Crew

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]
STEPS = int(os.environ.get("PSTRAINING_SYNC_STEPS", "50" if THOROUGH else "20" if ALL else "10"))
"""Updates after which parameters are compared; `make test-all` makes 20, and `make soak` 200."""
SERVERS = 2 if ALL else 1
"""Servers of tests about workers: a second server costs as much tracing as the first."""


def convolutional() -> Any:
    import keras

    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Reshape((4, 2, 1)),
            keras.layers.Conv2D(4, (2, 2), activation="relu", padding="same"),
            keras.layers.MaxPooling2D((2, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )


OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {"learning_rate": 0.1}),
    "momentum": ("SGD", {"learning_rate": 0.05, "momentum": 0.9}),
    "Adam": ("Adam", {"learning_rate": 1e-2}),
    "Adagrad": ("Adagrad", {"learning_rate": 0.1}),
}


def optimizer(name: str) -> Any:
    import keras

    kind, options = OPTIMIZERS[name]
    return getattr(keras.optimizers, kind)(**options)


def in_one_process(
    rig: Rig,
    build: Callable[[], Any],
    name: str | Callable[[], Any],
    steps: Sequence[Sequence[Any]],
    *,
    ordered: bool,
) -> Any:
    """Return one process's model after the same updates: of each step's united batches, or of their gradients in
    order.
    """
    import tensorflow as tf

    model = build()
    own = optimizer(name) if isinstance(name, str) else name()
    model.compile(optimizer=own, loss="sparse_categorical_crossentropy", jit_compile=False)
    for variable, tensor in zip(model.trainable_variables, rig.model.tensors, strict=True):
        variable.assign(rig.initial[tensor.path])
    own.build(model.trainable_variables)  # as `fit` does; outside functions slots may be copies of parameters

    @tf.function(jit_compile=False)  # type: ignore[untyped-decorator]
    def gradients(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x=batch[0], y=batch[1], y_pred=model(batch[0], training=True), training=True)
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    @tf.function(jit_compile=False)  # type: ignore[untyped-decorator]
    def apply(found: Any) -> None:
        own.apply(found, model.trainable_variables)

    for step in steps:
        if ordered:
            parts = [gradients(batch) for batch in step]
            total = parts[0]
            for part in parts[1:]:
                total = [a + b for a, b in zip(total, part, strict=True)]
            apply([value / tf.cast(len(parts), value.dtype) for value in total])
        else:
            apply(gradients(tuple(tf.concat(part, 0) for part in zip(*step, strict=True))))
    return model


@pytest.mark.usefixtures("plain_arithmetic")
@pytest.mark.parametrize(
    ("name", "ps", "ordered"),
    some(
        [(*found, ordered) for found in cover(sorted(OPTIMIZERS), [1, 2, 3]) for ordered in (True, False)],
        lambda name, ps, ordered: ordered and name == "Adam",
        in_all(
            "tests/training/test_runtime_sync.py::test_accumulated_batches_equal_one_large_batch"
        ),  # optimizers; of two workers in any order
    ),
)
def test_it_equals_one_process_on_all_batches_together(client: Any, name: str, ps: int, ordered: bool) -> None:
    build = convolutional if ordered else in_float64(convolutional)
    rig = Rig(client, lambda: optimizer(name), ps=ps, build=build, workers=2, mode="Sync", ordered_sums=ordered)
    rig.start()
    shares = [batches(STEPS, seed=worker) for worker in range(2)]
    Crew(rig, shares).join()
    state = rig.control.snapshot(fence=1)
    assert state.step == STEPS
    expected = in_one_process(rig, build, name, list(zip(*shares, strict=True)), ordered=ordered)
    for variable, tensor in zip(expected.trainable_variables, rig.model.tensors, strict=True):
        if ordered:
            np.testing.assert_array_equal(state.variables[tensor.path], variable.numpy())
        else:
            np.testing.assert_allclose(state.variables[tensor.path], variable.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "ps"),
    some(
        cover(sorted(OPTIMIZERS), [2, 1, 3]),
        lambda name, ps: name == "momentum",
        in_all("tests/training/test_runtime_updates.py::test_one_worker_equals_keras_in_one_process"),  # optimizers
    ),
)
def test_accumulated_batches_equal_one_large_batch(client: Any, name: str, ps: int) -> None:
    build = in_float64(convolutional)
    rig = Rig(client, lambda: optimizer(name), ps=ps, build=build, workers=2, mode="Sync", accumulation_steps=4)
    rig.start()
    number = STEPS if THOROUGH else 5
    shares = [batches(4 * number, seed=worker) for worker in range(2)]
    Crew(rig, shares, accumulation=4).join()
    state = rig.control.snapshot(fence=1)
    assert state.step == number
    steps = [[*shares[0][k : k + 4], *shares[1][k : k + 4]] for k in range(0, 4 * number, 4)]
    expected = in_one_process(rig, build, name, steps, ordered=False)
    for variable, tensor in zip(expected.trainable_variables, rig.model.tensors, strict=True):
        np.testing.assert_allclose(state.variables[tensor.path], variable.numpy(), rtol=1e-9, atol=1e-12)


@in_all(
    "tests/training/test_runtime_hybrid.py::test_it_equals_one_process_on_all_batches_together"
)  # of unequal batches, too
def test_steps_average_unequal_batches_of_workers_with_different_counts(client: Any) -> None:
    """Steps average unequal batches of workers that divide by different counts, as they do while a job is scaled."""
    import tensorflow as tf

    build = in_float64(small)
    rig = Rig(client, lambda: optimizer("momentum"), ps=2, build=build, workers=3, mode="Sync")
    rig.workers[1]._computer._parts = 4
    rig.start()
    shares = [batches(5, seed=worker) for worker in range(4)]
    # A step has a power of two of samples, by which Keras's division in float32 is exact.
    pairs = zip(shares[2], shares.pop(), strict=True)
    shares[2] = [tuple(tf.concat(parts, 0) for parts in zip(one, two, strict=True)) for one, two in pairs]
    Crew(rig, shares).join()
    state = rig.control.snapshot(fence=1)
    expected = in_one_process(rig, build, "momentum", list(zip(*shares, strict=True)), ordered=False)
    for variable, tensor in zip(expected.trainable_variables, rig.model.tensors, strict=True):
        np.testing.assert_allclose(state.variables[tensor.path], variable.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "device",
    some(
        [USUAL, "CPU:1"],
        lambda device: device == USUAL,
        in_all("tests/training/test_runtime_devices.py::test_another_device_gives_the_same_parameters"),  # a loss
    ),
    indirect=True,
)
def test_an_unresponsive_worker_is_not_waited_for_and_may_rejoin(
    client: Any, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(worker_registry, "LAPSE_SECONDS", 3.0)
    rig = Rig(client, lambda: optimizer("SGD"), ps=SERVERS, build=small, workers=2, mode="Sync")
    rig.start()
    assert_computes(rig.store, device)
    first, second = batches(2, seed=0), batches(2, seed=1)
    warm_up(rig, first[:1])  # a worker that traces for long is not waited for
    crew = Crew(rig, [first[:1], second[:1]])
    crew.join()
    assert rig.control.snapshot(fence=1).step == 1
    rig.control.client.call(_waited_until(rig, 0.0))
    reply = rig.workers[0].step([first[1]])  # the other worker is silent for as long as the server remembers it
    assert (reply.applied, reply.step) == (True, 2)
    late = rig.workers[1].step([second[1]])
    assert (late.session_valid, late.applied) == (True, False), "its gradient is of the step before"
    crew = Crew(rig, [batches(5, seed=2), batches(5, seed=3)])
    crew.join()


@in_all(
    "tests/training/test_runtime_sync.py::test_time_in_which_a_server_did_not_run_makes_no_worker_silent"
)  # with steps
def test_a_server_that_did_not_run_drops_no_live_worker(client: Any) -> None:
    """When an arbiter runs again, the first request that it reads closes no round without the other workers."""
    rig = Rig(client, lambda: optimizer("SGD"), ps=1, build=small, workers=2, mode="Sync")
    rig.start()
    first, second = batches(2, seed=0), batches(2, seed=1)
    warm_up(rig, first[:1])
    Crew(rig, [first[:1], second[:1]]).join()
    rig.control.client.call(_waited_until(rig, 0.0))
    rig.control.client.call(_silent_for(rig, 1000.0))
    assert rig.control.workers_present() == ()
    alone = threading.Thread(target=lambda: rig.workers[0].step([first[1]]), daemon=True)
    alone.start()
    alone.join(0.5)
    assert alone.is_alive(), "the round waits for the other worker"
    reply = rig.workers[1].step([second[1]])
    alone.join(60)
    assert (reply.applied, reply.step, alone.is_alive()) == (True, 2, False)
    assert rig.control.workers_present() == (0, 1)
    rig.control.client.call(_silent_for(rig, 1000.0, worker=1))
    rig.store.heartbeat(0, 1)
    assert rig.control.workers_present() == (0,), "the server ran, and only one worker is silent"


def test_time_in_which_a_server_did_not_run_makes_no_worker_silent(client: Any) -> None:
    """Rounds wait for all workers until the server has run again for as long as a worker may be silent."""
    rig = Rig(client, lambda: optimizer("SGD"), ps=1, build=small, workers=2, mode="Sync")
    rig.start()
    rig.control.client.call(_silent_for(rig, 1000.0))
    assert rig.control.workers_present() == ()
    assert _awaited(rig) == [0, 1], "for the first request that the server reads"
    rig.store.heartbeat(0, 1)
    assert rig.control.workers_present() == (0, 1)
    rig.control.client.call(_silent_for(rig, 1000.0, worker=1))
    rig.store.heartbeat(0, 1)
    assert rig.control.workers_present() == (0,), "the server ran, and only one worker is silent"
    assert _awaited(rig) == [0]


def test_a_clock_that_is_set_back_keeps_no_lost_worker_alive(client: Any) -> None:
    rig = Rig(client, lambda: optimizer("SGD"), ps=1, build=small, workers=2, mode="Sync")
    rig.start()
    rig.control.client.call(_silent_for(rig, -1000.0))
    assert rig.control.workers_present() == (), "none was heard since"
    rig.store.heartbeat(0, 1)
    assert rig.control.workers_present() == (0, 1), "no worker was silent"
    rig.control.client.call(_silent_for(rig, 1000.0, worker=1))
    rig.store.heartbeat(0, 1)
    assert rig.control.workers_present() == (0,)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_clock_that_is_set_back_does_not_prolong_the_wait_for_workers(client: Any, *, ordered: bool) -> None:
    """With ordered sums, the wait has no end, whatever the clock."""
    rig = Rig(client, lambda: optimizer("SGD"), ps=1, build=small, workers=2, mode="Sync", ordered_sums=ordered)
    rig.start()
    first, second = batches(1, seed=0), batches(1, seed=1)
    warm_up(rig, first)
    rig.control.client.call(_silent_for(rig, 1000.0, worker=1))
    alone = threading.Thread(target=lambda: rig.workers[0].step(first), daemon=True)
    alone.start()
    alone.join(1.0)
    assert alone.is_alive(), "the other worker may register within a minute"
    if ordered:
        rig.workers[1].step(second)
    else:
        rig.control.client.call(_waited_until(rig, time.time() + 3600.0))
    alone.join(60)
    assert not alone.is_alive()


def _silent_for(rig: Rig, seconds: float, worker: int | None = None) -> Any:
    """Make the last heartbeat of one worker older, or all, as if the server had not run, or its clock had changed."""
    import tensorflow as tf

    def age(shard: Any) -> Any:
        heard = shard.registry.heard
        numbers = tf.range(heard.shape[0])
        older = tf.equal(numbers, numbers if worker is None else worker)
        return heard.assign_sub(tf.cast(older, tf.float64) * seconds, read_value=False)

    return _changed(rig, age)


def _awaited(rig: Rig) -> list[int]:
    """Return the workers whose gradients a round of the first server waits for."""
    import tensorflow as tf

    def alive() -> Any:
        shard = rig.store.shards[0]
        with tf.device(shard.device):
            found = tf.where(shard.registry.alive())[:, 0]
        return rig.control.client.to_local(found)

    found: list[int] = rig.control.client.call(tf.function(alive, autograph=False)).tolist()
    return found


def _waited_until(rig: Rig, moment: float) -> Any:
    """End the wait for workers whose gradients are missing."""
    import tensorflow as tf

    until = tf.constant(moment, tf.float64)
    return _changed(rig, lambda shard: shard.mode_state.wait_until.assign(until, read_value=False))


def _changed(rig: Rig, change: Callable[[Any], Any]) -> Any:
    """Return a function that changes a variable of the first server."""
    import tensorflow as tf

    @tf.function  # type: ignore[untyped-decorator]
    def there() -> Any:
        shard = rig.store.shards[0]
        with tf.device(shard.device):
            done = change(shard)
        with tf.control_dependencies([done]), tf.device(rig.control.client.local):
            return tf.constant(0)

    return there


def test_a_slow_workers_gradients_are_dropped_with_a_backup_worker(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_registry, "LAPSE_SECONDS", 3.0)  # the last worker to end must not wait for the others
    number = 3 if THOROUGH else 2
    rig = Rig(client, lambda: optimizer("SGD"), ps=SERVERS, build=small, workers=number, mode="Sync", backup_workers=1)
    rig.start()
    rig.control.client.call(_waited_until(rig, 0.0))
    crew = Crew(rig, [*(batches(30, seed=worker) for worker in range(number - 1)), []])
    crew.join()
    late = rig.workers[-1].step(batches(1))
    assert late.session_valid
    assert rig.control.snapshot(fence=1).step >= 30


def momentum() -> Any:
    return optimizer("momentum")


def test_gradients_with_nan_never_reach_the_parameters(shared: Any) -> None:
    import tensorflow as tf

    rig = shared(momentum, ps=SERVERS, build=small, workers=2, mode="Sync")
    good = batches(2, seed=0)
    bad = (tf.fill([16, 8], float("nan")), good[1][1])
    warm_up(rig, [good[0]])  # a worker that traces for long is not waited for
    Crew(rig, [[good[0]], [bad]]).join()
    state = rig.control.snapshot(fence=1)
    expected = in_one_process(rig, small, "momentum", [[good[0]]], ordered=False)
    for variable, tensor in zip(expected.trainable_variables, rig.model.tensors, strict=True):
        np.testing.assert_allclose(state.variables[tensor.path], variable.numpy(), rtol=1e-4, atol=1e-6)
    crew = Crew(rig, [[bad], [bad]])
    crew.join()
    assert not crew.replies[0][0].finite
    after = rig.control.snapshot(fence=1)
    assert after.step == 2
    for path, value in state.variables.items():
        np.testing.assert_array_equal(after.variables[path], value)


def test_gradients_of_a_workers_former_process_do_not_count(shared: Any) -> None:
    """Gradients of a worker's former process do not count.

    The last test with this rig, as its second worker is replaced.
    """
    rig = shared(momentum, ps=SERVERS, build=small, workers=2, mode="Sync")
    old = Crew(rig, [[], batches(1, seed=5)])
    updates = rig.workers[1]
    deadline = time.monotonic() + 120
    while not int(updates._look(0.0)[0].admitted):
        assert time.monotonic() < deadline
    newer = Identity(1, 2)
    assert rig.store.register(newer.worker, newer.incarnation)
    assert not rig.store.register(1, 1), "the older process is refused"
    again = rig.mode.make(rig.new_store(), newer)
    again.start_session(SESSION)
    fresh = batches(2, seed=6)
    both = [
        threading.Thread(target=rig.workers[0].step, args=([fresh[0]],)),
        threading.Thread(target=again.step, args=([fresh[1]],)),
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(60)
        assert not thread.is_alive()
    old.threads[1].join(1)
    state = rig.control.snapshot(fence=1)
    expected = in_one_process(rig, small, "momentum", [fresh], ordered=False)
    for variable, tensor in zip(expected.trainable_variables, rig.model.tensors, strict=True):
        np.testing.assert_allclose(state.variables[tensor.path], variable.numpy(), rtol=1e-4, atol=1e-6)
