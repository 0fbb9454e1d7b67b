"""A model with a table of several megabytes, of which each step changes few rows, at twenty steps a second.

Runs in pods by `python -c` with this file's text.
"""

from typing import Any

from pstraining.runtime import Embedding, Trainer

ROWS, USED, WIDTH = 200_000, 2_000, 16
"""Rows of the table, and rows that the data names; a row's elements."""
PAUSE_SECONDS = 0.05
"""Seconds that each batch takes."""


def model() -> Any:
    import keras

    items = keras.Input((2,), dtype="int32")
    rows = keras.layers.Flatten()(Embedding(ROWS, WIDTH, name="items")(items))
    return keras.Model(items, keras.layers.Dense(1, activation="sigmoid")(rows))


def optimizer() -> Any:
    import keras

    return keras.optimizers.SGD(0.1, momentum=0.9)


def train_data(worker: int, workers: int) -> Any:
    import tensorflow as tf
    from tensorflow.python.data.experimental.ops.testing import sleep

    numbers = tf.data.Dataset.random(seed=worker)
    pairs = numbers.map(lambda number: tf.cast(number % USED, tf.int32)).batch(2, drop_remainder=True)
    samples = pairs.map(lambda pair: (pair, tf.cast(pair[:1] % 2, tf.float32)))
    return samples.batch(16, drop_remainder=True).apply(sleep(int(PAUSE_SECONDS * 1_000_000)))


if __name__ == "__main__":
    Trainer(model, optimizer, "binary_crossentropy", train_data, steps=10_000_000).run()
