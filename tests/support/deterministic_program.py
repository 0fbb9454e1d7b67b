"""A program on the digits with assigned data: `python -m tests.support.deterministic_program`.

ORDERED_PAUSE is the seconds of a wait per chunk, which leave time to disturb the program on any machine; waits end once
the file ORDERED_HASTE exists. ORDERED_EACH is the number of connections after which all processes are renewed at once.
With ORDERED_PIECE, returning members receive the state in chunks of this number of bytes, as if the state were large.
With ORDERED_TABLE the model has a table of some megabytes, or rows by key if it is `keys`. With ORDERED_SUMS every
update adds its gradient, which does not depend on the parameters, so their sum shows each batch that was lost or
applied twice; the value is the number of units, whose gradients are equal. ORDERED_PHASES is a folder: see
`tests.support.layout_phases`.
"""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from pstraining.runtime import Ranges, Trainer
from pstraining.runtime.replication import renewal
from tests.support import layout_phases
from tests.support.placement import wanted_devices

SIZE, BLOCK, BATCH = 600, 70, 10
ROWS, SPREAD = 80_000, 70
"""Rows of the table, and the distance of two rows that the data names."""


def model() -> Any:
    import keras

    keras.utils.set_random_seed(int(os.environ.get("ORDERED_SEED", "1")))
    if os.environ.get("ORDERED_TABLE"):
        from pstraining.runtime import Embedding

        pixels = keras.Input((64,), dtype="int64")
        number = None if os.environ["ORDERED_TABLE"] == "keys" else ROWS
        rows = keras.layers.GlobalAveragePooling1D()(Embedding(number, 16, name="pixels")(pixels))
        return keras.Model(pixels, keras.layers.Dense(10, "softmax")(rows))
    if units := os.environ.get("ORDERED_SUMS"):
        dense = keras.layers.Dense(int(units), use_bias=False, kernel_initializer="zeros")
        return keras.Sequential([keras.Input((64,)), dense])
    return keras.Sequential([keras.Input((64,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(10, "softmax")])


def optimizer() -> Any:
    import keras

    from pstraining.runtime.replication.transfer import chunks

    if piece := os.environ.get("ORDERED_PIECE"):
        vars(chunks).update(CHUNK_BYTES=int(piece), INCREMENTAL_BYTES=0)
    if folder := os.environ.get("ORDERED_PHASES"):
        layout_phases.install(folder)
    return keras.optimizers.SGD(1.0) if os.environ.get("ORDERED_SUMS") else keras.optimizers.Adam(0.01)


def loss() -> Any:
    if not os.environ.get("ORDERED_SUMS"):
        return "sparse_categorical_crossentropy"
    import keras

    return lambda _, predicted: keras.ops.sum(predicted, 1)  # its gradient for each unit is the batch's mean


def sums(epochs: int) -> Any:
    """Return each column of the kernel after these epochs with ORDERED_SUMS. [64, 1]."""
    from sklearn.datasets import load_digits

    return -epochs * load_digits().data[:SIZE].sum(0)[:, np.newaxis] / 16 / BATCH


def read(begin: int, end: int) -> Any:
    import tensorflow as tf
    from sklearn.datasets import load_digits

    deadline, haste = time.monotonic() + float(os.environ.get("ORDERED_PAUSE", "0")), os.environ.get("ORDERED_HASTE")
    while time.monotonic() < deadline and not (haste and Path(haste).exists()):
        time.sleep(0.05)
    digits = load_digits()
    x, y = digits.data[begin:end].astype("float32") / 16, digits.target[begin:end]
    if os.environ.get("ORDERED_TABLE"):  # a row for each value of each pixel
        x = (SPREAD * (16 * x + 17 * np.arange(64))).astype("int64")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


if __name__ == "__main__":
    if each := os.environ.get("ORDERED_EACH"):
        vars(renewal).update(EACH=int(each), CHIEF_EACH=int(each), QUIET_SECONDS=0.0, TURN_SECONDS=0.0)
    Trainer(
        model,
        optimizer,
        loss(),
        Ranges(SIZE, BLOCK, read),
        epochs=1,
        devices=wanted_devices(),
    ).run()
