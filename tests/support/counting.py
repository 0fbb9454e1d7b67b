"""A program whose parameters count how often each sample was trained: `python -m tests.support.counting`.

Sample i is row i of a table, and the loss is the mean of a batch's rows. Adagrad's slot adds up the squares of their
gradients, each divided by the number of samples in its update. With batches of one size, a row that was trained once by
an update of n batches has 1 / n squared, in units of one batch. A row that was trained never or twice has another
number.
"""

import os
import time
from typing import Any

SAMPLES = int(os.environ.get("COUNTING_SAMPLES", "3000"))
BATCH, BLOCK = 10, 50
PACE = float(os.environ.get("COUNTING_PACE", "0.03"))
"""Minimum seconds per batch."""


def model() -> Any:
    import keras

    from pstraining.runtime import Embedding

    ids = keras.Input((), dtype="int64")
    return keras.Model(ids, Embedding(SAMPLES, 1, embeddings_initializer="zeros", name="samples")(ids))


def optimizer() -> Any:
    import keras

    return keras.optimizers.Adagrad(1.0, initial_accumulator_value=0.0)


def loss(_: Any, predicted: Any) -> Any:
    import keras

    return keras.ops.mean(predicted, axis=-1)


def read(begin: int, end: int) -> Any:
    import tensorflow as tf

    def paced() -> Any:
        for first in range(begin, end, BATCH):
            time.sleep(PACE)
            ids = list(range(first, min(first + BATCH, end)))
            yield ids, [0.0] * len(ids)

    shapes = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.float32))
    return tf.data.Dataset.from_generator(paced, output_signature=shapes)


def times_trained(accumulated: Any, workers: int) -> list[int]:
    """Return for each sample how often it was trained: 0 for never, 1 for once, 2 for anything else."""
    once = [1 / (n * BATCH) ** 2 for n in range(1, workers + 1)]
    return [
        0 if value == 0 else 1 if any(abs(value / one - 1) < 1e-4 for one in once) else 2
        for value in accumulated.ravel().tolist()
    ]


def main() -> None:
    from pstraining.runtime import Ranges, Trainer

    Trainer(model, optimizer, loss, Ranges(SAMPLES, BLOCK, read), epochs=1).run()


if __name__ == "__main__":
    main()
