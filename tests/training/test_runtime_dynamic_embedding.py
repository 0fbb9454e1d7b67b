"""Tables with rows by key on real parameter servers equal a dictionary, for any number of servers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.checkpoint.state import StateMismatchError
from pstraining.runtime.checkpoint.storage import Checkpoints
from tests.support.servers import Rig
from tests.support.soak_marks import ALL, THOROUGH, in_all
from tests.support.worker_threads import Crew

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]
WIDTH, FEATURES, BATCH = 4, 3, 16
RATE = 0.05
PATIENCE = 500
"""Seconds that a busy machine's workers may take, mostly for tracing."""
SLOW = in_all(
    "tests/training/test_runtime_dynamic_embedding.py::test_training_equals_a_dictionary_in_one_process_bit_for_bit"
)
EXTREMES = [-(2**63), 2**63 - 1, -1, 0]


def model(**policy: Any) -> Any:
    import keras

    from pstraining.runtime import Embedding

    keys = keras.Input((FEATURES,), dtype="int64")
    return keras.Model(keys, _head(keras.layers.Flatten()(Embedding(None, WIDTH, name="items", **policy)(keys))))


def _head(rows: Any) -> Any:
    import keras

    return keras.layers.Dense(1, activation="sigmoid", name="click")(rows)


def batches(number: int, *, seed: int, universe: int = 60) -> list[Any]:
    """Return batches of keys, of which a few are frequent and some are at the ends of the range."""
    import tensorflow as tf

    random, found = np.random.default_rng(seed), []
    keys = np.random.default_rng(99).integers(-(2**62), 2**62, universe)
    keys[: len(EXTREMES)] = EXTREMES
    for _ in range(number):
        places = np.minimum(random.zipf(1.3, (BATCH, FEATURES)) - 1, universe - 1)
        labels = random.integers(0, 2, (BATCH, 1)).astype("float32")
        found.append((tf.constant(keys[places]), tf.constant(labels)))
    return found


def _optimizers() -> dict[str, Callable[[], Any]]:
    import keras

    optimizers = keras.optimizers
    return {
        "SGD": lambda: optimizers.SGD(RATE),
        "Adagrad": lambda: optimizers.Adagrad(RATE),
        "Adam": lambda: optimizers.Adam(RATE),
    }


def rig_of(client: Any, name: str = "Adam", *, ps: int = 2, build: Any = model, **settings: Any) -> Rig:
    return Rig(client, _optimizers()[name], ps=ps, build=build, loss="binary_crossentropy", **settings)


def in_sync(client: Any, name: str, ps: int, *, workers: int) -> Rig:
    return rig_of(client, name, ps=ps, workers=workers, mode="Sync", ordered_sums=True)


