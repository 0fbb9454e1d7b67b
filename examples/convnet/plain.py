"""The script, on one machine: `python -m examples.convnet.plain DATA [POLICY]`. `__main__` is the same as a job.

DATA is the folder that `python -m examples.convnet.write DATA` has written. POLICY is float32, mixed_bfloat16 or
mixed_float16.
"""

import sys
from pathlib import Path
from typing import Any

from examples.convnet.write import SAMPLES, SIZE

EPOCHS, BATCH = 5, 64
CLASS_WEIGHT = {8: 2.0, 9: 2.0}
"""Weights of the two digits that are confused with others most often."""


def policy(arguments: list[str]) -> str:
    return arguments[0] if arguments else "float32"


def parsed(path: Any) -> Any:
    """Return the samples of one file, or of a list of files."""
    import tensorflow as tf

    features = {"image": tf.io.FixedLenFeature([SIZE * SIZE], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(serialized: Any) -> Any:
        sample = tf.io.parse_single_example(serialized, features)
        return sample["image"], sample["label"]

    return tf.data.TFRecordDataset(path).map(parse)


def training_files(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("train-*.tfrecord")))


def test_data(folder: Path) -> Any:
    return parsed(str(folder / "test.tfrecord")).batch(1000)


def model(dtype_policy: str) -> Any:
    import keras

    keras.config.set_dtype_policy(dtype_policy)
    inputs = keras.Input((SIZE * SIZE,))
    x = keras.layers.Reshape((SIZE, SIZE, 1))(inputs)
    for filters in (32, 64):
        x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = keras.layers.BatchNormalization(momentum=0.9)(x)
        x = keras.layers.Activation("relu")(x)
        x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Dropout(0.2)(keras.layers.Flatten()(x))
    # A softmax in half precision would lose small probabilities.
    return keras.Model(inputs, keras.layers.Dense(10, activation="softmax", dtype="float32")(x))


def optimizer(updates: int) -> Any:
    import keras

    return keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(5e-3, decay_steps=updates))


def callbacks(folder: Path) -> list[Any]:
    import keras

    folder.mkdir(parents=True, exist_ok=True)
    return [
        keras.callbacks.EarlyStopping("val_accuracy", patience=3, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(str(folder / "best.keras"), monitor="val_accuracy", save_best_only=True),
        keras.callbacks.TensorBoard(str(folder / "logs")),
    ]


def main(data: Path, dtype_policy: str) -> float:
    """Train with `fit`, and return the accuracy on the test data."""
    samples = parsed(training_files(data)).shuffle(SAMPLES).batch(BATCH)
    built = model(dtype_policy)
    updates = EPOCHS * SAMPLES // BATCH
    built.compile(optimizer(updates), "sparse_categorical_crossentropy", metrics=["accuracy"])
    built.fit(
        samples,
        epochs=EPOCHS,
        validation_data=test_data(data),
        class_weight=CLASS_WEIGHT,
        callbacks=callbacks(data / "plain"),
        verbose=2,
    )
    accuracy: float = built.evaluate(test_data(data), return_dict=True, verbose=0)["accuracy"]
    return accuracy


if __name__ == "__main__":
    print("test_accuracy", main(Path(sys.argv[1]), policy(sys.argv[2:])))
