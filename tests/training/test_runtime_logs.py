"""The logs of an epoch equal those of `fit`, also for batches and metrics of unusual shapes."""

import json
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from pstraining.api.training import Mode
from pstraining.runtime.checkpoint.state import State
from pstraining.runtime.config.settings import TrainingSettings
from pstraining.runtime.data.epochs import by_splits, by_steps
from pstraining.runtime.telemetry.aggregation import encode
from pstraining.runtime.telemetry.counters import WorkerCounters
from tests.support.servers import SESSION, Rig, batches, small
from tests.support.soak_marks import in_all, some
from tests.training.test_runtime_fit import in_one_process, reports, two_labels, two_outputs

# A process connects before it creates its first tensor, so every test here uses the client.
pytestmark = [pytest.mark.training, pytest.mark.timeout(240)]
HELD = in_all("tests/training/test_runtime_local_steps.py::test_a_trial_changes_no_sum_of_metrics")  # compiled ones
TRIED = some([True, False], bool, HELD)
BOTH = in_all("tests/training/test_runtime_logs.py::test_devices_without_samples_report_no_metrics")  # sums of any kind
ADDED = some([True, False], bool, BOTH)


def still() -> Any:
    """Return an optimizer that changes nothing."""
    import keras

    return keras.optimizers.SGD(0.0)


def leading(model: Any, reports: Any = list) -> Any:
    """Return a stand-in for the administration of servers with a model, whose workers have sent these reports."""
    device = "/device:CPU:0"
    client = SimpleNamespace(local=device, compute=device)
    return SimpleNamespace(
        store=SimpleNamespace(model=model),
        client=client,
        take_losses=lambda: (6.0, 3.0),
        reports=reports,
        skipped_steps=lambda: 0,
    )


def finish(ends: Any, end: Any) -> None:
    """End an epoch, and wait until its callbacks are done."""
    ends.end(end)
    while ends.busy:
        ends._thread.join(0.01)


def measured_step(model: Any, batch: Any) -> Any:
    """Return the loss of a training step of the program, and a metric."""
    import keras

    x, y = batch
    loss = keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, model(x, training=True)))
    return loss, {"again": loss}


def test_the_losses_of_several_outputs_weigh_batches_by_samples(client: Any) -> None:
    """The losses of the outputs weigh batches by their samples, as `fit` does where it knows the batches' sizes."""
    import tensorflow as tf

    losses = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
    rig = Rig(client, still, ps=1, build=two_outputs, loss=losses)
    rig.start()
    made = [batch[:2] for batch in two_labels(3)]
    made[2] = tf.nest.map_structure(lambda tensor: 9 * tensor[:2], made[2])
    made[2][1]["kind"] %= 3
    rig.train(made)
    _, logs = in_one_process(rig, two_outputs, made, still, loss=losses, run_eagerly=True)
    chief = rig.new_store().model.step.compiled
    total, samples = rig.control.take_losses()
    found = {"loss": total / samples} | chief.results(rig.model.step.compiled.outputs, reports(rig).state())
    assert found == {name: pytest.approx(value, rel=1e-5) for name, value in logs.items()}


def test_metrics_with_several_numbers_are_left_out_and_named(client: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """F1Score without `average` has a number for each class, which neither logs nor the result can have."""
    import keras
    import numpy as np
    import tensorflow as tf

    from pstraining.runtime.chief.conclusion import conclude
    from pstraining.runtime.chief.reports.callbacks import EpochEnd, EpochEnds
    from pstraining.runtime.data.validation import Validation
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    def metrics() -> list[Any]:
        return [keras.metrics.F1Score(), keras.metrics.CategoricalAccuracy(name="right")]

    def rows() -> Any:
        return tf.data.Dataset.from_tensors((np.ones((6, 8), "float32"), np.eye(3, dtype="float32")[[0, 1, 2] * 2]))

    model = Model(small, still, Objective("categorical_crossentropy", metrics))
    ended: list[EpochEnd] = []
    ends = EpochEnds(model, "/device:CPU:0", [], Validation(rows), ended.append)
    ends.begin(0)
    for epoch in range(2):
        finish(ends, EpochEnd(epoch, 1, {"loss": 1.0}, None, validate=True, following=None))
    state = State(7, model.values(), {}, {})
    result = conclude(model, rows, state, None)
    assert set(ended[1].logs) == {"loss", "val_loss", "val_right"}
    assert set(result) == {"step", "test_loss", "test_right"}
    named = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "metrics_left_out" in line]
    assert [line["metrics"] for line in named] == [["f1_score"]] * 2, "once by the validation, once by the result"


