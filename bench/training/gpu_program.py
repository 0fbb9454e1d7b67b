"""The program that `bench.training.gpu` measures: one model, trained by `fit` or by the runtime, and the copies alone.

BENCH_GPU holds the settings as JSON: "model", "device", "batch", "small", and for `fit` "warm" and "steps".

    python -m bench.training.gpu_program fit|job|copies
"""

import json
import os
import sys
import time
from typing import Any, Final

from pstraining.runtime import Trainer

SETTINGS: Final[dict[str, Any]] = json.loads(os.environ["BENCH_GPU"])
SMALL: Final[bool] = SETTINGS["small"]
PIXELS: Final = 16 if SMALL else 224
CLASSES: Final = 10 if SMALL else 1000
WORDS, LENGTH, WIDTH, LAYERS = (50, 8, 16, 1) if SMALL else (16_000, 256, 512, 6)
BATCHES: Final = 8
"""Number of different batches, all in memory, because the reading of data is not measured."""


def model() -> Any:
    """Return the model: ResNet-50 or a tiny residual network, or an encoder of a transformer."""
    import keras

    if SETTINGS["model"] == "transformer":
        return _transformer()
    if not SMALL:
        return keras.applications.ResNet50(weights=None, input_shape=(PIXELS, PIXELS, 3), classes=CLASSES)
    inputs = keras.Input((PIXELS, PIXELS, 3))
    values = keras.layers.Conv2D(4, 3, padding="same")(inputs)
    inner = keras.layers.ReLU()(keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3, padding="same")(values)))
    values = keras.layers.GlobalAveragePooling2D()(keras.layers.Add()([values, inner]))
    return keras.Model(inputs, keras.layers.Dense(CLASSES, activation="softmax")(values))


def _transformer() -> Any:
    import keras

    ids = keras.Input((LENGTH,), dtype="int32")
    values = keras.layers.Embedding(WORDS, WIDTH)(ids)
    for _ in range(LAYERS):
        attended = keras.layers.MultiHeadAttention(8, WIDTH // 8)(values, values)
        values = keras.layers.LayerNormalization()(keras.layers.Add()([values, attended]))
        inner = keras.layers.Dense(WIDTH)(keras.layers.Dense(4 * WIDTH, activation="gelu")(values))
        values = keras.layers.LayerNormalization()(keras.layers.Add()([values, inner]))
    return keras.Model(ids, keras.layers.Dense(WORDS, activation="softmax")(values))


def optimizer() -> Any:
    """Return Adam, which has two slots."""
    import keras

    return keras.optimizers.Adam(1e-4)


def data(_: int = 0, __: int = 1) -> Any:
    """Yield batches endlessly."""
    import numpy as np
    import tensorflow as tf

    random, samples = np.random.default_rng(1), BATCHES * SETTINGS["batch"]
    if SETTINGS["model"] == "transformer":
        ids = random.integers(0, WORDS, size=(samples, LENGTH), dtype="int32")
        found = tf.data.Dataset.from_tensor_slices((ids, ids))
    else:
        images = random.random(size=(samples, PIXELS, PIXELS, 3), dtype="float32")
        labels = random.integers(0, CLASSES, size=samples, dtype="int32")
        found = tf.data.Dataset.from_tensor_slices((images, labels))
    return found.batch(SETTINGS["batch"], drop_remainder=True).cache().repeat().prefetch(2)


def fit() -> float:
    """Return the steps per second of plain Keras, after the warm-up."""
    import keras
    import tensorflow as tf

    begun: list[float] = []
    times = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(time.perf_counter()))
    batches = data()
    with tf.device(SETTINGS["device"]):
        built = model()
        # As in the runtime; by default, fit compiles with XLA on a GPU.
        built.compile(optimizer(), "sparse_categorical_crossentropy", jit_compile=False)
        built.fit(batches, epochs=1, steps_per_epoch=SETTINGS["warm"], verbose=0)
        built.fit(batches, epochs=1, steps_per_epoch=SETTINGS["steps"], verbose=0, callbacks=[times])
    return float(SETTINGS["steps"] / (time.perf_counter() - begun[-1]))


def copies() -> float:
    """Return the seconds of a step's copies: the parameters to the device, the gradient to the host; the median of
    20.
    """
    import tensorflow as tf

    with tf.device("CPU:0"):
        size = sum(int(tf.size(variable)) for variable in model().trainable_variables)
        host = tf.zeros([size])
    seconds = []
    for _ in range(20):
        begun = time.perf_counter()
        with tf.device(SETTINGS["device"]):
            there = tf.identity(host)
        with tf.device("CPU:0"):
            back = tf.identity(there)
        back.numpy()
        seconds.append(time.perf_counter() - begun)
    return sorted(seconds)[10]


if __name__ == "__main__":
    if sys.argv[1:] == ["job"]:
        Trainer(
            model, optimizer, "sparse_categorical_crossentropy", data, steps=10**9, devices=[SETTINGS["device"]]
        ).run()
    else:
        print(json.dumps({"fit": fit, "copies": copies}[sys.argv[1]]()))
