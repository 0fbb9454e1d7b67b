"""Programs that export models, run as separate processes because Keras reads its settings when it is imported.

python -m tests.support.exporting digits|tables FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import keras
import numpy as np

SEEN: Final = [[[1, 2, 0], [4, 4, 9]], [3, 7]]
"""Two samples for `clicks`."""


def clicks() -> Any:
    """Build a model with a shared table, another one in a nested model, and a loss that no other program can load."""
    from pstraining.runtime import Embedding

    items, user = keras.Input((3,), dtype="int32"), keras.Input((), dtype="int32")
    inner = keras.Sequential([keras.Input((3,), dtype="int32"), Embedding(10, 4, name="inner"), keras.layers.Flatten()])
    shared = Embedding(10, 4, name="shared")
    parts = [inner(items), keras.layers.Flatten()(shared(items)), shared(user)]
    model = keras.Model([items, user], keras.layers.Dense(2)(keras.layers.Concatenate()(parts)))
    model.compile(keras.optimizers.Adam(), loss=lambda wanted, found: keras.ops.mean(found - wanted))
    return model


KEYS: Final = [[-(2**63), 7, 2**63 - 1], [-1, 5, 7]]
"""Two samples for `by_key`; key 5 has no row."""


def export_by_key(folder: Path) -> dict[str, Any]:
    """Export a model with rows by key and one without any row; return each model's predictions by name."""
    from pstraining.runtime import Embedding
    from pstraining.runtime.model import export

    predicted = {}
    for name, number in (("keys", 4), ("empty", 0)):
        keys = keras.Input((3,), dtype="int64")
        layer = Embedding(None, 2, embeddings_initializer=keras.initializers.Constant(0.25), name="items")
        model = keras.Model(keys, keras.layers.Dense(1)(keras.layers.Flatten()(layer(keys))))
        assert layer.known is not None
        layer.known.rows.assign(np.arange(2.0 * number).reshape(number, 2))
        layer.known.keys.assign(np.array([7, 2**63 - 1, -(2**63), -1][:number], np.int64))
        export.save_model(model, _with_inputs(folder / name, [KEYS]))
        predicted[name] = model.predict(np.asarray(KEYS), verbose=0).tolist()
    return predicted


def export_towers(folder: Path) -> Any:
    """Export a model of two models whose layers have the same names; return its predictions."""
    from pstraining.runtime import Embedding
    from pstraining.runtime.model import export

    inputs, towers = [], []
    for number, name in enumerate(("users", "items")):
        layer = Embedding(None, 2, name="table")
        tower = keras.Sequential([keras.Input((1,), dtype="int64"), layer, keras.layers.Flatten()], name=name)
        assert layer.known is not None
        layer.known.rows.assign(np.arange(4.0).reshape(2, 2) + 10 * number)
        layer.known.keys.assign(np.array([5, 6 + number], np.int64))
        inputs.append(keras.Input((1,), dtype="int64"))
        towers.append(tower(inputs[-1]))
    model = keras.Model(inputs, keras.layers.Concatenate()(towers))
    samples = [[[5], [6], [7]]] * 2
    export.save_model(model, _with_inputs(folder / "towers", samples))
    return model.predict([np.asarray(one) for one in samples], verbose=0).tolist()


def export_clicks(folder: Path) -> Any:
    """Export the model and return its predictions."""
    from pstraining.runtime.model import export

    model = clicks()
    export.save_model(model, _with_inputs(folder / "clicks", SEEN))
    return model.predict([np.asarray(one) for one in SEEN], verbose=0).tolist()


WORDS: Final[list[Any]] = [[["b"], ["a"]], [["d e"], ["c d"]], [[3], [-4]]]
"""Two samples for `export_words`."""


def export_words(folder: Path) -> Any:
    """Export a model whose layers have learnt vocabularies, with a table and rows by key; return its predictions."""
    import tensorflow as tf

    from pstraining.runtime import Embedding
    from pstraining.runtime.model import export

    word, text = keras.layers.StringLookup(name="word"), keras.layers.TextVectorization(output_mode="tf_idf")
    word.adapt(np.array(["a", "b", "b"]))
    text.adapt(np.array(["c d", "d e", "d"]))
    keys = Embedding(None, 2, name="keys")
    inputs = [keras.Input((1,), dtype=dtype) for dtype in ("string", "string", "int64")]
    parts = [Embedding(4, 3)(word(inputs[0])), text(inputs[1]), keys(inputs[2])]
    whole = keras.layers.Concatenate()([keras.layers.Flatten()(part) for part in parts])
    model = keras.Model(inputs, keras.layers.Dense(2)(whole))
    assert keys.known is not None
    keys.known.keys.assign(np.array([3, -4], np.int64))
    keys.known.rows.assign(np.array([[1.0, 2.0], [3.0, 4.0]]))
    export.save_model(model, _with_inputs(folder / "words", WORDS))
    return model.predict([tf.constant(one) for one in WORDS], verbose=0).tolist()


