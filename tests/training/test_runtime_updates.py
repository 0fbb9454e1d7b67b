"""Updates on real parameter servers equal Keras, are fenced, and can be restored onto another number of servers."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.chief.recovery import ChiefAction, decide
from pstraining.runtime.ps.record import Session, ShardRecord
from pstraining.runtime.transport.errors import ATTEMPTS
from tests.support.placement import computing_on
from tests.support.servers import GENERATION, Rig, batches, large, small
from tests.support.soak_marks import in_all, some

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]


def optimizers() -> dict[str, Callable[[], Any]]:
    import keras

    def decayed() -> Any:
        optimizer = keras.optimizers.AdamW(1e-2, weight_decay=0.1)
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        return optimizer

    rate = keras.optimizers.schedules.CosineDecay

    def everything() -> Any:
        optimizer = keras.optimizers.AdamW(rate(2e-2, 40), weight_decay=0.1, clipnorm=0.5)
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        return optimizer

    return {
        "everything": everything,
        "SGD": lambda: keras.optimizers.SGD(0.1),
        "momentum": lambda: keras.optimizers.SGD(rate(0.1, 40), momentum=0.9, nesterov=True),
        "Adam": lambda: keras.optimizers.Adam(1e-2, clipnorm=0.5),
        "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
        "AdamW": decayed,
    }


@pytest.mark.parametrize(
    "name",
    some(
        ["everything", "SGD", "momentum", "Adam", "Adagrad", "AdamW"],
        lambda name: name == "everything",
        in_all("tests/training/test_runtime_updates.py::test_one_worker_equals_keras_in_one_process"),  # simpler ones
    ),
)
def test_one_worker_equals_keras_in_one_process(client: Any, name: str) -> None:
    make = optimizers()[name]
    rig = Rig(client, make, ps=2, build=small)
    rig.start()
    rig.train(batches(50))
    state = rig.control.snapshot(fence=1)

    alone = small()
    alone.compile(optimizer=make(), loss="sparse_categorical_crossentropy", jit_compile=False)
    for variable, tensor in zip(alone.trainable_variables, rig.model.tensors, strict=True):
        variable.assign(rig.initial[tensor.path])
    for batch in batches(50):
        alone.train_on_batch(*batch)

    assert state.step == 50
    for variable, tensor in zip(alone.trainable_variables, rig.model.tensors, strict=True):
        np.testing.assert_allclose(state.variables[tensor.path], variable.numpy(), rtol=0, atol=1e-6)


@in_all(
    "tests/training/test_runtime_clipping.py::test_the_mean_is_clipped_as_in_one_process"
)  # of cut tensors; tests/training/test_runtime_loss_scale.py compares statistics
def test_statistics_and_large_cut_tensors_equal_keras(client: Any) -> None:
    import keras

    rig = Rig(client, lambda: keras.optimizers.SGD(0.05, momentum=0.9), ps=2, build=large)
    cut = [s for s in rig.store.layout.segments if len(s.slices) == 1 and s.size > 10_000]
    assert {segment.ps for segment in cut} == {0, 1}, "the large tensor lies on both servers"
    rig.start()
    rig.train(batches(20))
    state = rig.control.snapshot(fence=1)

    alone = large()
    alone.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
        loss="sparse_categorical_crossentropy",
        jit_compile=False,
    )
    variables = alone.trainable_variables + alone.non_trainable_variables
    for variable, tensor in zip(variables, rig.model.tensors, strict=True):
        variable.assign(rig.initial[tensor.path])
    for batch in batches(20):
        alone.train_on_batch(*batch)
    for variable, tensor in zip(variables, rig.model.tensors, strict=True):
        np.testing.assert_allclose(
            state.variables[tensor.path], variable.numpy(), rtol=0, atol=1e-5, err_msg=tensor.path
        )


def test_updates_restores_and_snapshots_of_an_older_term_are_rejected(client: Any) -> None:
    from pstraining.runtime.checkpoint.state import State
    from pstraining.runtime.chief.errors import FencedError

    rig = Rig(client, optimizers()["SGD"], ps=2, build=small)
    rig.start()
    accepted: list[int] = []
    stop = threading.Event()

    def old_worker() -> None:
        for batch in batches(1) * 100_000:
            if stop.is_set():
                return
            if rig.step(batch).session_valid:
                accepted.append(1)

    worker = threading.Thread(target=old_worker)
    worker.start()
    try:
        wait_until(lambda: len(accepted) >= 20)
        rig.control.raise_fence(rig.store.read(), 2)
        raised = rig.control.snapshot(fence=2)
        later = len(accepted)
        for _ in range(20):
            assert not rig.step(batches(1)[0]).session_valid
    finally:
        stop.set()
        worker.join()
    assert len(accepted) - later <= 1, "nothing but an answer under way arrives after the raise"
    state = rig.control.snapshot(fence=2)
    assert state.step == raised.step
    for path, value in raised.variables.items():
        np.testing.assert_array_equal(state.variables[path], value)

    with pytest.raises(FencedError):
        rig.control.restore(State(0, rig.initial, {}, {}), fence=1, generation=9, fresh=True)
    with pytest.raises(FencedError):
        rig.control.snapshot(fence=1)
    with pytest.raises(FencedError):
        rig.control.raise_fence(rig.store.read(), 1)
    assert decide(rig.store.read(), fence=1, layout=rig.store.fingerprint) is ChiefAction.SUPERSEDED
    np.testing.assert_array_equal(
        rig.control.snapshot(fence=2).variables[rig.model.tensors[0].path],
        raised.variables[rig.model.tensors[0].path],
    )


def test_an_update_computed_on_a_replaced_set_is_rejected(client: Any) -> None:
    rig = Rig(client, optimizers()["SGD"], ps=1, build=small)
    rig.start()
    rig.control.set_record(1, generation=0)
    assert not rig.step(batches(1)[0]).session_valid
    rig.control.set_record(1, generation=GENERATION + 1)
    assert not rig.step(batches(1)[0]).session_valid
    assert rig.step(batches(1)[0], Session(1, GENERATION + 1)).session_valid


def test_a_late_restore_changes_nothing(client: Any) -> None:
    """A late restore changes nothing: a call that the chief has cancelled may still be executed after the chief's next
    restore.
    """
    from pstraining.runtime.chief.errors import FencedError

    rig = Rig(client, optimizers()["Adam"], ps=1, build=small)
    sent = rig.start_noted()
    rig.train(batches(3))
    before = rig.control.snapshot(fence=1)
    assert len(sent) == 4, "the fence, the beginning, the state and the end"
    for call in sent:
        with pytest.raises(FencedError):
            rig.control._demand(*call)
    after = rig.control.snapshot(fence=1)
    assert after.step == before.step == 3
    for path, value in before.variables.items():
        np.testing.assert_array_equal(after.variables[path], value)
    rig.train(batches(1))


def test_a_compare_and_set_of_the_fence_has_exactly_one_winner(client: Any) -> None:
    from pstraining.runtime.chief.errors import FencedError

    rig = Rig(client, optimizers()["SGD"], ps=1, build=small)
    rig.start()
    seen = rig.store.read()
    rig.control.raise_fence(seen, 5)
    with pytest.raises(FencedError):
        rig.control.raise_fence(seen, 6)
    assert [shard.fence for shard in rig.store.read()] == [5]


@pytest.mark.parametrize(
    ("before", "after"),
    some(
        [(2, 1), (1, 3), (3, 2)],
        lambda before, after: (before, after) == (2, 1),
        in_all(
            "tests/training/test_runtime_updates.py"
            "::test_a_checkpoint_restores_bit_equal_onto_another_number_of_servers"
        ),  # to and from three
    ),
)
def test_a_checkpoint_restores_bit_equal_onto_another_number_of_servers(
    client: Any, before: int, after: int, tmp_path: Path
) -> None:
    import keras

    from pstraining.runtime.checkpoint.storage import Checkpoints

    first = Rig(client, lambda: keras.optimizers.Adam(1e-3), ps=before, build=large)
    first.start()
    first.train(batches(5))
    saved = first.control.snapshot(fence=1)
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(saved, term=1, layout=first.store.layout)

    client.container += ".after"
    second = Rig(client, lambda: keras.optimizers.Adam(1e-3), ps=after, build=large)
    restored = checkpoints.newest()
    assert restored is not None
    second.start(restored)
    state = second.control.snapshot(fence=1)
    assert state.step == saved.step == 5
    assert state.scalars == saved.scalars
    for path, value in saved.variables.items():
        np.testing.assert_array_equal(state.variables[path], value)
    for slot, values in saved.slots.items():
        for path, value in values.items():
            np.testing.assert_array_equal(state.slots[slot][path], value)
    first.train(batches(3))
    second.train(batches(3))
    one, other = first.control.snapshot(fence=1), second.control.snapshot(fence=1)
    for path, value in one.variables.items():  # a tensor with other slices may be updated by another kernel
        np.testing.assert_allclose(other.variables[path], value, rtol=0, atol=1e-6, err_msg=path)


def test_another_optimizers_checkpoint_is_named_as_the_reason(client: Any) -> None:
    from pstraining.runtime.checkpoint.state import State, StateMismatchError

    rig = Rig(client, optimizers()["Adam"], ps=1, build=small)
    with pytest.raises(StateMismatchError, match="momentum"):
        rig.start(State(3, rig.initial, {}, {"counter0": np.array(3)}))


def test_slots_of_another_optimizer_are_rejected(client: Any, tmp_path: Path) -> None:
    """Slots of another optimizer are rejected, also if they have the names of the program's."""
    import keras

    from pstraining.runtime.checkpoint.state import StateMismatchError
    from pstraining.runtime.checkpoint.storage import Checkpoints

    first = Rig(client, lambda: keras.optimizers.Adam(1e-2, use_ema=True), ps=2, build=small)
    first.start()
    first.train(batches(2))
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(first.control.snapshot(fence=1), term=1, layout=first.store.layout)
    state = checkpoints.newest()

    client.container += ".after"
    other = Rig(client, lambda: keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True), ps=1, build=small)
    words = r"momentum that Adam has computed for sequential/dense/kernel, .* by SGD: return Adam as before, or give"
    with pytest.raises(StateMismatchError, match=words):
        other.start(state)
    for number, accepted in enumerate((keras.optimizers.AdamW, keras.optimizers.SGD)):
        client.container += f".{number}"
        same = Rig(client, lambda accepted=accepted: accepted(0.1, use_ema=True), ps=1, build=small)  # type: ignore[misc]
        same.start(state)
        assert same.control.snapshot(fence=1).step == 2


