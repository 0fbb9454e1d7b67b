"""Callbacks that monitor what only the program knows, as `fit` accepts them, and callbacks beside losses of servers."""

import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pstraining.runtime.checkpoint.state import State
from tests.support.servers import Rig, batches, small
from tests.support.soak_marks import in_all, some
from tests.training.test_runtime_fit import Drained
from tests.training.test_runtime_logs import leading, still

# A process connects before it creates its first tensor, so every test here uses the client.
pytestmark = [pytest.mark.training, pytest.mark.timeout(240)]


@pytest.mark.parametrize("kind", ["class", "lambda"])
def test_a_callback_may_monitor_what_an_earlier_one_adds_to_the_logs(client: Any, kind: str) -> None:
    """Programs compute a score of their own in `on_epoch_end`, and EarlyStopping monitors it."""
    import keras

    from pstraining.runtime.chief.refusals import CallbackRefusedError, LogNames, check_all, check_monitors

    def add(epoch: int, logs: Any) -> None:
        logs["val_f1"] = [0.5, 0.4][epoch]

    class Adds(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            add(epoch, logs)

    adds = Adds() if kind == "class" else keras.callbacks.LambdaCallback(on_epoch_end=add)
    stop = keras.callbacks.EarlyStopping("val_f1", mode="max", patience=1)
    known = LogNames({"loss"}, {"val_loss"})
    check_all([adds, stop], None, None)
    check_monitors([adds, stop], known)
    run = Drained([adds, stop])
    for step in range(2):
        assert not run.ends.stop_asked
        run.end(step, loss=1.0)
    assert run.ends.stop_asked
    for refused in ([stop, adds], [keras.callbacks.CSVLogger("log.csv"), stop]):
        with pytest.raises(CallbackRefusedError, match="EarlyStopping has monitor='val_f1'"):
            check_monitors(refused, known)


def test_a_callback_may_monitor_what_the_model_itself_measures(client: Any) -> None:
    """The logs of the validation have the results of a model's own `test_step`, which no metric of `compile` has."""
    import keras
    import tensorflow as tf

    from pstraining.runtime.chief.refusals import CallbackRefusedError
    from pstraining.runtime.chief.reports.reporting import FitOptions, TrainingReporter
    from pstraining.runtime.data.validation import Validation
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective
    from pstraining.runtime.telemetry.counters import ChiefCounters

    class Measures(keras.Model):  # type: ignore[misc]
        def test_step(self, data: Any) -> Any:
            return {"loss": keras.ops.mean(self(data[0])), "psnr": 30.0}

    def own() -> Any:
        plain = small()
        return Measures(plain.inputs, plain.outputs)

    (batch,) = batches(1)
    validation = Validation(lambda: tf.data.Dataset.from_tensors(batch))
    run = Drained([], validation, build=own)
    run.end(1, validate=True)
    assert set(run.reported[0].logs) == {"val_loss", "val_psnr"}
    fit = FitOptions(validation=validation, callbacks=[keras.callbacks.EarlyStopping("val_psnr", mode="max")])
    for build, refused in ((own, False), (small, True)):
        model = Model(build, still, Objective("sparse_categorical_crossentropy"))
        model.step.loss(batch)
        reporter = TrainingReporter(partial(leading, model), fit, ChiefCounters(), steps=20, total=20)
        reporter._aggregate.outputs = model.step.compiled.outputs
        if refused:
            with pytest.raises(CallbackRefusedError, match="monitor='val_psnr'"):
                reporter._check_monitors()
        else:
            reporter._check_monitors()


def test_a_callback_sees_the_steps_of_several_optimizers(client: Any) -> None:
    """TensorBoard writes the results of a validation at `model.optimizer.iterations`, which a MultiOptimizer counts."""
    import keras

    seen: list[list[int]] = []

    class Look(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            several = self.model.optimizer
            seen.append([int(own.iterations.numpy()) for own in (several, *several.optimizers)])

    def make() -> Any:
        rules = {".*bias": keras.optimizers.SGD(0.5)}
        return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.25), rules))

    Drained([Look()], optimizer=make).end(25)
    assert seen == [[25, 25, 25]]


def test_a_schedule_also_sets_the_rates_of_epochs_that_are_reported_together(client: Any) -> None:
    """Short epochs end during the validation of an earlier one. The schedule of Keras's documentation multiplies."""
    import keras

    from pstraining.runtime.chief.reports.callbacks import EpochEnd

    begun: list[int] = []
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch else rate)
    note = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(epoch))
    run = Drained([halve, note], optimizer=lambda: keras.optimizers.SGD(1.0))
    for epoch in (0, 3, 4):
        run.ends.end(EpochEnd(epoch, 10 * epoch, {}, None, False, epoch + 1))
        run.wait()
        assert float(run.model.optimizer.learning_rate) == 0.5 ** (epoch + 1)
    assert begun == [0, 1, 4, 5]