class Dictionary:
    """Trains the same model in one process, with a dictionary from keys to rows and slots."""

    def __init__(self, rig: Rig, name: str) -> None:
        import keras

        rows = keras.Input((FEATURES * WIDTH,))
        self.head = keras.Model(rows, _head(rows))
        for variable in self.head.trainable_variables:
            variable.assign(rig.initial[variable.path])
        self.optimizer, self._name = _optimizers()[name](), name
        self.optimizer.build(self.head.trainable_variables)
        (self._begin,) = rig.model.row_initializers
        self.rows: dict[int, Any] = {}
        self.slots: dict[int, list[Any]] = {}
        self.step = 0

    def train(self, of_workers: Any) -> None:
        """Train one step on one batch of each worker."""
        import tensorflow as tf

        parts, sums = [], dict[int, Any]()
        for keys, labels in of_workers:
            gradients, by_key = self._gradients(keys, labels)
            parts.append(gradients)
            for key, gradient in by_key.items():
                sums[key] = gradient + sums[key] if key in sums else gradient
        self.optimizer.apply([tf.add_n(own) / len(parts) for own in zip(*parts, strict=True)])
        if kept := self._kept(sums):
            self._update(list(kept), np.stack([*kept.values()]) / len(parts))
        self.step += 1

    def _kept(self, sums: dict[int, Any]) -> dict[int, Any]:
        """Return the gradients of keys that have rows."""
        return sums

    def _rows(self, keys: Sequence[int]) -> Any:
        """Return the keys' rows as one tensor."""
        import tensorflow as tf

        begin = self._begin.rows(tf.constant(keys, tf.int64), WIDTH, tf.float32).numpy()
        return tf.constant(np.stack([self.rows.get(key, first) for key, first in zip(keys, begin, strict=True)]))

    def _slots(self, keys: Sequence[int], *begin: float) -> list[Any]:
        """Return the slots of the keys' rows, one tensor per slot; new keys have the slots' initial values."""
        import tensorflow as tf

        fresh = [np.full(WIDTH, value, np.float32) for value in begin]
        return [tf.constant(np.stack(own)) for own in zip(*(self.slots.get(key, fresh) for key in keys), strict=True)]

    def _gradients(self, keys: Any, labels: Any) -> tuple[list[Any], dict[int, Any]]:
        import keras
        import tensorflow as tf

        unique, place = tf.unique(tf.reshape(keys, [-1]))
        with tf.GradientTape() as tape:
            tape.watch(rows := self._rows(unique.numpy().tolist()))
            inputs = tf.reshape(tf.gather(rows, place), [BATCH, FEATURES * WIDTH])
            loss = tf.reduce_mean(keras.losses.binary_crossentropy(labels, self.head(inputs, training=True)))
        dense = [variable.value for variable in self.head.trainable_variables]
        *found, of_rows = tape.gradient(loss, [*dense, rows])
        return found, dict(zip(unique.numpy().tolist(), tf.convert_to_tensor(of_rows).numpy(), strict=True))

    def _update(self, keys: Sequence[int], gradient: Any) -> None:
        """Apply Keras's arithmetic to some rows."""
        import tensorflow as tf

        rows, rate = self._rows(keys), tf.constant(RATE)
        slots = list[Any]()
        if self._name == "SGD":
            rows = rows - rate * gradient
        elif self._name == "Adagrad":
            (sums,) = self._slots(keys, 0.1)
            slots = [sums := sums + tf.square(gradient)]
            rows = rows - rate * gradient / tf.sqrt(sums + 1e-7)
        else:
            first, second = self._slots(keys, 0.0, 0.0)
            time = tf.cast(self.step + 1, tf.float32)
            alpha = rate * tf.sqrt(1 - tf.pow(tf.constant(0.999), time)) / (1 - tf.pow(tf.constant(0.9), time))
            first = first + (gradient - first) * (1 - 0.9)
            second = second + (tf.square(gradient) - second) * (1 - 0.999)
            rows = rows - first * alpha / (tf.sqrt(second) + 1e-7)
            slots = [first, second]
        self.rows |= dict(zip(keys, rows.numpy(), strict=True))
        if slots:
            columns = zip(*(slot.numpy() for slot in slots), strict=True)
            self.slots |= dict(zip(keys, map(list, columns), strict=True))

    def by_key(self) -> dict[int, list[Any]]:
        """Return for each key its row and then its slots."""
        return {key: [row, *self.slots.get(key, ())] for key, row in self.rows.items()}


def by_key(state: Any) -> dict[int, list[Any]]:
    """Return for each key its row and then its slots."""
    keys = state.variables["items/keys"]
    assert len(set(keys.tolist())) == len(keys), "a key has two rows"
    columns = [state.variables["items"], *(state.slots[slot]["items"] for slot in sorted(state.slots))]
    assert {len(column) for column in columns} == {len(keys)}
    return {key: [column[place] for column in columns] for place, key in enumerate(keys.tolist())}


def equal(found: dict[int, list[Any]], expected: dict[int, list[Any]]) -> None:
    assert found.keys() == expected.keys()
    for key, columns in expected.items():
        np.testing.assert_array_equal(found[key], columns, err_msg=str(key))


@pytest.mark.usefixtures("plain_arithmetic")
@pytest.mark.parametrize(
    ("name", "ps"),
    [
        pytest.param("SGD", 3, marks=SLOW),
        pytest.param("Adagrad", 1, marks=SLOW),
        pytest.param("Adam", 2 if ALL else 1),  # a restored table trains on two servers
    ],
)
def test_training_equals_a_dictionary_in_one_process_bit_for_bit(client: Any, name: str, ps: int) -> None:
    rig = in_sync(client, name, ps, workers=2)
    rig.start()
    shares = [batches(20, seed=worker) for worker in range(2)]
    Crew(rig, shares).join(PATIENCE)
    reference = Dictionary(rig, name)
    for step in zip(*shares, strict=True):
        reference.train(step)
    state = rig.control.snapshot(fence=1)
    assert set(EXTREMES) <= reference.rows.keys()
    equal(by_key(state), reference.by_key())
    for variable in reference.head.trainable_variables:
        np.testing.assert_array_equal(state.variables[variable.path], variable.numpy(), err_msg=variable.path)