def test_a_state_of_other_words_is_rejected(client: Any, tmp_path: Path) -> None:
    """An index of a vocabulary must mean the same word after a restart; new words may follow the others."""
    import keras

    from pstraining.runtime.checkpoint.state import StateMismatchError
    from pstraining.runtime.checkpoint.storage import Checkpoints

    def of(words: str) -> Any:
        def build() -> Any:
            lookup = keras.layers.StringLookup(vocabulary=list(words), name="words")
            layers = [keras.Input((1,), dtype="string"), lookup, keras.layers.Embedding(9, 2), keras.layers.Flatten()]
            return keras.Sequential([*layers, keras.layers.Dense(3)])

        return Rig(client, optimizers()["SGD"], ps=1, build=build)

    first = of("ab")
    first.start()
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(first.control.snapshot(fence=1), term=1, layout=first.store.layout)
    state = checkpoints.newest()
    for words in ("ba", "a", "acb"):
        client.container += f".{words}"
        with pytest.raises(StateMismatchError, match="with other words, numbers or integer weights of words: adapt"):
            of(words).start(state)
    client.container += ".after"
    of("abc").start(state)


def test_every_server_is_marked_where_it_runs(client: Any, tmp_path: Path) -> None:
    rig = Rig(client, optimizers()["SGD"], ps=1, build=small)
    markers = [tmp_path / "runtime-owned", tmp_path / "owned"]
    rig.control.mark(*map(str, markers))
    assert [marker.read_bytes() for marker in markers] == [b"", b""]


