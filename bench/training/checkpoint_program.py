"""The program whose checkpoints are measured: a large table and a small network, trained until it is stopped.

BENCH_ROWS rows of 64 numbers. A worker appends the time of each batch that it takes to the file BENCH_TIMES.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pstraining.runtime import Trainer

WIDTH: Final = 64
BATCH, IDS = 32, 16


def model() -> Any:
    """A table under a linear layer."""
    import keras

    from pstraining.runtime import Embedding

    ids = keras.Input((IDS,), dtype="int32")
    table = Embedding(int(os.environ["BENCH_ROWS"]), WIDTH, embeddings_initializer="zeros", name="table")
    return keras.Model(ids, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(table(ids))))


def optimizer() -> Any:
    """Return SGD without slots: checkpoints have the parameters only."""
    import keras

    return keras.optimizers.SGD(0.1)


def data(worker: int, _: int) -> Any:
    """Yield batches endlessly, and record the time of each."""
    import numpy as np
    import tensorflow as tf

    random, rows = np.random.default_rng(worker), int(os.environ["BENCH_ROWS"])

    def drawn() -> Iterator[tuple[Any, Any]]:
        with Path(os.environ["BENCH_TIMES"]).open("a", buffering=1, encoding="ascii") as times:
            while True:
                times.write(f"{time.time()}\n")
                yield random.integers(0, rows, (BATCH, IDS)).astype("int32"), np.ones((BATCH, 1), "float32")

    spec = tf.TensorSpec((BATCH, IDS), tf.int32), tf.TensorSpec((BATCH, 1), tf.float32)
    return tf.data.Dataset.from_generator(drawn, output_signature=spec)


if __name__ == "__main__":
    Trainer(model, optimizer, "mse", data, steps=10**9).run()
