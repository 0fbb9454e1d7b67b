"""The digits at a pace, of which each shade of gray has a row by key: see `paced`, which is run in the same ways."""

from typing import Any

import examples.digits.__main__ as digits
from pstraining.runtime import Trainer

PAUSE_SECONDS = 0.05
"""Seconds that each batch of each worker takes."""


def train_data(worker: int, workers: int) -> Any:
    import tensorflow as tf
    from tensorflow.python.data.experimental.ops.testing import sleep

    data = digits.train_data(worker, workers).apply(sleep(int(PAUSE_SECONDS * 1_000_000)))
    return data.map(lambda pixels, label: (tf.cast(16 * pixels, tf.int64), label))


def model() -> Any:
    import keras

    from pstraining.runtime import Embedding

    shades = keras.Input((64,), dtype="int64")
    rows = keras.layers.GlobalAveragePooling1D()(Embedding(None, 16, name="shades")(shades))
    return keras.Model(shades, keras.layers.Dense(10, activation="softmax")(rows))


if __name__ == "__main__":
    Trainer(model, digits.optimizer, "sparse_categorical_crossentropy", train_data, steps=10_000_000).run()
