"""Handwritten digits with a small residual network, on the GPUs of workers.

In a cluster: `kubectl apply -f job.yaml`. Each worker computes on the GPUs that its pod requests. On this machine, on
its GPU if TensorFlow sees one, else on its CPU:

    python -m pstraining.runtime.local --ps 1 --workers 1 --checkpoint-dir /tmp/digits-gpu -m examples.gpu
"""

from typing import Any

from examples.fit.plain import load
from pstraining.runtime import Ranges, Trainer

BATCH = 32
SAMPLES = 1437  # of 1797, a fifth is held back


def model() -> Any:
    import keras

    def convolve(values: Any) -> Any:
        values = keras.layers.Conv2D(32, 3, padding="same", use_bias=False)(values)
        return keras.layers.BatchNormalization(momentum=0.9)(values)

    inputs = keras.Input((64,))
    values = keras.layers.ReLU()(convolve(keras.layers.Reshape((8, 8, 1))(inputs)))
    for _ in range(2):
        inner = convolve(keras.layers.ReLU()(convolve(values)))
        values = keras.layers.ReLU()(keras.layers.Add()([values, inner]))
    values = keras.layers.GlobalAveragePooling2D()(values)
    return keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(values))


def optimizer() -> Any:
    import keras

    return keras.optimizers.Adam(3e-3)


def read(begin: int, end: int) -> Any:
    """Return the batches of some of the samples, the same ones in every call."""
    import tensorflow as tf

    images, _, labels, _ = load()
    return tf.data.Dataset.from_tensor_slices((images[begin:end], labels[begin:end])).batch(BATCH)


def held_back() -> Any:
    import tensorflow as tf

    _, images, _, labels = load()
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(128)


if __name__ == "__main__":
    Trainer(
        model,
        optimizer,
        "sparse_categorical_crossentropy",
        Ranges(SAMPLES, block=5 * BATCH, read=read),
        epochs=8,
        metrics=["accuracy"],
        evaluate=held_back,
        training={"mode": "Sync"},
    ).run()
