"""Frozen weights are on the servers and in checkpoints, and are pulled once. What callbacks assign in their copy."""

from typing import Any

import numpy as np
import pytest

from pstraining.runtime.checkpoint.state import State
from pstraining.runtime.data.validation import Validation
from pstraining.runtime.errors import final_error
from pstraining.runtime.ps.record import Session
from tests.support.servers import Rig
from tests.support.servers import batches as classified
from tests.support.soak_marks import ALL, THOROUGH
from tests.training.test_runtime_fit import Drained
from tests.training.test_runtime_train_begin import at

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]


def adagrad() -> Any:
    """Return an optimizer whose slots do not begin with zero."""
    import keras

    return keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.3)


def transfer(*, frozen: bool = True) -> Any:
    """Return a base with statistics and a head; two variables share a path, as in subclassed models."""
    import keras

    base = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(256, activation="tanh", name="same"),
            keras.layers.BatchNormalization(name="norm"),
        ],
        name="base",
    )
    base.trainable = not frozen
    return keras.Sequential([keras.Input((64,)), base, keras.layers.Dense(3, name="same")])


def batches(number: int) -> Any:
    import tensorflow as tf

    random = np.random.default_rng(2)
    return [
        (tf.constant(random.normal(size=(16, 64)).astype("float32")), tf.constant(random.integers(0, 3, 16)))
        for _ in range(number)
    ]


def rig_of(client: Any, ps: int, *, frozen: bool = True, **training: Any) -> Rig:
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Rig(
        client,
        adagrad,
        ps=ps,
        build=lambda: transfer(frozen=frozen),
        loss=loss,
        min_shard_bytes=0,
        **{"workers": 2, "mode": "Sync", **training},
    )


