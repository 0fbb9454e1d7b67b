"""The digits example at a pace: twenty steps a second, so that the processor is free for what a test disturbs.

Its model has a single layer: most of a task's cost is the tracing of its functions, which grows with the variables.

`python -m tests.support.paced` on this machine; in pods, whose image has no tests, `python -c` with this file's text. A
job of it ends when its test does.
"""

from typing import Any

import examples.digits.__main__ as digits
from pstraining.runtime import Trainer

PAUSE_SECONDS = 0.05
"""Seconds that each batch of each worker takes."""


def train_data(worker: int, workers: int) -> Any:
    from tensorflow.python.data.experimental.ops.testing import sleep

    return digits.train_data(worker, workers).apply(sleep(int(PAUSE_SECONDS * 1_000_000)))


def model() -> Any:
    import keras

    return keras.Sequential([keras.Input((64,)), keras.layers.Dense(10, activation="softmax")])


if __name__ == "__main__":
    Trainer(
        model,
        digits.optimizer,
        "sparse_categorical_crossentropy",
        train_data,
        evaluate=digits.test_data,
        metrics=["accuracy"],
        steps=10_000_000,
    ).run()
