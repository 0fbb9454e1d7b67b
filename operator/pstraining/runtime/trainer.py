"""The public face: one object, built by the user's program, that becomes whatever its task is."""

import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pstraining.runtime import cluster as clusters
from pstraining.runtime import network
from pstraining.runtime.settings import CheckpointSettings, TrainingSettings, resolve


class Trainer:
    """Trains a Keras model on parameter servers.

    Every task of a job runs the same program and calls `run`: a parameter server becomes TensorFlow's server, a worker
    trains, the chief (worker 0 in a job without one) initialises, saves and evaluates. Import Keras inside the
    functions, not at the top of the program: a parameter server then never loads it.

    Args:
        model: builds the Keras model, variables included (begin a Sequential with `keras.Input`). Called on the chief
            and on every worker; they need not draw equal initial values, the chief's count.
        optimizer: makes the Keras optimizer; it must work element by element (Lamb, Adafactor and Muon do not).
        loss: as for `keras.Model.compile`.
        data: a worker's `tf.data.Dataset` of (x, y) or (x, y, sample_weight) batches, from its index and the number of
            workers. A dataset that ends is begun again.
        steps: updates of the parameters in the whole job, by all workers together.
        evaluate: makes the dataset on which the chief evaluates the last checkpoint.
        metrics: as for `keras.Model.compile`, or a function that makes them.
        checkpoint: where and how often the chief saves; its folder also gets `result.json` and `final.weights.h5`.

    The job's `spec.training` and `spec.checkpoint` override `steps` and `checkpoint`, field by field.
    """

    def __init__(
        self,
        model: Callable[[], Any],
        optimizer: Callable[[], Any],
        loss: Any,
        data: Callable[[int, int], Any],
        *,
        steps: int,
        evaluate: Callable[[], Any] | None = None,
        metrics: Sequence[Any] | Callable[[], Sequence[Any]] | None = None,
        checkpoint: CheckpointSettings | None = None,
    ) -> None:
        self._model, self._optimizer, self._loss, self._metrics = model, optimizer, loss, metrics
        self._data, self._evaluate = data, evaluate
        self._training = {"steps": steps}
        self._checkpoint = (checkpoint or CheckpointSettings()).model_dump()

    def run(self) -> dict[str, float] | None:
        """Do this task's part.

        Returns:
            On the chief the result: "step", and "test_loss" and "test_<metric>" if there is something to evaluate.
            None on other workers. A parameter server does not return.

        Raises:
            ClusterError: the environment does not describe a task of a job.
            SettingsError: the job's or the program's settings are wrong.
        """
        cluster = clusters.read()
        if cluster.task.type == "ps":
            become_server()
        training = resolve("training", TrainingSettings, self._training, cluster.training)
        checkpoint = resolve("checkpoint", CheckpointSettings, self._checkpoint, cluster.checkpoint)
        network.set_environment()
        return self._take_part(cluster, training, checkpoint)

    def _take_part(
        self, cluster: clusters.Cluster, training: TrainingSettings, checkpoint: CheckpointSettings
    ) -> dict[str, float] | None:
        import tensorflow as tf

        from pstraining.runtime.chief import Chief, Duties
        from pstraining.runtime.client import Client
        from pstraining.runtime.model import Model
        from pstraining.runtime.stopping import StopRequest
        from pstraining.runtime.store import ParameterStore
        from pstraining.runtime.worker import Worker

        client = Client(cluster)
        client.connect()

        def store() -> ParameterStore:
            return ParameterStore(client, Model(self._model, self._optimizer, self._loss, self._metrics))

        def work() -> None:
            with tf.device(client.local):
                index, workers = cluster.task.index, cluster.workers
                Worker(client, store(), lambda: self._data(index, workers), steps=training.steps).run()

        if not cluster.is_chief:
            work()
            return None
        worker = _Beside(work if cluster.task.type == "worker" else None)
        stop = StopRequest()
        stop.install()
        with tf.device(client.local):
            duties = Duties(training, checkpoint, self._evaluate)
            chief = Chief(client, store(), duties, look_in=worker.look_in, stop=stop)
            worker.start()
            result = chief.run()
        worker.join()
        return result


class _Beside:
    """Worker 0's training in a job without a chief, beside the chief's duty in the main thread."""

    def __init__(self, run: Callable[[], None] | None) -> None:
        self._run = run
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, name="pstraining-worker", daemon=True)

    def start(self) -> None:
        if self._run:
            self._thread.start()

    def look_in(self) -> None:
        """Raise what ended the worker, if anything did."""
        if self._error is not None:
            raise self._error

    def join(self) -> None:
        if self._run:
            self._thread.join(timeout=10)
        self.look_in()

    def _guarded(self) -> None:
        try:
            if self._run:
                self._run()
        except BaseException as error:  # noqa: BLE001 - it is raised again in the main thread
            self._error = error


def become_server() -> None:
    """Replace this process by the launcher's lean server; it never loads TensorFlow's Python side."""
    launcher = launcher_file()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, str(launcher), "serve"])  # noqa: S606


def launcher_file() -> Path:
    """The launcher in this installation, as a file: importing it is not needed to run it."""
    spec = importlib.util.find_spec("pstraining")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        if (found := Path(folder) / "launcher" / "launch.py").is_file():
            return found
    raise clusters.ClusterError("this installation of pstraining has no launcher to serve with")
