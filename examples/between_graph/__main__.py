"""Classify scikit-learn's handwritten digits as TensorFlow 1 programs do: between-graph replication.

Every worker builds the same graph, with its variables on the parameter servers, and runs it in its own session. The
chief (worker 0 in a job without one) initialises the variables and saves checkpoints; updates are asynchronous.
Training ends at the requested global step, and every worker then exits with 0.

When a parameter server dies, MonitoredTrainingSession creates a new session, and the chief's session restores the
newest checkpoint. If the program ends with an error instead, its launcher runs it again, and it restores the same
checkpoint.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--checkpoint-dir", default=os.environ.get("PSTRAINING_CHECKPOINT_DIR"))
    parser.add_argument("--checkpoint-seconds", type=float, default=10)
    options = parser.parse_args()

    v1.disable_eager_execution()
    config = json.loads(os.environ["TF_CONFIG"])
    task, index = config["task"]["type"], config["task"]["index"]
    cluster = tf.train.ClusterSpec(config["cluster"])
    server = tf.distribute.Server(cluster, job_name=task, task_index=index)
    if task == "ps":
        server.join()  # until the job ends and stops this process

    is_chief = task == "chief" or ("chief" not in config["cluster"] and (task, index) == ("worker", 0))
    folder = options.checkpoint_dir if is_chief else None
    if is_chief and folder is None:
        folder = tempfile.mkdtemp()  # only to evaluate from it
    train(server, cluster, f"/job:{task}/task:{index}", folder, options)
    if is_chief:
        evaluate(str(folder))


def load() -> Any:
    """1797 images of 8 x 8 pixels with their labels; a fifth is held back for the test."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    return train_test_split(images.astype("float32") / 16, labels, test_size=0.2, random_state=0, stratify=labels)


def logits_of(images: Any) -> Any:
    """Return the logits of two dense layers."""
    values = images
    for number, (rows, columns) in enumerate([(64, 128), (128, 10)]):
        kernel = v1.get_variable(f"kernel{number}", [rows, columns], initializer=v1.glorot_uniform_initializer())
        bias = v1.get_variable(f"bias{number}", [columns], initializer=v1.zeros_initializer())
        values = tf.matmul(values, kernel) + bias
        values = tf.nn.relu(values) if number == 0 else values
    return values


def train(server: Any, cluster: Any, device: str, folder: str | None, options: argparse.Namespace) -> None:
    images, _, labels, _ = load()
    # Variables are placed on the parameter servers in turn, all other operations on this worker.
    with v1.device(v1.train.replica_device_setter(worker_device=device, cluster=cluster)):
        data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(2048).repeat().batch(32)
        batch, target = v1.data.make_one_shot_iterator(data).get_next()
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(target, logits_of(batch)))
        step = v1.train.get_or_create_global_step()
        update = v1.train.AdamOptimizer(1e-3).minimize(loss, global_step=step)
        # Created here, and not sharded, so that it writes to the chief's disk and not to every parameter server's.
        saver = v1.train.Saver(max_to_keep=3, sharded=False)

    # Otherwise a session connects to every task of the cluster, and waits for other workers that it does not need.
    filters = v1.ConfigProto(device_filters=["/job:ps", device])
    with v1.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=folder is not None,
        checkpoint_dir=folder,
        scaffold=v1.train.Scaffold(saver=saver),
        hooks=[v1.train.StopAtStepHook(last_step=options.steps)],
        save_checkpoint_secs=options.checkpoint_seconds,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
        config=filters,
        max_wait_secs=600,
    ) as session:
        number = 0
        while not session.should_stop():
            _, at, value = session.run([update, step, loss])
            number += 1
            if number % 200 == 0:
                print(json.dumps({"event": "progress", "step": int(at), "loss": round(float(value), 4)}), flush=True)
    print(json.dumps({"event": "worker_done", "steps": number}), flush=True)


def evaluate(folder: str) -> None:
    """Return the accuracy of the newest checkpoint, evaluated in a separate graph and session."""
    _, images, _, labels = load()
    with tf.Graph().as_default(), v1.Session() as session:
        predicted = tf.argmax(logits_of(tf.constant(images)), axis=1)
        step = v1.train.get_or_create_global_step()
        v1.train.Saver().restore(session, tf.train.latest_checkpoint(folder))
        found, at = session.run([predicted, step])
    result = {"event": "result", "step": int(at), "test_accuracy": float(np.mean(found == labels))}
    print(json.dumps(result), flush=True)
    (Path(folder) / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
