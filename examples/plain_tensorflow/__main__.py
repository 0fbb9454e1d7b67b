"""Classify scikit-learn's handwritten digits with TensorFlow's own ParameterServerStrategy.

A program that follows TensorFlow's guide runs in a PSTrainingJob unchanged; it uses pstraining only to report its
progress. The operator sets TF_CONFIG. Workers and parameter servers run TensorFlow's server; the chief coordinates
them.

When a parameter server dies, TensorFlow raises in the chief and this program ends with an error. The launcher sees that
a parameter server was lost and runs the program again, which resumes from its newest checkpoint.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pstraining import progress

STEPS_PER_ROUND = 100
"""Steps between two checks of the time, because the coordinator waits for its workers only here."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--checkpoint-dir", default=os.environ.get("PSTRAINING_CHECKPOINT_DIR"))
    parser.add_argument("--checkpoint-seconds", type=float, default=10)
    options = parser.parse_args()

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
        )
        server.join()  # until the job ends and stops this process
    else:
        coordinate(resolver, options)


def load() -> Any:
    """Return 1797 images of 8 x 8 pixels with their labels; a fifth is held back for the test."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    return train_test_split(images.astype("float32") / 16, labels, test_size=0.2, random_state=0, stratify=labels)


def dataset(_: Any = None) -> Any:
    """Return a worker's dataset, in its own random order."""
    images, _, labels, _ = load()
    return tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(2048).repeat().batch(32).prefetch(2)


def coordinate(resolver: Any, options: argparse.Namespace) -> None:
    # Waits until every worker and parameter server answers.
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    with strategy.scope():  # variables created here are on the parameter servers
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(128, activation="relu"),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
        step = tf.Variable(0, dtype=tf.int64)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    # Keras 3's `fit` does not work under this strategy; a custom training loop does.
    @tf.function  # type: ignore[untyped-decorator]
    def train_step(iterator: Any) -> Any:
        def replica(images: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(labels, model(images, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            step.assign_add(1)  # Keras's own counter loses updates of concurrent workers
            return loss

        return strategy.run(replica, args=next(iterator))

    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step)
    folder = options.checkpoint_dir or tempfile.mkdtemp()
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=3)
    # By default every parameter server writes its part to its own disk, but only the chief has the volume.
    here = tf.train.CheckpointOptions(experimental_io_device="/job:chief/replica:0/task:0/device:CPU:0")
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint, options=here)
        print(json.dumps({"event": "restored", "step": int(step.numpy())}), flush=True)

    batches = iter(coordinator.create_per_worker_dataset(dataset))
    saved = time.monotonic()
    stop_signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop_signals.append(number))  # before the pod ends, save once more
    while int(step.numpy()) < options.steps:
        losses = [coordinator.schedule(train_step, args=(batches,)) for _ in range(STEPS_PER_ROUND)]
        coordinator.join()  # raises if a parameter server is lost; another worker takes a lost worker's steps
        mean = float(np.mean([loss.fetch() for loss in losses]))
        print(json.dumps({"event": "progress", "step": int(step.numpy()), "loss": round(mean, 4)}), flush=True)
        progress.report(step=int(step.numpy()), steps=options.steps, loss=mean)  # for `kubectl get pstj`
        if stop_signals or time.monotonic() - saved >= options.checkpoint_seconds:
            path = manager.save(options=here)
            saved = time.monotonic()
            print(json.dumps({"event": "checkpoint", "step": int(step.numpy()), "path": path}), flush=True)
        if stop_signals:
            sys.exit(143)
    manager.save(options=here)

    _, images, _, labels = load()
    # One closure on a worker: the chief itself does no heavy work.
    predict = tf.function(lambda: tf.argmax(model(images, training=False), axis=1))
    found = coordinator.schedule(predict).fetch()
    tell_result(Path(folder), int(step.numpy()), float(np.mean(found == labels)))


def tell_result(folder: Path, step: int, accuracy: float) -> None:
    result = json.dumps({"event": "result", "step": step, "test_accuracy": accuracy})
    print(result, flush=True)
    (folder / "result.json").write_text(result + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
