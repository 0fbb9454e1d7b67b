"""Asynchronous training by tf.distribute.ParameterServerStrategy and a ClusterCoordinator."""

import os
from typing import Any, Final

import tensorflow as tf

from bench.training import models
from pstraining.runtime.telemetry.progress import StepReports

STEPS: Final = 10
"""Number of steps that are scheduled together while as many wait: no worker is ever without a step."""


def main() -> None:
    """Run this task."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
        )
        server.join()
    coordinate(resolver, os.environ["BENCH_MODEL"])


def coordinate(resolver: Any, name: str) -> None:
    """Schedule steps endlessly."""
    import keras

    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = models.build(name)
        optimizer = keras.optimizers.Adam(1e-4)
        optimizer.build(model.trainable_variables)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(iterator: Any) -> Any:
        def replica(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - model(x, training=True)))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.run(replica, args=next(iterator))

    data = iter(coordinator.create_per_worker_dataset(lambda *_: models.batches(name, 0).prefetch(2)))
    reports, steps = StepReports(0), 0
    before: list[Any] = []
    while True:
        losses = [coordinator.schedule(train_step, args=(data,)) for _ in range(STEPS)]
        if before:
            loss = float(before[-1].fetch())
            steps += STEPS
            reports.step(steps, loss)
        before = losses


if __name__ == "__main__":
    main()
