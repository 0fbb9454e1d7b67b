"""A program that reads only some rows of a table: `python -m tests.support.skewed_program`.

With UNEVEN_STRIDE 2 they are all on the second of two parameter servers.
"""

import os
from typing import Any

from pstraining.runtime import Embedding, Trainer

STRIDE = int(os.environ.get("UNEVEN_STRIDE", "1"))
ROWS, WIDTH, BATCH = 2000, 512, 500


def model() -> Any:
    import keras

    ids = keras.Input((), dtype="int64")
    return keras.Model(ids, keras.layers.Dense(1)(Embedding(ROWS, WIDTH, name="rows")(ids)))


def optimizer() -> Any:
    import keras

    return keras.optimizers.SGD(0.01)


def data(worker: int, workers: int) -> Any:
    import tensorflow as tf

    del worker, workers
    ids = tf.range(STRIDE - 1, ROWS, STRIDE, tf.int64)
    return tf.data.Dataset.from_tensor_slices((ids, tf.zeros([tf.size(ids), 1]))).repeat().batch(BATCH)


if __name__ == "__main__":
    Trainer(model, optimizer, "mse", data).run()