def test_callbacks_may_read_the_history_of_the_model(client: Any) -> None:
    """`fit` sets `model.history`, which callbacks draw at the end of training."""
    import keras

    seen: list[Any] = []
    draw: Any = keras.callbacks.LambdaCallback(on_train_end=lambda logs: seen.append(draw.model.history.history))
    run = Drained([draw])
    for step, loss in enumerate((3.0, 2.0)):
        run.end(step, loss=loss)
    run.ends.close()
    run.wait()
    assert seen == [{"loss": [3.0, 2.0]}]


def test_callbacks_may_be_a_single_one_or_nested_lists() -> None:
    """As `fit` accepts them."""
    import keras

    from pstraining.runtime.chief.refusals import CallbackRefusedError, check, created

    stop, log = keras.callbacks.EarlyStopping(), keras.callbacks.CSVLogger("log.csv")
    assert created(None) == created(lambda: None) == created(list) == []
    assert created(lambda: stop) == [stop]
    assert created(lambda: [stop, (log,)]) == created(lambda: iter((stop, log))) == [stop, log]
    with pytest.raises(CallbackRefusedError, match="callbacks: str is not a keras"):
        check(created(lambda: ["EarlyStopping"]))


def test_an_orbax_checkpoint_with_a_monitor_that_no_log_has_is_refused() -> None:
    """It would save nothing, with a warning at each epoch."""
    import keras

    from pstraining.runtime.chief.refusals import CallbackRefusedError, check_all

    save = object.__new__(keras.callbacks.OrbaxCheckpoint)  # its package is not installed
    save.monitor, save.save_best_only, save.save_freq = "val_loss", False, "epoch"
    check_all([save], None, None)
    save.save_best_only = True
    with pytest.raises(CallbackRefusedError, match="OrbaxCheckpoint has monitor='val_loss'"):
        check_all([save], None, None)


def test_a_callback_without_its_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras reports the package of RemoteMonitor at the end of the first epoch only."""
    import keras

    from pstraining.runtime.chief import refusals

    monitor = keras.callbacks.RemoteMonitor()
    refusals.check([monitor])
    monkeypatch.setattr(refusals, "find_spec", lambda name: None)
    with pytest.raises(refusals.CallbackRefusedError, match=r"RemoteMonitor needs the package requests: .*pip install"):
        refusals.check([monitor])
    with pytest.raises(refusals.CallbackRefusedError, match=r"^callbacks: .*orbax"):
        refusals.created(lambda: keras.callbacks.OrbaxCheckpoint(tmp_path))


def test_the_callbacks_of_a_callback_list_count_as_those_of_a_list() -> None:
    """`fit` accepts a whole `CallbackList`. Inside it, the chief did not find what it refuses, restores or resumes."""
    import keras

    from pstraining.runtime.chief.refusals import CallbackRefusedError, check, created

    stop, log = keras.callbacks.EarlyStopping(restore_best_weights=True), keras.callbacks.CSVLogger("log.csv")
    nested = keras.callbacks.CallbackList([log, keras.callbacks.CallbackList([stop])])
    assert created(lambda: nested) == created(lambda: [nested]) == [log, stop]
    with pytest.raises(CallbackRefusedError, match="TerminateOnNaN cannot be used"):
        check(created(lambda: keras.callbacks.CallbackList([keras.callbacks.TerminateOnNaN()])))


def test_a_restore_sets_no_learning_rate_of_workers_with_local_optimizers(client: Any, tmp_path: Path) -> None:
    """The loss of a parameter server does not fail a job with `localSteps` whose callbacks set no learning rate."""
    import keras

    from pstraining.runtime.chief.refusals import CallbackRefusedError
    from pstraining.runtime.chief.reports.reporting import FitOptions, TrainingReporter
    from pstraining.runtime.data.epochs import Epochs
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective
    from pstraining.runtime.telemetry.counters import ChiefCounters

    model = Model(small, lambda: keras.optimizers.SGD(0.5), Objective("sparse_categorical_crossentropy"))
    admin = leading(model)
    admin.learning_rates = lambda: [0.5]
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    fit = FitOptions(Epochs(10, 4), callbacks=[log], local_optimizers=True)
    reporter = TrainingReporter(lambda: admin, fit, ChiefCounters(), steps=40, total=40)
    reporter.begin(0)
    reporter._drain(lambda: time.sleep(0.01))
    for _ in range(2):
        reporter.report(5, 5, snapshot=lambda: State(5, {}, {}, {}), fence=1)
        reporter.restored(5)
    model.optimizer.learning_rate = 0.1
    with pytest.raises(CallbackRefusedError, match="no effect with localSteps"):
        reporter.report(5, 5, snapshot=lambda: State(5, {}, {}, {}), fence=1)


def test_tasks_agree_on_the_next_layout_after_a_callback_has_set_the_learning_rate(client: Any) -> None:
    """The chief's rate has changed when it connects to the servers of another layout; the workers' is the program's."""
    import keras

    rig = Rig(client, lambda: keras.optimizers.SGD(0.5), ps=1, build=small)
    chief, worker = rig.new_store(), rig.new_store()
    chief.model.optimizer.learning_rate = 0.1
    following = [store.on(store.servers, 0) for store in (chief, worker)]
    assert following[0].fingerprint == following[1].fingerprint == rig.store.fingerprint
    assert Rig(client, lambda: keras.optimizers.SGD(0.1), ps=1, build=small).store.fingerprint != rig.store.fingerprint


