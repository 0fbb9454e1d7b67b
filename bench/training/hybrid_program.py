"""The program for `bench.training.hybrid`: a dense part and a table with random data, at a constant slow pace.

BENCH_TABLE sets where the table is: `servers` (on the parameter servers, by rows), `dense` (one more dense tensor) or
`none`. A step takes BENCH_PACE seconds at least: a reader then counts all bytes of a step, or none.
"""

import os
import time
from typing import Any

from pstraining.runtime import Embedding, Trainer

BATCH, WIDTH, LAYERS = 8, 1024, 4
ROWS, ROW, FEATURES = 20_000, 64, 16
DENSE_BYTES = 4 * WIDTH * WIDTH * LAYERS
"""Number of parameters of the dense part, without the table."""


def model() -> Any:
    """Return a model of four square matrices after rows of a table."""
    import keras

    hidden = [keras.layers.Dense(WIDTH, use_bias=False, activation="relu") for _ in range(LAYERS)]
    where = os.environ["BENCH_TABLE"]
    if where == "none":
        return keras.Sequential([keras.Input((WIDTH,)), *hidden])
    ids = keras.Input((FEATURES,), dtype="int32")
    layer = (Embedding if where == "servers" else keras.layers.Embedding)(ROWS, ROW, name="table")
    value = keras.layers.Flatten()(layer(ids))
    for one in hidden:
        value = one(value)
    return keras.Model(ids, value)


def optimizer() -> Any:
    """Return SGD without slots."""
    import keras

    return keras.optimizers.SGD(1e-3)


def data(worker: int, _: int) -> Any:
    """Yield batches endlessly, at most at the pace."""
    import numpy as np
    import tensorflow as tf

    random, pace = np.random.default_rng(worker), float(os.environ["BENCH_PACE"])
    has_table = os.environ["BENCH_TABLE"] != "none"
    shapes = (tf.TensorSpec([BATCH, FEATURES if has_table else WIDTH], tf.int32 if has_table else tf.float32),)

    def draw() -> Any:
        while True:
            time.sleep(pace)
            if has_table:
                x = random.integers(0, ROWS, (BATCH, FEATURES)).astype("int32")
            else:
                x = random.normal(size=(BATCH, WIDTH)).astype("float32")
            yield x, np.zeros((BATCH, WIDTH), "float32")

    return tf.data.Dataset.from_generator(draw, output_signature=(*shapes, tf.TensorSpec([BATCH, WIDTH], tf.float32)))


if __name__ == "__main__":
    Trainer(model, optimizer, "mse", data, steps=10**9).run()
