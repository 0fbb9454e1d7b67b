"""Embedding tables on real parameter servers equal Keras's own layer, and only touched rows change."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.checkpoint.storage import Checkpoints
from tests.support.servers import Rig, in_float64
from tests.support.soak_marks import ALL, cover, in_all, some
from tests.support.worker_threads import Crew

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]
ROWS, WIDTH, FEATURES = 50, 4, 3
SERVERS = 2 if ALL else 1
"""Servers of tests whose subject is not the division of rows among servers."""
STEPS = int(os.environ.get("PSTRAINING_SYNC_STEPS", "50"))
"""Updates after which ordered sums are compared; `make soak` makes 200."""


def clicks(layer: Callable[..., Any], *, twice: bool = True) -> Callable[[], Any]:
    """Return a functional model of two tables, of which one is used twice, or of which each is used once."""

    def build() -> Any:
        import keras

        items = keras.Input((FEATURES,), dtype="int32")
        user = keras.Input((), dtype="int32")
        shared = layer(ROWS, WIDTH, name="items")
        looked_up = [keras.layers.Flatten()(shared(items)), *([shared(user)] if twice else [])]
        joined = keras.layers.Concatenate()([*looked_up, layer(20, 2, name="users")(user % 20)])
        hidden = keras.layers.Dense(8, activation="relu")(joined)
        return keras.Model([items, user], keras.layers.Dense(1, activation="sigmoid")(hidden))

    return build


def ours(*, twice: bool = True) -> Callable[[], Any]:
    from pstraining.runtime import Embedding

    return clicks(Embedding, twice=twice)


def batches(number: int, *, seed: int, rows: int = ROWS) -> list[Any]:
    import tensorflow as tf

    random = np.random.default_rng(seed)
    return [
        (
            (tf.constant(random.integers(0, rows, (16, FEATURES))), tf.constant(random.integers(0, rows, 16))),
            tf.constant(random.integers(0, 2, (16, 1)).astype("float64")),
        )
        for _ in range(number)
    ]


def in_one_process(
    rig: Rig, make: Callable[[], Any], steps: Any, *, build: Callable[[], Any] | None = None, ordered: bool = False
) -> dict[str, Any]:
    """Return the values by path after the same updates of Keras's own layers in one process.

    Args:
        rig: has the initial values.
        make: creates the optimizer.
        steps: the batches of every update.
        build: the model with Keras's own layers; without, that of `clicks` in double precision.
        ordered: add the gradients of the batches in their order, in place of one gradient of all of them.
    """
    import keras
    import tensorflow as tf
    from keras.src.utils import naming

    naming.reset_uids()  # as in the rig's model, because layers are numbered per process
    model = (build or in_float64(clicks(keras.layers.Embedding)))()
    model.compile(optimizer=make(), loss="binary_crossentropy", jit_compile=False)
    paths = {}
    for variable in model.trainable_variables:
        path = variable.path.removesuffix("/embeddings")
        variable.assign(rig.initial[path])
        paths[path] = variable

    @tf.function(jit_compile=False)  # type: ignore[untyped-decorator]
    def gradients(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True), training=True)
        found = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        return [tf.convert_to_tensor(value) for value in found]

    @tf.function(jit_compile=False)  # type: ignore[untyped-decorator]
    def apply(found: Any) -> None:
        model.optimizer.apply(found, model.trainable_variables)

    for step in steps:
        if ordered:
            parts = [gradients(*batch) for batch in step]
            apply([sum(values[1:], values[0]) / len(parts) for values in zip(*parts, strict=True)])
        else:
            x = tuple(tf.concat([batch[0][k] for batch in step], 0) for k in range(2))
            apply(gradients(x, tf.concat([batch[1] for batch in step], 0)))
    return {path: variable.numpy() for path, variable in paths.items()}


OPTIMIZERS = {
    "SGD": lambda: _keras().SGD(0.5),
    "Adagrad": lambda: _keras().Adagrad(0.1, clipvalue=0.0),  # which clips nothing
    "clipped": lambda: _keras().SGD(0.5, clipvalue=0.01),
}
"""Optimizers that leave untouched rows unchanged."""


def _keras() -> Any:
    import keras

    return keras.optimizers


def equal(state: Any, expected: dict[str, Any], rtol: float = 1e-9, atol: float = 1e-12) -> None:
    assert set(expected) == set(state.variables)
    for path, value in expected.items():
        np.testing.assert_allclose(state.variables[path], value, rtol=rtol, atol=atol, err_msg=path)


@pytest.mark.parametrize(
    ("name", "ps", "mode"),
    some(
        [(*found, mode) for found in cover(sorted(OPTIMIZERS), [1, 2, 3]) for mode in ("Async", "Sync")],
        lambda name, ps, mode: (mode == "Sync") == (name == "Adagrad") and name != "SGD",
        in_all("tests/training/test_runtime_embedding.py::test_tables_equal_keras_in_one_process"),  # each mode once
    ),
)
def test_tables_equal_keras_in_one_process(client: Any, name: str, ps: int, mode: str) -> None:
    workers = 2 if mode == "Sync" else 1
    make = OPTIMIZERS[name]
    rig = Rig(client, make, ps=ps, build=in_float64(ours()), workers=workers, loss="binary_crossentropy", mode=mode)
    rig.start()
    shares = [batches(30, seed=worker) for worker in range(workers)]
    Crew(rig, shares).join()
    equal(rig.control.snapshot(fence=1), in_one_process(rig, make, list(zip(*shares, strict=True))))


@in_all("tests/training/test_runtime_sync.py::test_it_equals_one_process_on_all_batches_together")  # rows of tables
@pytest.mark.usefixtures("plain_arithmetic")
@pytest.mark.parametrize(("name", "ps"), cover(["SGD", "Adagrad"], [1, 2, 3]))
def test_with_ordered_sums_tables_equal_one_process_bit_for_bit(client: Any, name: str, ps: int) -> None:
    """With ordered sums, tables equal one process bit for bit.

    Each table is looked up once: for two uses we add their sums, and TensorFlow adds all gradients in sequence.
    """
    import keras

    make, build = OPTIMIZERS[name], ours(twice=False)
    rig = Rig(client, make, ps=ps, build=build, workers=2, loss="binary_crossentropy", mode="Sync", ordered_sums=True)
    rig.start()
    shares = [batches(STEPS, seed=worker) for worker in range(2)]
    Crew(rig, shares).join()
    steps = list(zip(*shares, strict=True))
    expected = in_one_process(rig, make, steps, build=clicks(keras.layers.Embedding, twice=False), ordered=True)
    state = rig.control.snapshot(fence=1)
    assert set(expected) == set(state.variables)
    for path, value in expected.items():
        np.testing.assert_array_equal(state.variables[path], value, err_msg=path)


def test_optimizers_with_momentum_equal_keras_where_every_row_is_touched(client: Any) -> None:
    make = lambda: _keras().AdamW(1e-2, weight_decay=0.1)  # noqa: E731
    rig = Rig(client, make, ps=SERVERS, build=in_float64(ours()), loss="binary_crossentropy")
    rig.start()
    steps = [_touching_all(seed) for seed in range(20)]
    Crew(rig, [steps]).join()
    # Keras computes the weight decay in float32: a value near zero has the rounding error of its larger former value.
    equal(rig.control.snapshot(fence=1), in_one_process(rig, make, [[step] for step in steps]), rtol=1e-5, atol=1e-8)


def _touching_all(seed: int) -> Any:
    import tensorflow as tf

    random = np.random.default_rng(seed)
    users = np.concatenate([np.arange(ROWS), random.integers(0, ROWS, 14)])
    items = random.integers(0, ROWS, (64, FEATURES))
    return (tf.constant(items), tf.constant(users)), tf.constant(random.integers(0, 2, (64, 1)).astype("float64"))


@in_all("tests/training/test_runtime_sync.py::test_accumulated_batches_equal_one_large_batch")  # rows of tables
def test_accumulated_batches_equal_one_large_batch(client: Any) -> None:
    make = OPTIMIZERS["Adagrad"]
    rig = Rig(
        client,
        make,
        ps=2,
        build=in_float64(ours()),
        workers=2,
        loss="binary_crossentropy",
        mode="Sync",
        accumulation_steps=4,
    )
    rig.start()
    shares = [batches(40, seed=worker) for worker in range(2)]
    Crew(rig, shares, accumulation=4).join()
    steps = [[*shares[0][k : k + 4], *shares[1][k : k + 4]] for k in range(0, 40, 4)]
    equal(rig.control.snapshot(fence=1), in_one_process(rig, make, steps))


def test_untouched_rows_stay_unchanged(client: Any) -> None:
    rig = Rig(client, lambda: _keras().Adam(1e-2), ps=SERVERS, build=ours(), loss="binary_crossentropy")
    rig.start()
    Crew(rig, [batches(10, seed=0, rows=20)]).join()
    state = rig.control.snapshot(fence=1)
    (path,) = [name for name in rig.initial if name.endswith("items")]
    np.testing.assert_array_equal(state.variables[path][20:], rig.initial[path][20:])
    assert (state.variables[path][:20] != rig.initial[path][:20]).any(axis=1).all()


@in_all(
    "tests/training/test_runtime_optimizers.py::test_each_variable_and_table_has_the_optimizer_that_keras_gives_it"
)  # bit for bit
def test_a_checkpoint_of_tables_restores_bit_equal_onto_another_number_of_servers(client: Any, tmp_path: Path) -> None:
    def rig(ps: int) -> Rig:
        return Rig(client, lambda: _keras().Adam(1e-2), ps=ps, build=ours(), loss="binary_crossentropy")

    first = rig(3)
    first.start()
    Crew(first, [batches(5, seed=0)]).join()
    saved = first.control.snapshot(fence=1)
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(saved, term=1, layout=first.store.layout)
    client.container += ".after"
    second = rig(2)
    second.start(checkpoints.newest())
    state = second.control.snapshot(fence=1)
    for path, value in saved.variables.items():
        np.testing.assert_array_equal(state.variables[path], value)
    for slot, values in saved.slots.items():
        for path, value in values.items():
            np.testing.assert_array_equal(state.slots[slot][path], value)
    more = batches(3, seed=1)
    Crew(first, [more]).join()
    Crew(second, [more]).join()
    one, other = first.control.snapshot(fence=1), second.control.snapshot(fence=1)
    for path, value in one.variables.items():
        np.testing.assert_allclose(other.variables[path], value, rtol=0, atol=1e-6)


def test_an_index_outside_the_table_is_named(client: Any) -> None:
    import tensorflow as tf

    rig = Rig(client, lambda: _keras().SGD(0.1), ps=SERVERS, build=ours(), loss="binary_crossentropy")
    rig.start()
    ((items, user), y) = batches(1, seed=0)[0]
    from pstraining.runtime.transport.client import ShardLostError

    with pytest.raises((ShardLostError, tf.errors.InvalidArgumentError), match="layer items"):
        rig.step(((items + ROWS, user), y))


@pytest.mark.parametrize("name", ["Nadam"])
def test_an_optimizer_without_row_updates_is_rejected(client: Any, name: str) -> None:
    from pstraining.runtime.model.optimizers.optimizer import OptimizerError

    with pytest.raises(OptimizerError, match=name):
        Rig(client, getattr(_keras(), name), ps=1, build=ours())


def test_outside_a_job_the_layer_is_keras_own() -> None:
    import keras

    model = ours()()
    twin = keras.Model.from_config(model.get_config())
    assert [w.shape for w in twin.weights] == [w.shape for w in model.weights]
    x = [np.zeros((2, FEATURES), int), np.ones(2, int)]
    assert model.predict(x, verbose=0).shape == (2, 1)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_indices_that_come_as_floats_name_the_same_rows(policy: str) -> None:
    """As Keras's own layer takes them from a `keras.Input` without dtype: 257 is no number in bfloat16."""
    import keras
    import tensorflow as tf

    from pstraining.runtime import Embedding
    from pstraining.runtime.model.embeddings.embedding import Lookups, looking_up

    layer, plain = Embedding(5000, 4, dtype=policy), keras.layers.Embedding(5000, 4, dtype=policy)
    ids = tf.constant([[257.0, 4099.0]])
    plain(ids)
    layer.build((None, 2))
    assert layer.embeddings is not None
    plain.set_weights([layer.embeddings.numpy()])
    np.testing.assert_array_equal(tf.cast(layer(ids), tf.float32), tf.cast(plain(ids), tf.float32))
    assert layer(ids).dtype == plain(ids).dtype
    asked: list[Any] = []

    def fetch(_: Any, indices: Any) -> Any:
        asked.extend(indices.numpy())
        return tf.gather(layer.embeddings.value, indices)  # type: ignore[union-attr]

    with tf.GradientTape() as tape, looking_up(Lookups(tape, fetch)):
        np.testing.assert_array_equal(tf.cast(layer(ids), tf.float32), tf.cast(plain(ids), tf.float32))
    assert asked == [257, 4099]