def test_a_metric_may_have_the_name_of_a_field_of_the_epochs_event(
    client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from pstraining.runtime.chief.reports.callbacks import EpochEnd, EpochEnds
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    ended: list[EpochEnd] = []
    ends = EpochEnds(Model(small, still, Objective("mse")), "/device:CPU:0", [], None, ended.append)
    logs = {"loss": 1.0, "step": 0.5, "epoch": 0.25}
    ends.begin(0)
    finish(ends, EpochEnd(2, 30, dict(logs), None, validate=False, following=None))
    (line,) = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"epoch"' in line]
    assert (line["epoch"], line["step"], line["loss"]) == (2, 30, 1.0)
    assert ended[0].logs == logs


def test_metrics_that_only_the_validation_has_can_be_monitored(client: Any) -> None:
    """Metrics that are left out of the logs of training are in those of the validation, and callbacks monitor them."""
    import keras

    from pstraining.runtime.chief.refusals import CallbackRefusedError, check_monitors
    from pstraining.runtime.chief.reports.reporting import log_names
    from pstraining.runtime.data.validation import Validation

    compiled = {"metrics": lambda: [keras.metrics.MeanIoU(100, sparse_y_pred=False, name="iou")]}
    rig = Rig(client, still, ps=1, build=small, compiled=compiled)
    rig.start()
    rig.train(batches(1))
    metrics, outputs = rig.new_store().model.step.compiled, rig.model.step.compiled.outputs
    names = log_names(metrics, outputs, {"loss"}, validated=Validation(lambda: batches(1)))
    check_monitors([keras.callbacks.EarlyStopping("val_iou")], names)
    with pytest.raises(CallbackRefusedError, match="monitor='iou'"):
        check_monitors([keras.callbacks.EarlyStopping("iou")], names)
    alone = log_names(metrics, outputs, {"loss"}, validated=None)
    with pytest.raises(CallbackRefusedError, match="monitor='val_iou'"):
        check_monitors([keras.callbacks.EarlyStopping("val_iou")], alone)


@pytest.mark.parametrize(("local_steps", "skipped", "rate"), [(4, 0, 0.6), (1, 3, 0.93)], ids=["local", "overflow"])
def test_the_logs_have_the_rate_of_the_steps_that_optimizers_have_made(
    client: Any, local_steps: int, skipped: int, rate: float
) -> None:
    """With `localSteps`, an optimizer makes several steps in each update, and its schedule counts them. Steps that loss
    scaling skips do not count.
    """
    import keras

    from pstraining.runtime.chief.reports.reporting import FitOptions, TrainingReporter
    from pstraining.runtime.data.epochs import Ends, Epochs
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective
    from pstraining.runtime.telemetry.counters import ChiefCounters

    seen: list[float] = []

    class Look(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(float(self.model.optimizer.learning_rate))

    def falling() -> Any:
        return keras.optimizers.SGD(keras.optimizers.schedules.PolynomialDecay(1.0, 100, end_learning_rate=0.0))

    model = Model(small, falling, Objective("sparse_categorical_crossentropy"))
    settings = TrainingSettings(mode=Mode.SYNC, steps=20, local_steps=local_steps)
    fit = FitOptions(Epochs(10, 2), callbacks=[Look()], optimizer_steps=partial(settings.optimizer_steps, workers=3))
    admin, counters = leading(model), ChiefCounters()
    admin.skipped_steps = lambda: skipped
    reporter = TrainingReporter(lambda: admin, fit, counters, steps=20, total=20)
    reporter._ends.begin(0)
    state = State(10, model.values(), {}, {})
    reporter._end_epoch(Ends(fit.epochs, 0), 1, 10, lambda: state, None)
    reporter._drain(lambda: time.sleep(0.01))
    assert seen == pytest.approx([rate])
    assert counters.scalars == {"loss": 2.0, "learning_rate": pytest.approx(rate)}


@pytest.mark.parametrize(("epochs", "steps"), [(by_steps(None, 4, 10)[1], 10), (by_splits(4, 10), None)])
def test_callbacks_get_the_steps_of_an_epoch_where_they_are_known(client: Any, epochs: Any, steps: int | None) -> None:
    """The number of an epoch's splits is no number of steps: in `fit`, `params["steps"]` is None without one."""
    import keras

    from pstraining.runtime.chief.reports.reporting import FitOptions, TrainingReporter
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective
    from pstraining.runtime.telemetry.counters import ChiefCounters

    look = keras.callbacks.Callback()
    model = Model(small, still, Objective("sparse_categorical_crossentropy"))
    admin = leading(model)
    admin.learning_rates = lambda: [None]
    reporter = TrainingReporter(
        lambda: admin, FitOptions(epochs, callbacks=[look]), ChiefCounters(), steps=40, total=40
    )
    reporter.begin(0)
    reporter._drain(lambda: time.sleep(0.01))
    assert (look.params["epochs"], look.params["steps"]) == (4, steps)


@pytest.mark.parametrize("plateau", [False, True])
def test_a_restarted_chief_multiplies_a_scheduled_rate_once(client: Any, plateau: bool) -> None:
    """The scheduler of Keras's documentation multiplies the present rate, which the servers already have."""
    import keras

    from pstraining.runtime.chief.reports.reporting import FitOptions, TrainingReporter
    from pstraining.runtime.data.epochs import Epochs
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective
    from pstraining.runtime.telemetry.counters import ChiefCounters

    def halved(epoch: int, rate: float) -> float:
        return rate if epoch < 1 else 0.5 * rate

    callbacks = [keras.callbacks.LearningRateScheduler(halved)]
    callbacks += [keras.callbacks.ReduceLROnPlateau("loss")] if plateau else []
    model = Model(small, lambda: keras.optimizers.SGD(0.8), Objective("sparse_categorical_crossentropy"))
    admin = leading(model)
    admin.learning_rates = lambda: [0.2]
    fit = FitOptions(Epochs(10, 4), callbacks=callbacks)
    reporter = TrainingReporter(lambda: admin, fit, ChiefCounters(), steps=40, total=40)
    reporter.begin(25)  # in the third epoch, whose rate the former chief has set
    reporter._drain(lambda: time.sleep(0.01))
    expected = 0.1 if plateau else 0.2  # a plateau's rate is known to the servers alone
    assert float(model.optimizer.learning_rate) == pytest.approx(expected)


@pytest.mark.parametrize("own", TRIED, ids=["own", "compiled"])
def test_the_trial_of_a_step_is_in_no_metric(client: Any, own: bool) -> None:
    """A worker tries a step before it registers, and does not report the metrics of the trial's batches."""

    from pstraining.runtime.worker.loop import Worker
    from pstraining.runtime.worker.router import StaticRouter

    compiled = {"train_step": measured_step} if own else {"metrics": ["accuracy"]}
    rig = Rig(client, still, ps=1, build=small, mode="Sync", compiled=compiled)
    rig.start()
    training = TrainingSettings(mode=Mode.SYNC, steps=2)
    where = StaticRouter(rig.store, rig.workers[0])
    worker = Worker(where, rig.identities[0], lambda: iter(batches(2)), training=training)
    for number, batch in enumerate(batches(2)):
        where._warmed_up = False  # as after a failover, with a trial for the new members
        worker._warm_up(number, SESSION)
        if number == 0:
            worker._begin_counting()
        rig.workers[0].start_session(SESSION)
        rig.train([batch])
    trained = rig.model.step
    assert trained.metrics() == ({"again": (pytest.approx(1.0986 * 32, rel=0.5), 32.0)} if own else {})
    assert trained.compiled.sums()[1:] == ([] if own else [32.0, 2.0])


@pytest.mark.parametrize("own", [True, False], ids=["own", "compiled"])
def test_a_skipped_batch_leaves_no_nan_in_the_metrics(client: Any, own: bool) -> None:
    """A batch with NaN is left out of the metrics, as its gradient is skipped; later epochs have metrics as before."""
    import keras
    import numpy as np

    def step(model: Any, batch: Any) -> Any:
        loss = keras.ops.mean((batch[1] - model(batch[0], training=True)) ** 2)
        return loss, {"again": loss}

    def build() -> Any:
        return keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])

    compiled = {"train_step": step} if own else {"metrics": ["mse"]}
    rig = Rig(client, still, ps=1, build=build, loss="mse", compiled=compiled, mode="Sync", nonFinite="Skip")
    rig.start()
    good, missing = ((x, x[:, :1]) for x, _ in batches(2))
    missing = (missing[0] * np.nan, missing[1])
    results = [rig.step(batch) for batch in (good, missing, good)]
    assert [result.finite for result in results] == [True, False, True]
    if own:
        assert rig.model.step.metrics() == {"again": (pytest.approx(32 * results[0].loss), 32.0)}
    else:
        assert rig.model.step.compiled.sums() == [pytest.approx(32 * results[0].loss), 32.0, 2.0]