def test_a_pull_inserts_nothing_and_returns_the_row_with_which_a_key_begins(client: Any) -> None:
    rig = rig_of(client, ps=2 if ALL else 1)
    rig.start()
    first = assert_initial(rig)
    assert (np.abs(first) <= 0.05).all()
    assert len(np.unique(first)) == first.size
    assert not by_key(rig.control.snapshot(fence=1))


def test_insertions_lookups_and_growth_equal_a_dictionary(client: Any) -> None:
    """Insertions and lookups of thousands of keys in random portions equal a dictionary, while the arena grows several
    times.
    """
    import tensorflow as tf

    rig = rig_of(client, ps=1)
    rig.start()
    (shard,) = rig.store.shards
    table = shard.dynamic[0]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)], autograph=False)  # type: ignore[untyped-decorator]
    def place(keys: Any) -> Any:
        from pstraining.runtime.ps.critical_section import critical

        def placed(keys: Any) -> Any:
            return table.placed((keys, keys), tf.constant(0, tf.int64))[0]

        return rig.store.client.to_local(critical(shard.device, shard.container, [keys], placed))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)], autograph=False)  # type: ignore[untyped-decorator]
    def fetch(keys: Any) -> Any:
        return rig.store.client.to_local(shard.fetch_rows(0, keys))

    random, places = np.random.default_rng(5), dict[int, int]()
    for size in (1, 1000, 0, 30, 3000, 3000):
        keys = np.unique(random.integers(-4000, 4000, size))
        random.shuffle(keys)
        found = client.call(place, tf.constant(keys, tf.int64))
        for key in sorted(set(keys.tolist()) - places.keys()):
            places[key] = len(places)
        assert found.tolist() == [places[key] for key in keys.tolist()]
    every = np.array(sorted(places))
    (initializer,) = rig.model.row_initializers
    expected = initializer.rows(tf.constant(every), WIDTH, tf.float32)
    np.testing.assert_array_equal(client.call(fetch, tf.constant(every)), expected)
    assert place.experimental_get_tracing_count() == 1
    state = by_key(rig.control.snapshot(fence=1))
    assert list(state) == [key for key, _ in sorted(places.items(), key=lambda item: item[1])]
    assert all((slot == 0).all() for _, *slots in state.values() for slot in slots)