@pytest.mark.parametrize(
    "kind",
    [
        list,
        *some(
            [deque, lambda found: (one for one in found)],
            lambda _: False,
            in_all(
                "tests/training/test_runtime_callbacks.py::test_the_chief_evaluates_the_iterables_that_workers_train"
            ),  # made generators of tuples in the same way
        ),
        lambda found: (list(one) for one in found),
    ],
    ids=["list", "other", "generator", "lists"],
)
def test_the_chief_evaluates_the_iterables_that_workers_train(client: Any, kind: Any) -> None:
    """Workers accept any iterable of batches. Keras takes a list for arrays, and refuses other iterables."""
    import tensorflow as tf

    from pstraining.runtime.chief.conclusion import conclude
    from pstraining.runtime.chief.refusals import check_all
    from pstraining.runtime.data.validation import Validation

    found = [tuple(part[:number] for part in batch) for batch, number in zip(batches(3), (4, 4, 2), strict=True)]
    dataset = tf.data.Dataset.from_generator(lambda: iter(found), output_signature=tuple(map(like, found[0])))
    validation = Validation(lambda: kind(found), steps=2)
    check_all([], validation, lambda: kind(found))
    run = Drained([], validation)
    run.end(1, validate=True)
    assert run.reported[0].logs["val_loss"] == pytest.approx(run.model.keras.evaluate(dataset.take(2), verbose=0))
    result = conclude(run.model, lambda: kind(found), State(1, run.model.values(), {}, {}), None)
    assert result["test_loss"] == pytest.approx(run.model.keras.evaluate(dataset, verbose=0))


def like(array: Any) -> Any:
    import tensorflow as tf

    return tf.TensorSpec((None, *array.shape[1:]), array.dtype)


def test_what_keras_refuses_in_a_callback_ends_the_job_at_once(client: Any, tmp_path: Path) -> None:
    """Another run would meet the same error of Keras; an error of the program's own callback may pass."""
    import keras

    from pstraining.runtime.chief.refusals import CallbackRefusedError, created
    from pstraining.runtime.chief.reports.callbacks import CallbackError
    from pstraining.runtime.errors import final_error

    def falls(epoch: int, rate: float) -> float:
        return rate / 2

    def fails(epoch: int, logs: Any) -> None:
        raise ValueError("a server of the program's has not answered")

    def scheduled() -> Any:
        return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))

    with pytest.raises(CallbackRefusedError, match=r"callbacks: .* must end in `.keras`"):
        created(lambda: keras.callbacks.ModelCheckpoint(tmp_path / "best.h6"))
    with pytest.raises(CallbackRefusedError, match=r"callbacks: .*learning rate is not settable"):
        Drained([keras.callbacks.LearningRateScheduler(falls)], optimizer=scheduled)
    run = Drained([keras.callbacks.EarlyStopping("score")])
    with pytest.raises(CallbackRefusedError, match=r"callbacks: .*Pass `mode='max'`"):
        run.end(1, loss=1.0, score=0.5)
    named = keras.callbacks.ModelCheckpoint(tmp_path / "{accuracy:.2f}.keras")  # whose workers may be late
    for callback, message in (
        (keras.callbacks.LambdaCallback(on_epoch_end=fails), "has not answered"),
        (named, "Failed to format .*accuracy"),
    ):
        run = Drained([callback])
        with pytest.raises(CallbackError, match=message) as raised:
            run.end(1, loss=1.0)
        assert final_error(raised.value) is None


