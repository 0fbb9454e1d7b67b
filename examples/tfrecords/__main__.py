"""Train on TFRecord files, which are assigned to the workers in sequence.

In a cluster: `kubectl apply -f job.yaml`. On this machine:

    python -m examples.tfrecords.write /tmp/tfrecords
    DATA=/tmp/tfrecords python -m pstraining.runtime.local --ps 1 --workers 2 -m examples.tfrecords
"""

import os
from pathlib import Path
from typing import Any

from examples.tfrecords.write import TEST
from pstraining.runtime import Files, Trainer

DATA = Path(os.environ.get("DATA", "/data"))
BATCH, EPOCHS, SAMPLES = 32, 8, 1437


def parsed(path: str) -> Any:
    """Return the samples of a file."""
    import tensorflow as tf

    features = {"image": tf.io.FixedLenFeature([64], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(record: Any) -> Any:
        sample = tf.io.parse_single_example(record, features)
        return sample["image"], sample["label"]

    return tf.data.TFRecordDataset(path).map(parse, num_parallel_calls=tf.data.AUTOTUNE)


def read(path: str) -> Any:
    """Return the batches of a file, the same ones each time, hence the seed. There is no repeat(), with which the file
    would never end.
    """
    return parsed(path).shuffle(1024, seed=1, reshuffle_each_iteration=False).batch(BATCH)


def test_data() -> Any:
    return parsed(str(DATA / TEST)).batch(128)


def model() -> Any:
    import keras

    layers = [keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10, activation="softmax")]
    return keras.Sequential([keras.Input((64,)), *layers])


def job() -> Trainer:
    def optimizer() -> Any:
        import keras

        updates = trainer.total_updates(batch_size=BATCH, samples=SAMPLES)
        return keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(4e-3, decay_steps=updates))

    trainer = Trainer(
        model,
        optimizer,
        "sparse_categorical_crossentropy",
        # Every task lists the same files in the same order, and only workers read them.
        Files(sorted(map(str, DATA.glob("train-*.tfrecord"))), read),
        epochs=EPOCHS,
        metrics=["accuracy"],
        validation=test_data,
        evaluate=test_data,
    )
    return trainer


if __name__ == "__main__":
    job().run()
