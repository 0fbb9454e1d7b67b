"""Models and data for the runtime and for the programs that it is compared with.

Only the cost of training is measured, not its result: a model is defined by its shapes.
"""

from typing import Any, Final

BATCH: Final = 8
Layers = list[tuple[int, int, bool]]
"""Sequences of dense layers: rows, columns, and whether the layer has a bias."""

SHAPES: Final[dict[str, Layers]] = {
    "small": [(32, 32, True)] * 32,  # 64 tensors, 135 KB
    "medium": [(1024, 1024, False)],  # 4.2 MB
    "dense": [(1024, 1024, False)] * 4,  # 16.8 MB
    "big": [(2500, 2500, False)] * 4,  # 100 MB
    "uneven": [
        (2000, 2000, False),
        (2000, 8, True),
        *[(8, 8, True)] * 100,
    ],  # 16.2 MB, 16 of them in one of 203 tensors
    "tiny": [(256, 256, False)] * 4,  # 1 MB
}
ROWS: Final = {"table": 50_000, "rows": 1_000_000}
"""Rows of the models that are an embedding table: 25.6 and 512 MB. The model `digits` is a small CNN of 0.6 MB."""
WIDTH: Final = 128
IDS_PER_BATCH: Final = 2048


def bytes_of(name: str) -> int:
    """Return the size of a model's float32 parameters in bytes."""
    return sum(4 * (rows * columns + bias * columns) for rows, columns, bias in SHAPES[name])


def build(name: str) -> Any:
    """Return a Keras model with this shape."""
    import keras

    if name in ROWS:
        from pstraining.runtime import Embedding

        ids = keras.Input((IDS_PER_BATCH // BATCH,), dtype="int32")
        rows = keras.layers.GlobalAveragePooling1D()(Embedding(ROWS[name], WIDTH, name="table")(ids))
        return keras.Model(ids, keras.layers.Dense(2)(rows))
    if name == "digits":
        return keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
                keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dense(128, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
    layers = SHAPES[name]
    hidden = [keras.layers.Dense(columns, activation="relu", use_bias=bias) for _, columns, bias in layers]
    return keras.Sequential([keras.Input((layers[0][0],)), *hidden])


def arrays(name: str, worker: int) -> tuple[Any, Any]:
    """Return inputs and targets of 64 batches, equal in every run. Half of a table's ids occur twice."""
    import numpy as np

    random = np.random.default_rng(worker)
    if name in ROWS:
        ids = np.stack([random.choice(ROWS[name], IDS_PER_BATCH // 2, replace=False) for _ in range(64)])
        twice = np.concatenate([ids, ids[:, ::-1]], 1).reshape([64 * BATCH, -1]).astype("int32")
        return twice, random.normal(size=(64 * BATCH, 2)).astype("float32")
    if name == "digits":
        images = random.random(size=(64 * BATCH, 8, 8, 1)).astype("float32")
        return images, random.random(size=(64 * BATCH, 10)).astype("float32")
    rows, columns = SHAPES[name][0][0], SHAPES[name][-1][1]
    x, y = (random.normal(size=(64 * BATCH, width)).astype("float32") for width in (rows, columns))
    return x, y


def batches(name: str, worker: int) -> Any:
    """Return an endless dataset of batches."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(arrays(name, worker)).repeat().batch(BATCH, drop_remainder=True)


def touched_rows() -> int:
    """Return the number of different rows of the table in a batch."""
    import numpy as np

    ids, _ = arrays("table", 0)
    return int(np.mean([len(np.unique(batch)) for batch in ids.reshape([64, -1])]))
