"""Synchronous training by the all-reduce of tf.distribute.MultiWorkerMirroredStrategy, without parameter servers."""

import os
from typing import Any

import tensorflow as tf

from bench.training import models
from pstraining.runtime.telemetry.progress import StepReports


def main() -> None:
    """Train endlessly: each worker applies the mean of all workers' gradients to its copy."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow
    name = os.environ["BENCH_MODEL"]
    import keras

    model = models.build(name)
    optimizer = keras.optimizers.Adam(1e-4)
    optimizer.build(model.trainable_variables)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(x: Any, y: Any) -> Any:
        def replica(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - model(x, training=True)))
            found = tape.gradient(loss, model.trainable_variables)
            return loss, tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, found)

        loss, gradients = strategy.run(replica, args=(x, y))
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    index = strategy.cluster_resolver.task_id
    reports = StepReports(index)
    for step, batch in enumerate(models.batches(name, index).prefetch(2), 1):
        reports.step(step, float(train_step(*batch)))


if __name__ == "__main__":
    main()