def test_an_empty_server_has_an_empty_record_and_no_session(client: Any) -> None:
    rig = Rig(client, optimizers()["SGD"], ps=2, build=small)
    assert rig.store.read() == [ShardRecord(), ShardRecord()]


def test_an_error_of_the_program_is_not_mistaken_for_a_lost_server_forever(client: Any) -> None:
    import tensorflow as tf

    from pstraining.runtime.transport.client import ShardLostError

    with computing_on(client, "CPU:0"):  # a GPU computes NaN instead
        rig = Rig(client, optimizers()["SGD"], ps=1, build=small)
        rig.start()
        wrong = (batches(1)[0][0], tf.fill([16], tf.constant(99, tf.int64)))  # there are three classes
        for _ in range(ATTEMPTS - 1):
            with pytest.raises(ShardLostError):
                rig.step(wrong)
            rig.store.read()  # as a worker does before it retries
        with pytest.raises(tf.errors.InvalidArgumentError):
            rig.step(wrong)


def test_an_unknown_optimizer_is_rejected() -> None:
    import keras

    from pstraining.runtime.model.optimizers import optimizer

    class Mine(keras.optimizers.SGD):  # type: ignore[misc]
        pass

    with pytest.raises(optimizer.OptimizerError, match=r"Mine.*use one of Adadelta, .*, Lamb, "):
        optimizer.check(Mine())


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    import time

    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


@pytest.mark.parametrize(
    "mode",
    some(
        ["Async", "Sync"],
        lambda mode: mode == "Async",
        in_all("tests/training/test_runtime_updates.py::test_after_a_skipped_move_a_worker_trains_on"),  # in Async
    ),
)
def test_after_a_skipped_move_a_worker_trains_on(client: Any, mode: str) -> None:
    """A skipped batch leaves no NaN in the worker's own optimizer, and no infinity in the servers' statistics."""
    import keras

    def normalized() -> Any:
        layers = [keras.layers.BatchNormalization(), keras.layers.Dense(3, activation="softmax")]
        return keras.Sequential([keras.Input((8,)), *layers])

    skips: dict[str, Any] = {"localSteps": 2, "nonFinite": "Skip"}
    rig = Rig(client, lambda: keras.optimizers.Adam(0.01), ps=1, build=normalized, mode=mode, **skips)
    rig.start()
    good = batches(1)[0]
    missing, huge = (good[0] * np.nan, good[1]), (good[0] * 1e30, good[1])  # a variance of 1e60 is infinite
    updates = [[good, good], [missing, good], [good, missing], [good, good], [huge, good], [good, good]]
    assert [rig.workers[0].step(made).finite for made in updates] == [True, False, False, True, False, True]
    assert all(np.isfinite(value).all() for value in rig.control.snapshot(fence=1).variables.values())