class Centered(keras.layers.Layer):  # type: ignore[misc]
    """A layer of the program's file, whose state is no weight."""

    mean = np.zeros(2, "float32")

    def build(self, shape: Any) -> None:
        """Create a weight."""
        self.shift = self.add_weight(shape=shape[-1:], initializer="ones")

    def call(self, inputs: Any) -> Any:
        """Return the inputs without their mean."""
        return inputs - self.mean + self.shift

    def save_own_variables(self, store: Any) -> None:
        """Save the state."""
        super().save_own_variables(store)
        store["mean"] = self.mean

    def load_own_variables(self, store: Any) -> None:
        """Load the state."""
        self.shift.assign(store["0"])
        self.mean = np.array(store["mean"])


def export_own(folder: Path) -> Any:
    """Export a model of classes and functions of the program, and return whether Keras loads an equal one."""
    from pstraining.runtime import Embedding
    from pstraining.runtime.model import export

    class Scaled(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.factor = self.add_weight(shape=shape[-1:], initializer="random_normal")

        def call(self, inputs: Any) -> Any:
            return self.factor * inputs

    def halved(inputs: Any) -> Any:
        return inputs / 2

    centered, samples = Centered(), np.ones((2, 1, 2), "float32")
    centered.mean = np.array([3.0, 4.0], "float32")
    known = {"Centered": Centered, "Scaled": Scaled, "halved": halved}
    for table in ([], [Embedding(2, 2)]):
        made = [*table, centered, Scaled(), keras.layers.Dense(1, activation=halved)]
        model = keras.Sequential([keras.Input((1,) if table else (1, 2)), *made])
        export.save_model(model, folder / "own.keras")
        loaded = keras.models.load_model(folder / "own.keras", custom_objects=known)
        given = samples[..., 0] if table else samples
        np.testing.assert_allclose(loaded.predict(given, verbose=0), model.predict(given, verbose=0), rtol=1e-6)
    return True


def _with_inputs(folder: Path, inputs: Any) -> Path:
    """Write the inputs into a new folder, and return the path of the model's file there."""
    folder.mkdir()
    (folder / "inputs.json").write_text(json.dumps(inputs))
    return folder / "final.keras"


def export_tables(folder: Path) -> dict[str, Any]:
    """Export every model with tables; return each model's predictions, and the errors of `refused`."""
    found = {"clicks": export_clicks(folder), "words": export_words(folder), "towers": export_towers(folder)}
    found |= export_by_key(folder) | {"own": export_own(folder)}
    return {**found, "refused": refused(folder)}


def refused(folder: Path) -> list[str]:
    """Return the errors of exports that must be rejected."""
    from pstraining.runtime.model import export

    class Mine(keras.Model):  # type: ignore[misc]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(width)

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

        def get_config(self) -> dict[str, Any]:
            return {}

    def twin() -> Any:
        class Twin(keras.layers.Dense):  # type: ignore[misc]
            """Each call creates another class."""

        return Twin(1)

    twins = keras.Sequential([keras.Input((3,)), twin(), twin()])
    mine = Mine(2)
    mine(np.zeros((1, 3)))
    errors = []
    large = 1 << 30
    exports = [
        (mine, "mine", large),
        (clicks(), "none/final", large),
        (clicks(), "final", 100),
        (twins, "twins", large),
    ]
    for model, file, largest in exports:
        export.LARGEST_BYTES = largest  # type: ignore[misc]
        try:
            export.save_model(model, folder / f"{file}.keras")
        except (export.NotExportedError, OSError) as error:
            errors.append(type(error).__name__)
    return errors


def predict_digits(folder: Path) -> Any:
    """Return the digits example's predictions with the newest checkpoint, for the first held-back images."""
    from examples.digits.__main__ import load, model, optimizer
    from pstraining.runtime.checkpoint.storage import Checkpoints
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    state = Checkpoints(folder, keep=1).newest()
    assert state is not None
    made = Model(model, optimizer, Objective("sparse_categorical_crossentropy"))
    made.assign(state.variables.items())
    whole: Any = made.keras
    images = load()[1][:20]
    (folder / "inputs.json").write_text(json.dumps([images.tolist()]))
    return whole.predict(images, verbose=0).tolist()


if __name__ == "__main__":
    programs = {"digits": predict_digits, "tables": export_tables}
    found = programs[sys.argv[1]](Path(sys.argv[2]))
    print(json.dumps(found))
