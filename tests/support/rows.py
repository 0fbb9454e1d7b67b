"""A program with a table and dense layers, each of whose workers has its own data: `python -m tests.support.rows`.

Two workers make every step together, however slow the machine is, because no silent worker is excluded. So the
parameters do not depend on disturbances. ROWS_PAUSE is the number of seconds per batch, until there is a file with the
name ROWS_HURRY.
"""

import os
import time
from pathlib import Path
from typing import Any

from pstraining.runtime import Embedding, Trainer
from tests.support.placement import wanted_devices

ROWS, FEATURES, BATCH = 40, 3, 8


def model() -> Any:
    import keras

    from pstraining.runtime.allreduce import transport as ring_transport
    from pstraining.runtime.ps import worker_registry

    vars(worker_registry).update(LAPSE_SECONDS=120.0)
    vars(ring_transport).update(SILENT_BEATS=600, DIAL_SECONDS=60.0)
    keras.utils.set_random_seed(1)
    ids = keras.Input((FEATURES,), dtype="int32")
    found = keras.layers.Flatten()(Embedding(ROWS, 4, name="rows")(ids))
    hidden = keras.layers.Dense(16, activation="relu")(found)
    return keras.Model(ids, keras.layers.Dense(1, activation="sigmoid")(hidden))


def optimizer() -> Any:
    import keras

    return keras.optimizers.Adam(0.01)


def data(worker: int, _: int) -> Any:
    import numpy as np
    import tensorflow as tf

    def endless() -> Any:
        random = np.random.default_rng(worker)
        while True:
            if not Path(os.environ.get("ROWS_HURRY", "/")).exists():
                time.sleep(float(os.environ["ROWS_PAUSE"]))
            yield random.integers(0, ROWS, (BATCH, FEATURES)), random.integers(0, 2, (BATCH, 1))

    shapes = (tf.TensorSpec([BATCH, FEATURES], tf.int32), tf.TensorSpec([BATCH, 1], tf.float32))
    return tf.data.Dataset.from_generator(endless, output_signature=shapes)


if __name__ == "__main__":
    Trainer(model, optimizer, "binary_crossentropy", data, devices=wanted_devices()).run()