def test_a_checkpoint_restores_bit_equal_onto_other_numbers_of_servers(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of files that servers wrote restores bit-equal onto other numbers of servers."""
    from pstraining.runtime.chief.state import file_plan

    monkeypatch.setattr(file_plan, "FILE_BYTES", 128)
    monkeypatch.setattr(file_plan, "SMALL", 0)
    before, after = (3, (3, 2)) if THOROUGH else (1, (2,))
    first = in_sync(client, "Adam", before, workers=1)
    first.start()
    Crew(first, [batches(6, seed=0)]).join(PATIENCE)
    saved = by_key(first.control.snapshot(fence=1))
    checkpoints = Checkpoints(tmp_path, keep=1)
    with first.control.copied(fence=1, wait=lambda: None) as state:
        path = checkpoints.save(state, term=1, layout=first.store.layout)
    assert len(list(path.glob("ps-0-*.npy"))) > 4, "each column in several files"
    more = [batches(3, seed=7)]
    Crew(first, more).join(PATIENCE)
    expected, container = by_key(first.control.snapshot(fence=1)), client.container
    for ps in after:
        client.container = f"{container}.{ps}"
        rig = in_sync(client, "Adam", ps, workers=1)
        rig.start(checkpoints.newest())
        equal(by_key(rig.control.snapshot(fence=1)), saved)
        Crew(rig, more).join(PATIENCE)
        equal(by_key(rig.control.snapshot(fence=1)), expected)


@in_all(
    "tests/training/test_runtime_dynamic_embedding.py::test_a_checkpoint_restores_bit_equal_onto_other_numbers_of_servers"
)
def test_a_restore_replaces_the_rows_that_the_servers_have(client: Any) -> None:
    rig = rig_of(client)
    rig.start()
    state = rig.control.snapshot(fence=1)
    rig.train(batches(3, seed=0))
    assert by_key(rig.control.snapshot(fence=1))
    rig.control.restore(state, fence=1, generation=9, fresh=False)
    assert not by_key(rig.control.snapshot(fence=1))
    assert_initial(rig)


def assert_initial(rig: Rig) -> Any:
    """Demand that some keys have their initial rows; return those rows."""
    import tensorflow as tf

    keys = tf.constant(EXTREMES, tf.int64)
    fetch = tf.function(lambda: rig.store.client.to_local(rig.store.fetch_rows(0, keys)), autograph=False)
    (initializer,) = rig.model.row_initializers
    found = rig.store.client.call(fetch)
    np.testing.assert_array_equal(found, initializer.rows(keys, WIDTH, tf.float32))
    return found


@in_all("tests/training/test_runtime_export.py::test_rows_by_key_become_a_lookup_of_keras")
def test_the_chief_s_model_has_the_trained_rows_and_a_mean_row_for_other_keys(client: Any) -> None:
    from pstraining.runtime.chief.reports.evaluation import evaluation_weights

    rig = rig_of(client)
    rig.start()
    rig.train(batches(3, seed=0))
    state = rig.control.snapshot(fence=1)
    rig.model.assign(evaluation_weights(state, rig.model.trained_by, over=True))
    rows = by_key(state)
    (layer,) = rig.model.embeddings
    known = sorted(rows)[:2]
    found = np.asarray(layer(np.array([[*known, 12345]])))
    np.testing.assert_array_equal(found, [[rows[known[0]][0], rows[known[1]][0], np.zeros(WIDTH)]])


def test_a_state_of_a_table_with_a_number_of_rows_is_rejected(client: Any) -> None:
    from tests.training.test_runtime_embedding import ours

    static = Rig(client, _optimizers()["Adam"], ps=1, build=ours(), loss="binary_crossentropy")
    static.start()
    state = static.control.snapshot(fence=1)
    client.container += ".later"
    rig = rig_of(client, ps=1)
    with pytest.raises(StateMismatchError, match=r"no keys of items: .*input_dim"):
        rig.start(state)


def test_tables_that_cannot_have_rows_by_key_are_rejected(client: Any) -> None:
    import keras

    from pstraining.runtime import Embedding
    from pstraining.runtime.chief import refusals
    from pstraining.runtime.model.errors import ModelError

    with pytest.raises(ModelError, match=r"layer items: input_dim=None .* Hybrid; use Sync"):
        rig_of(client, ps=1, workers=2, mode="Hybrid")
    with pytest.raises(ModelError, match=r"GlorotUniform cannot be used with input_dim=None, .*; use RandomUniform"):
        Embedding(None, 2, embeddings_initializer="glorot_uniform")
    half = keras.initializers.Constant(np.float32(0.5))  # a number of NumPy is one, too
    assert Embedding(None, 2, embeddings_initializer=half).row_initializer("").mean == 0.5
    with pytest.raises(ModelError, match="layer items: input_dim=None can only be trained on parameter servers; run"):
        model()(np.zeros((1, FEATURES), np.int64), training=True)
    stopping = keras.callbacks.EarlyStopping(restore_best_weights=True)
    with pytest.raises(refusals.CallbackRefusedError, match=r"EarlyStopping.restore_best_weights .* layer items"):
        refusals.check_restores([stopping], ["items"])
    refusals.check_restores([stopping], [])


def test_a_weights_file_has_the_rows_and_their_keys(tmp_path: Path) -> None:
    first, second = model(), model()
    rows = first.get_layer("items").known
    rows.rows.assign(np.arange(8.0).reshape(2, WIDTH))
    rows.keys.assign(np.array([9, -9]))
    first.save_weights(tmp_path / "final.weights.h5")
    second.load_weights(tmp_path / "final.weights.h5")
    keys = np.array([[9, -9, 0]])
    np.testing.assert_array_equal(second.predict(keys, verbose=0), first.predict(keys, verbose=0))
    assert second.get_layer("items").known.keys.numpy().tolist() == [-9, 9]
