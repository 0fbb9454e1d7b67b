"""The Python client on real kubelets: a function trains, its progress is read, and its failure has a stack trace."""

import json
from typing import Any

import pytest

from pstraining import Client, __version__
from pstraining.client.client import Job
from pstraining.client.errors import JobFailedError
from pstraining.progress import Progress
from tests.support.cli_runs import run
from tests.support.kube import Kube, Target, wait_for
from tests.support.soak_marks import ALL, in_all

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("installed")]
IMAGE = f"pstraining/runtime:{__version__}"


def train(steps: int, pace: float) -> None:
    import time

    from pstraining.runtime import Trainer

    def data(worker: int, workers: int) -> Any:
        import tensorflow as tf
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        samples = images.astype("float32") / 16, labels

        def paced(*batch: Any) -> Any:
            time.sleep(pace)
            return batch

        batches = tf.data.Dataset.from_tensor_slices(samples).shard(workers, worker).repeat().batch(32)
        return batches.map(lambda *batch: tf.numpy_function(paced, batch, [tf.float32, tf.int64])).map(
            lambda x, y: (tf.ensure_shape(x, [32, 64]), tf.ensure_shape(y, [32]))
        )

    def model() -> Any:
        import keras

        return keras.Sequential([keras.Input((64,)), keras.layers.Dense(10, "softmax")])

    def optimizer() -> Any:
        import keras

        return keras.optimizers.SGD(0.1)

    Trainer(model, optimizer, "sparse_categorical_crossentropy", data, steps=steps).run()


def pause(steps: int, seconds: float) -> None:
    """Pause each worker's data for this time after 100 batches."""
    import itertools
    import time

    from pstraining.runtime import Trainer

    def data(worker: int, workers: int) -> Any:
        import tensorflow as tf

        def batches() -> Any:
            for number in itertools.count():
                if number == 100:
                    time.sleep(seconds)
                time.sleep(0.05)
                yield [[0.0]] * 8, [0.0] * 8

        kinds = tf.TensorSpec([8, 1], tf.float32), tf.TensorSpec([8], tf.float32)
        return tf.data.Dataset.from_generator(batches, output_signature=kinds)

    def model() -> Any:
        import keras

        return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])

    def optimizer() -> Any:
        import keras

        return keras.optimizers.SGD(0.1)

    Trainer(model, optimizer, "mse", data, steps=steps).run()


def fail() -> None:
    import os

    if os.environ["PSTRAINING_TASK_TYPE"] != "worker":
        import time

        time.sleep(600)
    raise ValueError("no such column: age")


def client(target: Target, namespace: str) -> Client:
    return Client(namespace, kubeconfig=target.kubeconfig, context=target.context)


def reached_step(trainer: Client, job: Job, step: int) -> Progress | None:
    """Return the progress once the job has applied this number of steps."""
    found = trainer.progress(job)
    return found if found is not None and (found.step or 0) >= step else None


@pytest.mark.minutes
def test_a_function_trains_and_reports_the_progress_that_top_shows(kube: Kube, target: Target, namespace: str) -> None:
    trainer = client(target, namespace)
    options: dict[str, Any] = {"resources": {"cpu": 0.1, "memory": "512Mi"}, "training": {"minShardBytes": 0}}
    size = 2 if ALL else 1  # each task costs processor seconds before it trains
    job = trainer.train(train, arguments={"steps": 4000, "pace": 0.1}, ps=size, workers=size, image=IMAGE, **options)
    first = wait_for(lambda: reached_step(trainer, job, 1), "progress", 300)
    assert first.steps == 4000
    assert first.loss is not None
    reported = json.loads(run(target, "top", job.name, "-n", namespace, "-o", "json", "--interval", "2").stdout)
    step = reported["job"]["step"]
    reached = wait_for(lambda: reached_step(trainer, job, step), "later progress", 120)
    assert reached.step is not None
    assert reached.percentage == pytest.approx(100 * reached.step / 4000, abs=1)
    again = json.loads(run(target, "top", job.name, "-n", namespace, "-o", "json", "--interval", "2").stdout)
    assert 0.95 * step <= reached.step <= 1.05 * again["job"]["step"], "between the chief's metrics before and after"
    line = next(iter(trainer.logs(job, role="chief")))
    assert line.task == "chief-0"
    trainer.delete(job)
    wait_for(lambda: kube.get("ConfigMap", namespace, f"{job.name}-program") is None, "its program is deleted", 120)


@in_all(
    "tests/unit/core/test_conditions.py::test_a_job_without_steps_is_stalled_until_the_next_step"
)  # as the chief finds it, on kubelets
def test_a_job_whose_data_stops_is_stalled_until_it_resumes(kube: Kube, target: Target, namespace: str) -> None:
    trainer = client(target, namespace)
    options: dict[str, Any] = {"resources": {"cpu": 0.1, "memory": "512Mi"}, "training": {"mode": "Sync"}}
    job = trainer.train(pause, arguments={"steps": 100_000, "seconds": 75.0}, workers=2, image=IMAGE, **options)

    def stalled(status: str) -> Any:
        conditions = ((kube.get("PSTrainingJob", namespace, job.name) or {}).get("status") or {}).get(
            "conditions"
        ) or []
        return next((c for c in conditions if (c["type"], c["status"]) == ("Stalled", status)), None)

    found = wait_for(lambda: stalled("True"), "the stall is a condition", 240)
    assert found["reason"] == "NoStep"
    assert "all 2 workers take part, so one of them may wait for its data" in found["message"]
    assert wait_for(lambda: stalled("False"), "training has resumed", 120)["reason"] == "Stepping"
    trainer.delete(job)


def test_a_failure_has_the_stack_trace_of_the_task(target: Target, namespace: str) -> None:
    trainer = client(target, namespace)
    job = trainer.train(fail, image=IMAGE, spec={"runPolicy": {"backoffLimit": 0}, "ps": {"server": "Builtin"}})
    with pytest.raises(JobFailedError) as raised:
        trainer.wait(job, timeout=300)
    assert "Traceback (most recent call last)" in raised.value.log
    assert "ValueError: no such column: age" in raised.value.log
    assert raised.value.log.startswith("worker-0: ")
    assert trainer.get(job).phase == "Failed"
