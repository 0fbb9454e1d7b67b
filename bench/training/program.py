"""The measured program: a model of a given shape with random data, trained until it is stopped.

BENCH_MODEL selects one of `models`. BENCH_DELAY seconds are added to every gradient's computation, and ten times as
many on the worker with the index BENCH_SLOW. From BENCH_ENOUGH bytes of a shard's state on, a returning member receives
the state in chunks while training continues.
"""

import os
import time
from functools import partial
from typing import Any, Final

from bench.training import models
from pstraining.runtime import Trainer

SLOWER: Final = 10
NAME: Final = os.environ["BENCH_MODEL"]


def optimizer() -> Any:
    """Return Adam, which has two slots."""
    import keras

    from pstraining.runtime.replication.transfer import chunks  # with TensorFlow, and so not before the trainer has run

    vars(chunks).update(INCREMENTAL_BYTES=int(os.environ.get("BENCH_ENOUGH", chunks.INCREMENTAL_BYTES)))
    return keras.optimizers.Adam(1e-4)


def data(worker: int, _: int) -> Any:
    """Return an endless dataset of batches."""
    return models.batches(NAME, worker).prefetch(2)


def loss() -> Any:
    """Return the mean squared error, after BENCH_DELAY seconds if it is set."""
    delay = float(os.environ.get("BENCH_DELAY", "0"))
    if not delay:
        return "mse"
    if f"worker-{os.environ.get('BENCH_SLOW')}" == _label():
        delay *= SLOWER

    def late(target: Any, predicted: Any) -> Any:
        import tensorflow as tf

        def wait(value: Any) -> Any:
            time.sleep(delay)
            return value

        error = tf.reduce_mean(tf.square(target - predicted), -1)
        with tf.control_dependencies([tf.numpy_function(wait, [error], error.dtype)]):
            return tf.identity(error)

    return late


def _label() -> str:
    from pstraining.runtime.config.cluster import read

    return read().task.label


if __name__ == "__main__":
    Trainer(partial(models.build, NAME), optimizer, loss(), data, steps=10**9).run()