def test_a_batch_that_backup_workers_train_again_counts_once(client: Any) -> None:
    """With `backupWorkers`, a late gradient is dropped and its batch computed again; metrics count the batch once."""
    import tensorflow as tf

    from pstraining.runtime.updates.base import StepResult
    from pstraining.runtime.worker.loop import Worker
    from pstraining.runtime.worker.router import StaticRouter

    rig = Rig(client, still, ps=1, build=small, mode="Sync", compiled={"metrics": ["accuracy"]})
    emit = tf.function(rig.model.step.loss, autograph=False)

    class Late:
        """Updates of which each second one is applied."""

        looks_ahead, calls = False, 0

        def step(self, made: Any, progress: Any) -> StepResult:
            emit(made[0])
            self.calls += 1
            return StepResult(True, self.calls % 2 == 0, False, self.calls // 2, 1.0)

    late: Any = Late()
    emit(batches(1)[0])  # the trial of a step, which creates the sums
    before = rig.model.step.compiled.sums()[1]
    training = TrainingSettings(mode=Mode.SYNC, steps=3, backup_workers=1)
    worker = Worker(StaticRouter(rig.store, late), rig.identities[0], lambda: iter(batches(3)), training=training)
    worker._begin_counting()
    assert not worker._step_through(SESSION)
    assert late.calls == 6
    assert rig.model.step.compiled.sums()[1] - before == 48.0


@pytest.mark.parametrize("own", ADDED, ids=["own", "compiled"])
def test_devices_without_samples_report_no_metrics(client: Any, own: bool) -> None:
    """A device for which a batch has no sample repeats one, which counts neither in the gradient nor in metrics."""

    from tests.support.placement import computing_on

    compiled = {"train_step": measured_step} if own else {"metrics": ["accuracy"]}
    with computing_on(client, "CPU:0", "CPU:1", "CPU:2"):
        rig = Rig(client, still, ps=1, build=small, compiled=compiled)
        rig.start()
        rig.train((x[:size], y[:size]) for (x, y), size in zip(batches(2), (1, 5), strict=True))
    trained = rig.model.step
    assert (trained.metrics()["again"][1] if own else trained.compiled.sums()[1]) == 6.0


def test_training_changes_no_metric_of_the_validation(client: Any) -> None:
    """In a job without a chief, a worker and a chief of one process have metrics of their own."""
    import keras
    import numpy as np
    import tensorflow as tf

    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    given = Objective("categorical_crossentropy", [keras.metrics.F1Score(average="macro")])
    chief, worker = (Model(small, still, objective) for objective in (given, given.for_worker()))
    batch = tf.ones((6, 8)), tf.constant(np.eye(3, dtype="float32")[[0, 1, 2] * 2])
    emit = tf.function(worker.step.loss, autograph=False)

    class Trains(keras.callbacks.Callback):  # type: ignore[misc]
        def on_test_batch_end(self, number: int, logs: Any = None) -> None:
            emit(batch)

    rows = tf.data.Dataset.from_tensors(batch)
    found = chief.keras.evaluate(rows, verbose=0, return_dict=True, callbacks=[Trains()])
    assert found == chief.keras.evaluate(rows, verbose=0, return_dict=True)
    assert found["f1_score"] > 0


@pytest.mark.parametrize("own", [True, False], ids=["own", "outputs"])
def test_an_epoch_waits_for_all_kinds_of_metrics(client: Any, own: bool) -> None:
    """A short epoch ends with the metrics of a training step of the program's own, and with the losses of outputs."""
    import tensorflow as tf

    from pstraining.runtime.chief.reports.reporting import FitOptions, TrainingReporter
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective
    from pstraining.runtime.telemetry.counters import ChiefCounters

    losses = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
    step = (lambda model, batch: (tf.constant(1.0), {"again": tf.constant(1.0)})) if own else None
    worker, chief = (Model(two_outputs, still, Objective(losses, train_step=step)) for _ in range(2))
    (batch,) = two_labels(1)
    sent = [""]
    emit = tf.function(worker.step.loss, autograph=False)

    def train() -> None:
        emit(batch)
        counters = WorkerCounters().report({}, worker.step.metrics(), worker.step.compiled.sums())
        sent[0] = encode(1, counters, worker.step.compiled.outputs)

    train()
    reporter = TrainingReporter(lambda: leading(chief, lambda: sent), FitOptions(), ChiefCounters(), steps=20, total=20)
    reporter._collect()
    reporter._check_monitors()
    reporter._epoch.begin()
    assert not reporter._has_metrics()
    train()
    assert reporter._has_metrics()
