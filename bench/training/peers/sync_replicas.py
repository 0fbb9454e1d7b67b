"""Synchronous training by TensorFlow 1's SyncReplicasOptimizer, between-graph; worker 0 is its chief."""

import json
import os
from typing import Any

import tensorflow as tf

from bench.training import models
from pstraining.runtime.telemetry.progress import StepReports

v1 = tf.compat.v1


def main() -> None:
    """Run this task."""
    v1.disable_eager_execution()
    config = json.loads(os.environ["TF_CONFIG"])
    kind, index = config["task"]["type"], config["task"]["index"]
    cluster = tf.train.ClusterSpec(config["cluster"])
    server = tf.distribute.Server(cluster, job_name=kind, task_index=index)
    if kind == "ps":
        server.join()
    train(server, cluster, index, os.environ["BENCH_MODEL"])


def train(server: Any, cluster: Any, index: int, name: str) -> None:
    """Train endlessly."""
    workers = cluster.num_tasks("worker")
    device = f"/job:worker/task:{index}"
    with v1.device(v1.train.replica_device_setter(worker_device=device, cluster=cluster)):
        x, y = v1.data.make_one_shot_iterator(models.batches(name, index).prefetch(2)).get_next()
        loss = tf.reduce_mean(tf.square(y - outputs(x, models.SHAPES[name])))
        step = v1.train.get_or_create_global_step()
        optimizer = v1.train.SyncReplicasOptimizer(
            v1.train.AdamOptimizer(1e-4), replicas_to_aggregate=workers, total_num_replicas=workers
        )
        update = optimizer.minimize(loss, global_step=step)
    with v1.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=index == 0,
        config=v1.ConfigProto(device_filters=["/job:ps", device]),
        hooks=[optimizer.make_session_run_hook(index == 0)],
    ) as session:
        reports = StepReports(index)
        while True:
            _, made, found = session.run([update, step, loss])
            reports.step(int(made), float(found))


def outputs(inputs: Any, layers: models.Layers) -> Any:
    """Build the model for a batch, with its variables on the parameter servers in turn."""
    values = inputs
    for number, (rows, columns, bias) in enumerate(layers):
        kernel = v1.get_variable(f"kernel{number}", [rows, columns], initializer=v1.glorot_uniform_initializer())
        values = tf.matmul(values, kernel)
        if bias:
            values += v1.get_variable(f"bias{number}", [columns], initializer=v1.zeros_initializer())
        values = tf.nn.relu(values)
    return values


if __name__ == "__main__":
    main()