@pytest.mark.parametrize("rows", [8, None])
def test_texts_are_refused_with_the_layers_that_turn_them_into_numbers(rows: int | None) -> None:
    """TensorFlow refuses to cast them, but only in a batch, and its message names no layer."""
    import keras
    import tensorflow as tf

    from pstraining.runtime import Embedding
    from pstraining.runtime.model.errors import ModelError

    for given in (keras.Input((2,), dtype="string"), tf.constant([["a", "b"]])):
        with pytest.raises(ModelError, match=r"layer \w+: its input has texts, .*keras\.layers\.Hashing or keras"):
            Embedding(rows, 4)(given)
    ids = keras.layers.Hashing(2**62)(keras.Input((2,), dtype="string"))
    assert Embedding(None, 4)(ids).shape == (None, 2, 4)


def test_sizes_that_are_no_whole_numbers_are_refused() -> None:
    """A fraction, such as half of a vocabulary's size, lost its remainder, and the last index was outside."""
    from pstraining.runtime import Embedding
    from pstraining.runtime.model.errors import ModelError

    made: Any = Embedding
    for name, wrong in itertools.product(("input_dim", "output_dim"), (2.5, 0, -3, "x", float("nan"), float("inf"))):
        with pytest.raises(ModelError, match=rf"layer \w+: {name} must be a whole number of at least 1, not {wrong!r}"):
            made(**{"input_dim": 4, "output_dim": 4, name: wrong})
    layer = made(1e3, np.int32(2))
    assert (layer.input_dim, layer.output_dim) == (1000, 2)
    assert {type(layer.input_dim), type(layer.output_dim)} == {int}