def test_a_name_in_a_path_that_no_log_has_is_refused(client: Any) -> None:
    """Keras's error at the end of an epoch would not show whether the name is wrong, or the workers are late."""
    import keras

    from pstraining.runtime.chief.refusals import CallbackRefusedError, LogNames, check_all, check_monitors
    from pstraining.runtime.data.validation import Validation

    class Adds(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            super().on_epoch_end(epoch, {**logs, "f1": 0.5})

    known = LogNames({"loss", "accuracy"}, {"val_loss"})
    for path in ("best.keras", "{epoch:02d}-{val_loss:.2f}.keras", "{accuracy}-{loss.real}.keras", "{loss.keras"):
        check_monitors([keras.callbacks.ModelCheckpoint(path)], known)
    check_monitors([Adds("{f1:.2f}.keras")], known)
    with pytest.raises(CallbackRefusedError, match=r"ModelCheckpoint has {acc} in filepath.*they have accuracy, loss"):
        check_monitors([keras.callbacks.ModelCheckpoint("{epoch}-{acc:.2f}.keras")], known)
    with pytest.raises(CallbackRefusedError, match=r"has {val_loss} in filepath.*give the Trainer a validation"):
        check_all([keras.callbacks.ModelCheckpoint("{val_loss:.2f}.keras")], None, None)
    check_all([keras.callbacks.ModelCheckpoint("{val_loss:.2f}.keras")], Validation(lambda: batches(1)), None)
    with pytest.raises(CallbackRefusedError, match=r"{val_loss} in filepath.*leave out validation_every"):
        check_all([keras.callbacks.ModelCheckpoint("{val_loss:.2f}.keras")], Validation(lambda: batches(1), 2), None)


def score(y: Any, predicted: Any) -> Any:
    """Return a metric of the program's own, of which Keras does not know whether it is to rise."""
    return 0.0 * predicted[:, 0] + 0.5


def test_a_monitor_without_a_direction_is_refused_before_the_end_of_an_epoch(client: Any) -> None:
    """All training may be one epoch. With `mode`, and for metrics whose direction Keras knows, nothing is refused."""
    import keras

    from pstraining.runtime.chief.refusals import CallbackRefusedError
    from pstraining.runtime.chief.reports.reporting import FitOptions, TrainingReporter
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective
    from pstraining.runtime.telemetry.counters import ChiefCounters

    (batch,) = batches(1)
    stop, plateau = keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau
    best = partial(keras.callbacks.ModelCheckpoint, "best.keras", save_best_only=True)
    accepted = [stop("score", mode="max"), stop("accuracy"), best("loss"), plateau("score", mode="min")]
    for callbacks in (accepted, [stop("score")], [plateau("score")], [best("score")]):
        model = Model(small, still, Objective("sparse_categorical_crossentropy", metrics=["accuracy", score]))
        model.step.loss(batch)
        fit = FitOptions(callbacks=callbacks)
        reporter = TrainingReporter(partial(leading, model), fit, ChiefCounters(), steps=20, total=20)
        reporter._aggregate.outputs = model.step.compiled.outputs
        if callbacks is accepted:
            reporter._check_monitors()
            continue
        with pytest.raises(CallbackRefusedError, match=r"received monitor=score.* Pass `mode='max'`"):
            reporter._check_monitors()


def test_data_that_the_model_does_not_take_ends_the_job_and_the_model_is_exported(client: Any, tmp_path: Path) -> None:
    """Another run would validate and evaluate the same data. What a dataset reads may be there in another run."""
    import keras
    import tensorflow as tf

    from pstraining.runtime.checkpoint.saver import Saver
    from pstraining.runtime.chief.conclusion import conclude
    from pstraining.runtime.chief.reports.callbacks import CallbackError
    from pstraining.runtime.config.settings import CheckpointSettings
    from pstraining.runtime.data.validation import Validation
    from pstraining.runtime.errors import FinalError, final_error

    class Reads(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            raise ValueError("a file is not there yet")

    ((x, y),) = batches(1)
    wide = tf.data.Dataset.from_tensors((tf.concat([x, x], axis=-1), y))
    for make, is_final in ((lambda: wide, True), (Reads, False)):
        run = Drained([], Validation(make))
        with pytest.raises(CallbackError) as raised:
            run.end(1, validate=True)
        assert (final_error(raised.value) is not None) == is_final
    layout = Rig(client, still, ps=1, build=small).store.layout
    saver = Saver(CheckpointSettings(path=str(tmp_path)), layout, term=lambda: 1)
    with pytest.raises(FinalError, match=r"(?s)evaluate: the model cannot be evaluated: .*is incompatible with"):
        conclude(run.model, lambda: wide, State(1, run.model.values(), {}, {}), saver)
    trained: Any = run.model.keras
    assert keras.models.load_model(tmp_path / "final.keras").count_params() == trained.count_params()
