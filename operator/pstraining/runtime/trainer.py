"""The public API: one object, built by the user's program, that runs any task of a job."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pstraining.runtime.chief.shutdown import HELD_BACK, GracefulStop
from pstraining.runtime.config import arguments
from pstraining.runtime.config import cluster as clusters
from pstraining.runtime.config.devices import by_type
from pstraining.runtime.config.loading import check_backend, loading
from pstraining.runtime.config.server import become_server
from pstraining.runtime.config.settings import (
    CheckpointSettings,
    SettingsError,
    TrainingSettings,
    plain,
    resolve,
)
from pstraining.runtime.data.sources import Source
from pstraining.runtime.data.total_updates import total_updates
from pstraining.runtime.data.validation import KeptData, Validation
from pstraining.runtime.model.tensor import Dataset
from pstraining.runtime.model.training.objective import Objective
from pstraining.runtime.replication.renewal import Renewal, RenewalDueError
from pstraining.runtime.task_context import Outputs, TaskContext
from pstraining.runtime.telemetry.summaries_folder import summaries_folder
from pstraining.runtime.tracking.tracking import Tracking
from pstraining.runtime.transport import http2_probe, sockets
from pstraining.runtime.worker.thread import WorkerThread

if TYPE_CHECKING:
    import keras

    from pstraining.runtime.chief.chief import Chief
    from pstraining.runtime.ps.store import ParameterStore
    from pstraining.runtime.worker.loop import Worker


class Trainer:
    """Trains a Keras model on parameter servers.

    Every task of a job runs the same program and calls `run`: a parameter server becomes TensorFlow's server, and a
    worker trains. The chief (worker 0 in a job without one) initializes, saves and evaluates. Import Keras inside the
    functions, not at the top of the program: a parameter server then never loads it.

    Args:
        model: builds the Keras model with its variables (start a Sequential with `keras.Input`). Called on the chief
            and on every worker; the chief's initial values are used.
        optimizer: creates the Keras optimizer: one of Keras's own optimizers, or a MultiOptimizer of them.
        loss: as for `keras.Model.compile`.
        data: a worker's `tf.data.Dataset` of (x, y) or (x, y, sample_weight) batches, from its index and the number of
            workers; a dataset restarts when it ends. The function is called again when the number of workers changes.
            Alternatively, `Ranges` or `Files`: their splits are assigned to workers one at a time, so every sample is
            trained once per epoch even if processes fail.
        steps: number of updates in the job, by all workers together.
        epochs: number of passes over `Ranges` or `Files`, or of `steps_per_epoch` steps. With `steps`, training ends at
            the first limit.
        steps_per_epoch: number of updates, by all workers together, in an epoch of data that is not assigned. Without
            it, the whole training is one epoch.
        validation: creates the dataset on which the chief evaluates a snapshot at the end of an epoch, during training.
            The results are in the epoch's logs as val_loss and val_<metric>.
        validation_every: epochs from one validation to the next.
        validation_steps: number of batches of a validation; without it, all batches.
        callbacks: creates Keras callbacks, which run on the chief at the start and end of training and of epochs. Their
            `self.model` is a Keras model with a snapshot of the parameters; its `stop_training` ends the job.
        train_step: computes the loss instead of `loss`. It is traced with the Keras model and a batch of any structure,
            and returns a scalar, or (scalar, {name: scalar}). The means of the named scalars are in the logs.
        tensorboard: folder for TensorBoard's event files; by default, "tensorboard" beside the checkpoints. False:
            none.
        evaluate: creates the dataset on which the chief evaluates the last checkpoint.
        metrics: as for `keras.Model.compile`, or a function that creates them. An epoch's logs have their values over
            the batches of all workers, and over the validation data.
        loss_weights: as for `keras.Model.compile`.
        weighted_metrics: as for `keras.Model.compile`, or a function that creates them.
        class_weight: as for `keras.Model.fit`: factor of a sample's loss by its class.
        checkpoint: place and interval of checkpoints: a folder, or a URI such as `s3://bucket/prefix`. The place also
            gets `result.json`, `final.keras` and `final.weights.h5`.
        training: update mode and its settings, by the names of `TrainingSettings`: `{"mode": "Sync", "backup_workers":
            1}`.
        devices: the devices on which a worker computes, such as `["GPU:0"]`; None: all accelerators that TensorFlow
            sees, or else the CPU. The chief uses the named devices that it has.
        jit_compile: as for `keras.Model.compile`: whether XLA compiles the forward and backward pass on workers.

    The job's `spec.training` and `spec.checkpoint` override `steps`, `training` and `checkpoint`, field by field.
    """

    @arguments.refusing_others
    def __init__(  # noqa: PLR0913 - one argument for each decision of a program
        self,
        model: "Callable[[], keras.Model]",
        optimizer: "Callable[[], keras.optimizers.Optimizer]",
        loss: Any,
        data: Callable[[int, int], Dataset] | Source,
        *,
        steps: int | None = None,
        epochs: int | None = None,
        evaluate: Callable[[], Dataset] | None = None,
        metrics: Any = None,
        loss_weights: Any = None,
        weighted_metrics: Any = None,
        class_weight: Mapping[int, float] | None = None,
        steps_per_epoch: int | None = None,
        validation: Callable[[], Dataset] | None = None,
        validation_every: int = 1,
        validation_steps: int | None = None,
        callbacks: "Callable[[], Sequence[keras.callbacks.Callback]] | None" = None,
        train_step: Callable[[Any, Any], Any] | None = None,
        tensorboard: str | Path | bool | None = None,
        checkpoint: CheckpointSettings | None = None,
        training: Mapping[str, object] | None = None,
        devices: Sequence[str] | None = None,
        jit_compile: bool | Literal["auto"] = False,
    ) -> None:
        arguments.check_functions(model, optimizer, data, evaluate=evaluate, validation=validation, callbacks=callbacks)
        arguments.check_call("train_step", train_step, model, data, how="with the model and a batch")
        arguments.check_metrics(metrics=metrics, weighted_metrics=weighted_metrics)
        arguments.check_kinds(class_weight=class_weight, checkpoint=checkpoint, training=training)
        arguments.check_summaries(tensorboard)
        arguments.check_jit(jit_compile)
        self._model, self._optimizer, self._devices, self._jit_compile = model, optimizer, devices, jit_compile
        by_class = arguments.class_weights(class_weight)
        self._objective = Objective(loss, metrics, loss_weights, weighted_metrics, by_class, train_step)
        self._data, self._evaluate = data, evaluate
        limits = {"steps_per_epoch": steps_per_epoch, "validation_steps": validation_steps}
        limit = {name: None if number is None else arguments.count(name, number) for name, number in limits.items()}
        every = arguments.count("validation_every", validation_every)
        arguments.check_validation(validation, every=every, steps=limit["validation_steps"])
        if steps_per_epoch is not None and not callable(data):
            raise SettingsError("steps_per_epoch: an epoch of Ranges or Files is one pass over the data")
        self._steps_per_epoch, self._tensorboard, self._callbacks = limit["steps_per_epoch"], tensorboard, callbacks
        self._validation = Validation(validation, every, limit["validation_steps"]) if validation else None
        ends: dict[str, object] = {"steps": steps, "epochs": epochs}
        ends = {name: value for name, value in ends.items() if value is not None}
        arguments.check_once(ends, training or {})
        self._training = {name: plain(value) for name, value in {**ends, **(training or {})}.items()}
        self._checkpoint = (checkpoint or CheckpointSettings()).model_dump()

    @arguments.refusing_others
    def run(self) -> dict[str, float] | None:
        """Run this task's part of the job.

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
        checkpoint = resolve("checkpoint", CheckpointSettings, self._checkpoint, cluster.checkpoint)
        # NumPy, which no parameter server loads
        from pstraining.runtime.checkpoint.objects.choice import bucket_at, local_files
        from pstraining.runtime.history.recorder import HistoryRecorder

        history = HistoryRecorder(cluster, checkpoint)
        tensorboard = self._tensorboard if cluster.is_chief else False
        summaries = summaries_folder(tensorboard, checkpoint.path, lambda uri: bucket_at(uri).put_file)
        with Tracking(cluster, partial(local_files, checkpoint.path)) as tracking, summaries:
            outputs = Outputs(history, tracking, summaries)
            return history.recorded(lambda: self._run(cluster, checkpoint, outputs))

    def _run(
        self, cluster: clusters.Cluster, checkpoint: CheckpointSettings, outputs: Outputs
    ) -> dict[str, float] | None:
        training = resolve("training", TrainingSettings, self._training, cluster.training)
        if training.epochs and callable(self._data) and not self._steps_per_epoch:
            raise SettingsError(
                "training.epochs: only data from Ranges or Files has epochs of its own; give steps, or steps_per_epoch"
            )
        check_backend()
        settings = {"training": training, "checkpoint": checkpoint}
        outputs.history.settings = {n: s.model_dump(mode="json", by_alias=True) for n, s in settings.items()}
        sockets.set_environment()
        # The servers are probed during the seconds that loading TensorFlow takes.
        ahead = http2_probe.Ahead(cluster.ps, http2_probe.probe_timeout(cluster.members))
        is_worker = cluster.task.type == "worker"
        # A chief with callbacks, which may have state, is not renewed, and neither is one that also trains, because
        # both of its threads would have to end.
        may = not (cluster.is_chief and (is_worker or self._callbacks))
        renewal = Renewal(chief=not is_worker, index=cluster.task.index, enabled=cluster.members > 1 and may)
        with loading():
            from pstraining.runtime.chief import chief  # noqa: F401 - TensorFlow, and all that needs it
            from pstraining.runtime.worker import loop as worker_loop  # noqa: F401 - TensorFlow, and all that needs it
        try:
            return self._take_part(cluster, training, checkpoint, ahead, renewal, outputs)
        except RenewalDueError as due:
            outputs.tracking.leave()
            outputs.summaries.leave()
            renewal.renew(due, blocked=HELD_BACK if cluster.is_chief else ())

    @arguments.refusing_others
    def total_updates(
        self,
        *,
        batch_size: int | None = None,
        samples: int | None = None,
        workers: int | None = None,
        drop_remainder: bool = False,
    ) -> int:
        """Return the number of updates in the job, for `decay_steps` of a learning-rate schedule.

        For the `optimizer` function: it needs the job's environment. Where data ends training, the number is that of
        undisturbed training.

        Args:
            batch_size: samples in a batch, for `Ranges` and `Files` without `steps`.
            samples: number of samples in all files, for `Files` without `steps`.
            workers: number of workers, by default the job's. All tasks must have the same schedule, so the program of a
                job that is scaled gives a fixed number where the number of updates depends on it: in Sync and Hybrid
                without `steps`, and with `localSteps`.
            drop_remainder: whether batches of `Ranges` and `Files` are dropped that have fewer samples, as with
                `dataset.batch(batch_size, drop_remainder=True)`.

        Raises:
            ClusterError: the environment does not describe a task of a job.
            SettingsError: the number does not follow from the settings; the message names what is missing.
        """
        cluster = clusters.read()
        training = resolve("training", TrainingSettings, self._training, cluster.training)
        source = None if callable(self._data) else self._data
        given = None if workers is None else arguments.count("total_updates: workers", workers)
        return total_updates(
            training,
            given or clusters.number_of_workers(cluster),
            source,
            steps_per_epoch=self._steps_per_epoch,
            batch_size=batch_size,
            samples=samples,
            drop_remainder=drop_remainder,
        )

    def _take_part(
        self,
        cluster: clusters.Cluster,
        training: TrainingSettings,
        checkpoint: CheckpointSettings,
        ahead: http2_probe.Ahead,
        renewal: Renewal,
        outputs: Outputs,
    ) -> dict[str, float] | None:
        import tensorflow as tf

        from pstraining.runtime.data import epochs
        from pstraining.runtime.model.determinism import make_repeatable
        from pstraining.runtime.telemetry import prometheus
        from pstraining.runtime.telemetry.counters import ChiefCounters, WorkerCounters
        from pstraining.runtime.transport import before_connecting
        from pstraining.runtime.transport.client import PSClient
        from pstraining.runtime.updates import factory

        before_connecting.check()
        if training.ordered_sums:
            make_repeatable()
        source = None if callable(self._data) else self._data
        if source:
            divided = epochs.by_splits(training.epochs, source.count)
        else:
            steps, divided = epochs.by_steps(training.steps, training.epochs, self._steps_per_epoch)
            training = training.model_copy(update={"steps": steps})
        count, paired = partial(clusters.number_of_workers, cluster), cluster.members > 1
        mode = factory.choose(
            training, workers=cluster.workers, with_ledger=source is not None, paired=paired, count=count
        )
        client = PSClient(cluster, ahead, self._devices)
        client.connect()
        renewal.connected(client.leave)
        counters, chiefs = WorkerCounters(), ChiefCounters()
        context = TaskContext(client, training, checkpoint, renewal, outputs, mode, source, divided, counters, chiefs)
        prometheus.serve(
            prometheus.TaskMetrics(
                worker=counters if cluster.task.type == "worker" else None,
                chief=chiefs if cluster.is_chief else None,
                links=client.links.look,
                reconnects=lambda: client.reconnects,
                devices=by_type(client.devices),
            ),
            in_pod=cluster.in_pod,
        )

        def work() -> None:
            with tf.device(client.local):
                self._build_worker(context).run()

        if not cluster.is_chief:
            work()
            return None
        worker = WorkerThread(work if cluster.task.type == "worker" else None)
        stop = GracefulStop(lambda: clusters.is_layout_ending(client.cluster), grace=cluster.grace_seconds)
        stop.install(in_pod=cluster.in_pod)
        with tf.device(client.local):
            outputs.tracking.start(outputs.history.settings)
            chief = self._build_chief(context, stop, worker.check_abort)
            worker.start()
            result = chief.run()
        worker.join()
        return result

    def _build_worker(self, context: TaskContext) -> "Worker":
        """Return this task's worker."""
        from pstraining.runtime.data.divided import DividedData
        from pstraining.runtime.replication.witness import serve_witness
        from pstraining.runtime.updates.base import Identity
        from pstraining.runtime.worker.layout_router import make_router
        from pstraining.runtime.worker.loop import Worker

        cluster, renewal = context.client.cluster, context.renewal
        store, identity = self._build_store(context, with_tables=False), Identity(cluster.task.index, time.time_ns())
        renewal.witness = serve_witness(cluster.witnesses, identity.worker, identity.incarnation, renewal.kept.witness)
        divided = cast("Callable[[int, int], Dataset]", self._data)
        count = partial(clusters.number_of_workers, cluster)
        data = context.source or DividedData(divided, cluster.task.index, count)
        where = make_router(store, context.mode.make(store, identity), identity)
        return Worker(
            where,
            identity,
            data,
            training=context.training,
            counters=context.counters,
            renewal=renewal,
            epochs=context.epochs,
        )

    def _build_chief(self, context: TaskContext, stop: GracefulStop, check_abort: Callable[[], None]) -> "Chief":
        """Return this task's chief."""
        from pstraining.runtime.chief import refusals
        from pstraining.runtime.chief.chief import Chief
        from pstraining.runtime.chief.options import ChiefOptions
        from pstraining.runtime.chief.reports.evaluable import check_evaluable
        from pstraining.runtime.chief.reports.reporting import FitOptions

        client, training, source, renewal = context.client, context.training, context.source, context.renewal
        callbacks = refusals.created(self._callbacks)
        evaluate = KeptData.of(client.on_cpu(self._evaluate))
        validation = self._validation.called_by(client.on_cpu) if self._validation else None
        specs = refusals.check_all(callbacks, validation, evaluate)
        options = ChiefOptions(
            training,
            context.checkpoint,
            evaluate,
            positions=training.positions(source.count) if source and training.epochs else None,
            by_splits=source is not None,
            order=source.order if source else None,
            counters=context.chiefs,
            history=context.outputs.history,
            fit=FitOptions(
                context.epochs,
                validation,
                callbacks,
                summaries=context.outputs.summaries.path,
                track=context.outputs.tracking.write,
                local_optimizers=training.local_steps > 1,
                optimizer_steps=partial(training.optimizer_steps, workers=client.cluster.workers),
            ),
        )
        store = self._build_store(context, with_tables=True)
        refusals.check_rates(callbacks, store.model.optimizers)
        check_evaluable(store.model.keras, specs, client.compute)
        refusals.check_restores(callbacks, [layer.name for layer in store.model.embeddings if layer.is_dynamic])
        return Chief(
            client,
            store,
            options,
            check_abort=check_abort,
            stop=stop,
            may_be_renewed=lambda quiet: renewal.is_due(client.connection, settled=quiet),
            epoch=renewal.kept.epoch,
        )

    def _build_store(self, context: TaskContext, *, with_tables: bool) -> "ParameterStore":
        """Return the program's model on the servers."""
        import tensorflow as tf

        from pstraining.runtime.model.keras_model import Model
        from pstraining.runtime.model.own_state import check_separate
        from pstraining.runtime.ps.store import ModelMembers, ParameterStore
        from pstraining.runtime.replication import encoding

        cluster = context.client.cluster
        objective = self._objective if with_tables else self._objective.for_worker()
        with tf.device(context.client.compute):
            model = Model(
                self._model, self._optimizer, objective, with_tables=with_tables, jit_compile=self._jit_compile
            )
        check_separate(model, context.models)
        context.models.append(model)
        members = ModelMembers(
            context.client,
            model,
            context.mode.hooks,
            min_bytes=context.training.min_shard_bytes,
            acceptor_size=encoding.size(cluster.shards, cluster.members) if cluster.members > 1 else 0,
        )
        return ParameterStore(members)