@pytest.mark.parametrize("rows", [8, None])
def test_a_table_in_a_layer_of_the_programs_own_is_refused_by_name(rows: int | None) -> None:
    """A worker has no rows with which Keras could build such a layer or model."""
    import keras

    from pstraining.runtime import Embedding
    from pstraining.runtime.model.errors import ModelError
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    def outer(kind: Any) -> Any:
        layer = type("Outer", (kind,), {"call": lambda self, x: self.table(x)})()
        layer.table = Embedding(rows, 4, name="users")
        return layer

    def with_layer() -> Any:
        return keras.Sequential([keras.Input((3,), dtype="int32"), outer(keras.layers.Layer)])

    def with_model() -> Any:
        model = outer(keras.Model)
        model(np.zeros((1, 3), "int32"))
        return model

    for build in (with_layer, with_model):
        with pytest.raises(ModelError, match=r"layer users: a layer or a model of the program's own calls it"):
            Model(build, keras.optimizers.Adam, Objective("mse"), with_tables=False)


def test_keys_that_are_floats_and_indices_that_are_not_dense_are_refused() -> None:
    import keras
    import tensorflow as tf

    from pstraining.runtime import Embedding
    from pstraining.runtime.model.errors import ModelError

    with pytest.raises(ModelError, match=r'whole keys, and its input is float32: give keras.Input\(dtype="int64"\)'):
        Embedding(None, 4)(keras.Input((3,)))
    with pytest.raises(ModelError, match="the indices are a RaggedTensor"):
        Embedding(5, 4).call(tf.ragged.constant([[1], [2, 3]]))