def in_keras(values: Any, made: Any, *, frozen: bool) -> dict[str, Any]:
    """Return the values after Keras has continued from these, with new slots."""
    import keras

    model = transfer(frozen=frozen)
    model.compile(adagrad(), keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    for variable, value in zip(model.variables, values.values(), strict=True):
        variable.assign(value)
    for batch in made:
        model.train_on_batch(*batch)
    return dict(zip(values, (variable.numpy() for variable in model.variables), strict=True))


def in_order(rig: Rig, values: Any) -> dict[str, Any]:
    """Return the values by path, in the order of Keras's `variables`."""
    paths = {id(variable): path for path, variable in rig.model.by_path()}
    return {paths[id(variable)]: values[paths[id(variable)]] for variable in rig.model.keras.variables}


def test_frozen_weights_are_pulled_once_and_train_once_unfrozen(client: Any) -> None:
    from tests.support.worker_threads import Crew

    rig = rig_of(client, 2)
    moving = sum(segment.size for shard in rig.store.shards for segment in shard.segments)
    assert moving == 256 * 3 + 3 + 2 * 256, "a step pushes and pulls the head, and statistics"
    assert {segment.ps for segment in rig.store.layout.segments if segment.group == "frozen"} == {0, 1}
    rig.start()
    fetched = [updates._store.model for updates in rig.workers]
    for model in fetched:  # another worker has other initial values
        for variable, tensor in zip(model.frozen, model.frozen_tensors, strict=True):
            np.testing.assert_array_equal(variable.numpy(), rig.initial[tensor.path])
    made = batches(4)
    Crew(rig, [made, made]).join()
    state = rig.control.snapshot(fence=1)
    expected = in_keras(in_order(rig, rig.initial), made, frozen=True)
    for path, value in expected.items():
        np.testing.assert_allclose(state.variables[path], value, rtol=0, atol=1e-6, err_msg=path)

    # Unfrozen, on another number of servers: known slots continue, and new ones begin as in Keras.
    client.container += ".unfrozen"  # as on servers of another run
    workers = 2 if THOROUGH else 1
    trained = rig_of(client, 3 if ALL else 1, frozen=False, workers=workers)
    trained.start(state, generation=9)
    at_start = trained.control.snapshot(fence=1)
    (slot,) = at_start.slots.values()
    kernel, head = (
        (next(p for p in slot if p.endswith(end)) for end in ("same/kernel", "same/kernel#2"))
        if any(p.endswith("#2") for p in slot)
        else (next(p for p in slot if "base" in p and "kernel" in p), next(p for p in slot if "base" not in p))
    )
    np.testing.assert_array_equal(slot[kernel], np.full_like(slot[kernel], 0.3))
    (saved,) = state.slots.values()
    np.testing.assert_array_equal(slot[head], saved[head])
    for path, value in state.variables.items():
        np.testing.assert_array_equal(at_start.variables[path], value)
    Crew(trained, [made] * workers).join()
    grown = trained.control.snapshot(fence=1)
    assert not np.array_equal(grown.variables[kernel], state.variables[kernel])

    # Frozen again, with the trained weights.
    client.container += ".again"
    again = rig_of(client, 1)
    again.start(grown, generation=11)
    np.testing.assert_array_equal(again.control.snapshot(fence=1).variables[kernel], grown.variables[kernel])
    store = again.workers[0]._store
    assert not store.hold_frozen(Session(1, 12)), "the servers hold another set"
    assert store.hold_frozen(Session(1, 11))


def test_a_step_that_assigns_a_frozen_weight_is_rejected(client: Any) -> None:
    import keras

    from pstraining.runtime.model.errors import ModelError

    class Doubling(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.factor = self.add_weight(shape=(1,), initializer="ones", name="factor")

        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                self.factor.assign(self.factor * 2.0)
            return x * self.factor

    def build() -> Any:
        own = Doubling(name="doubling")
        own.trainable = False
        return keras.Sequential([keras.Input((64,)), own, keras.layers.Dense(3, activation="softmax")])

    rig = Rig(client, adagrad, ps=1, build=build)
    rig.start()
    with pytest.raises(ModelError, match=r"^sequential/doubling/factor is frozen"):
        rig.step(batches(1)[0])


def by_key() -> Any:
    """Return a model whose first layer has rows by key."""
    import keras

    from pstraining.runtime import Embedding

    layers = Embedding(None, 4), keras.layers.Dense(3, activation="softmax")
    return keras.Sequential([keras.Input((), dtype="int64"), *layers])


@pytest.mark.parametrize("hook", ["on_epoch_end", "on_train_end"])
def test_weights_that_a_callback_sets_beside_rows_by_key_are_the_result(client: Any, hook: str) -> None:
    """They were lost without a word. Rows by key are no weights of Keras, and keep those of training."""
    from pstraining.runtime.chief.reports.callbacks import CallbackError, EpochEnd
    from pstraining.runtime.chief.reports.evaluation import with_weights

    def ended(change: Any) -> Any:
        run = Drained([at(hook, change)], build=by_key)
        (table,) = run.model.tables
        values = run.model.values() | {f"{table.path}/keys": np.array([7, 5]), table.path: np.ones([2, 4], np.float32)}
        state = State(3, values, {}, {})
        run.ends.end(EpochEnd(0, 3, {"loss": 0.5}, state, validate=False, following=None))
        run.wait()
        run.ends.close(state)
        run.wait()
        best = run.ends.best()
        return best if best is None else with_weights(state, best, run.model.trained_by).variables

    def assign_rows(model: Any) -> None:
        known = model.layers[0].known
        known.keys.assign(known.keys.numpy())
        known.rows.assign(known.rows.numpy() + 1)

    result = ended(lambda model: model.set_weights([weight * 0 + 0.5 for weight in model.get_weights()]))
    assert [sorted(set(value.ravel().tolist())) for value in result.values()] == [[0.5], [0.5], [5, 7], [1.0]]
    assert [value.tolist() for path, value in result.items() if path.endswith("keys")] == [[7, 5]], (
        "in the order of the optimizer's tensors"
    )
    assert ended(lambda model: model.get_weights()) is None
    with pytest.raises(CallbackError, match=r"assigned \S+, the rows of a layer whose input_dim is None, which"):
        ended(assign_rows)


def counting() -> Any:
    """Return a model that counts its calls, and has an integer that a callback may set."""
    import keras

    class Counting(keras.layers.Layer):  # type: ignore[misc]
        def build(self, _: Any) -> None:
            self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)
            self.epoch = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

        def call(self, x: Any) -> Any:
            self.calls.assign_add(1.0)
            return x * keras.ops.cast(self.epoch + 1, x.dtype)

    layers = Counting(name="counting"), keras.layers.Dense(3, activation="softmax")
    return keras.Sequential([keras.Input((8,)), *layers])


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_begin", "on_epoch_end"])
def test_a_callback_that_assigns_an_integer_is_refused_and_a_validation_assigns_nothing(client: Any, hook: str) -> None:
    """Workers had the first integer, without a word. A layer may count the calls of a validation, too."""
    from pstraining.runtime.chief.reports.callbacks import CallbackError

    def run(change: Any) -> None:
        made = Drained([at(hook, change)], Validation(lambda: classified(2)), build=counting)
        made.end(1, State(1, made.model.values(), {}, {}), validate=True, loss=1.0)

    run(lambda model: model.get_weights())
    with pytest.raises(
        CallbackError, match=r"a callback has assigned .*counting/\w+, which training would not"
    ) as raised:
        run(lambda model: model.layers[0].epoch.assign(3))
    assert final_error(raised.value) is not None


@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_epoch_end"])
def test_a_callback_that_resets_states_of_rnns_is_refused(client: Any, hook: str) -> None:
    """Each worker has states of its own. Those of the callback's copy were reset, without a word."""
    import keras

    from pstraining.runtime.chief.reports.callbacks import CallbackError

    def build() -> Any:
        inner = keras.Sequential([keras.Input(batch_shape=(16, 8, 1)), keras.layers.GRU(4, stateful=True, name="gru")])
        return keras.Sequential([keras.Input(batch_shape=(16, 8)), keras.layers.Reshape((8, 1)), inner])

    def reset(model: Any) -> None:
        model.layers[1].layers[0].reset_state()

    run = Drained([at("on_train_begin", reset), at("on_train_end", reset)], build=build)  # neither is part of training
    run.ends.close()
    run.wait()
    with pytest.raises(CallbackError, match=r"a callback has reset the states of the layer gru, .*Leave") as raised:
        Drained([at(hook, reset)], build=build).end(1, loss=1.0)
    assert final_error(raised.value) is not None
