"""Arguments of `compile` and `fit` beside model, optimizer and loss: weights and logs equal one process."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.telemetry.aggregation import CounterAggregate, Window, encode
from pstraining.runtime.telemetry.counters import WorkerCounters
from tests.support.servers import Rig, batches, small
from tests.support.soak_marks import ALL, in_all, some

# A process connects before it creates its first tensor, so every test here uses the client.
pytestmark = [pytest.mark.training, pytest.mark.timeout(240)]
WEIGHTS = {0: 0.5, 2: 3.0}


def two_outputs() -> Any:
    import keras

    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(16, activation="tanh")(inputs)
    kind = keras.layers.Dense(3, activation="softmax", name="kind")(hidden)
    return keras.Model(inputs, {"kind": kind, "size": keras.layers.Dense(1, name="size")(hidden)})


def two_labels(number: int) -> Any:
    import tensorflow as tf

    random = np.random.default_rng(1)
    return [
        (x, {"kind": y, "size": tf.reduce_sum(x, 1, keepdims=True)}, tf.constant(random.uniform(0, 2, 16), tf.float32))
        for x, y in batches(number)
    ]


def several() -> dict[str, Any]:
    import keras

    return {
        "loss_weights": {"kind": 0.25, "size": 2.0},
        "metrics": {"kind": ["accuracy"], "size": [keras.metrics.MeanAbsoluteError()]},
        "weighted_metrics": {"kind": ["accuracy"], "size": ["mse"]},
    }


def binary() -> Any:
    import keras

    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, activation="sigmoid")])


def reports(rig: Rig) -> Window:
    """Return the chief's values of all workers' metrics."""
    tally = CounterAggregate()
    tally.note([])
    window = Window(tally)
    workers = [updates._store.model.step.compiled for updates in rig.workers]
    counted = [WorkerCounters().report({}, {}, metrics.sums()) for metrics in workers]
    tally.note([encode(1, counters, workers[0].outputs) for counters in counted])
    return window


def in_one_process(
    rig: Rig, build: Any, made: Sequence[Any], optimizer: Any, **options: Any
) -> tuple[Any, dict[str, float]]:
    """Return a plain model after `fit` on the same data, and the logs of its epoch."""
    import tensorflow as tf

    model, weights = build(), options.pop("class_weight", None)
    model.compile(optimizer=optimizer(), jit_compile=False, **options)
    for variable, tensor in zip(model.trainable_variables, rig.model.tensors, strict=True):
        variable.assign(rig.initial[tensor.path])
    rows = tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(lambda *each: tf.concat(each, 0), *made)).batch(16)
    logs = model.fit(rows, class_weight=weights, verbose=0, shuffle=False).history
    return model, {name: values[0] for name, values in logs.items()}


def assert_equal(state: Any, rig: Rig, model: Any) -> None:
    for variable, tensor in zip(model.trainable_variables, rig.model.tensors, strict=True):
        np.testing.assert_allclose(state.variables[tensor.path], variable.numpy(), rtol=0, atol=1e-6)


def test_several_outputs_losses_and_metrics(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    import keras

    losses = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
    rig = Rig(
        client,
        lambda: keras.optimizers.Adam(0.01),
        ps=3 if ALL else 1,
        build=two_outputs,
        loss=losses,
        compiled=several(),
        mode="Sync",
    )
    rig.start()
    rig.train(two_labels(10))
    model, logs = in_one_process(
        rig, two_outputs, two_labels(10), lambda: keras.optimizers.Adam(0.01), loss=losses, **several()
    )
    assert "AutoGraph could not transform" not in caplog.text
    assert_equal(rig.control.snapshot(fence=1), rig, model)
    chief, window = rig.new_store().model.step.compiled, reports(rig)
    reported = chief.results(rig.model.step.compiled.outputs, window.state())
    assert set(reported) == set(logs) - {"loss"}
    assert {"kind_accuracy", "kind_loss", "size_mean_absolute_error", "size_mse"} < set(reported)
    for name, value in reported.items():
        assert value == pytest.approx(logs[name], rel=1e-5), name


@pytest.mark.parametrize(
    "mode",
    some(
        ["Async", "Sync"],
        lambda mode: mode == "Sync",
        in_all("tests/training/test_runtime_fit.py::test_metrics_of_all_workers_are_those_of_all_data"),  # in Sync
    ),
)
def test_metrics_of_all_workers_are_those_of_all_data(client: Any, mode: str) -> None:
    """The loss and the metrics of all workers are those of all data, also if batches are unequal. AUC and precision
    come from added states, because they are no means of workers' values.
    """
    import keras

    def metrics() -> list[Any]:
        return [
            "accuracy",
            keras.metrics.AUC(num_thresholds=50, name="auc"),
            keras.metrics.Precision(name="precision"),
            keras.metrics.F1Score(threshold=0.5),
        ]

    def still() -> Any:
        return keras.optimizers.SGD(0.0)

    made = [(x, y[:, None] % 2) for x, y in batches(7)]
    made[6] = (made[6][0][:2], made[6][1][:2])  # the last batch of the data
    rig = Rig(
        client,
        still,
        ps=1,
        build=binary,
        loss="binary_crossentropy",
        workers=2,
        compiled={"metrics": metrics},
        mode=mode,
    )
    rig.start()
    if mode == "Async":
        for number, batch in enumerate(made):
            rig.workers[number % 2 if number < 4 else 0].step([batch])
    else:
        from tests.support.worker_threads import Crew

        Crew(rig, [made[:4], [*made[4:], made[0]]]).join()
        made = [*made, made[0]]
    _, logs = in_one_process(rig, binary, made, still, loss="binary_crossentropy", metrics=metrics())
    total, samples = rig.control.take_losses()
    assert total / samples == pytest.approx(logs["loss"], rel=1e-6)
    reported = rig.new_store().model.step.compiled.results(rig.model.step.compiled.outputs, reports(rig).state())
    assert set(reported) == set(logs) - {"loss"}
    for name, value in reported.items():
        assert value == pytest.approx(np.asarray(logs[name]).item(), rel=1e-5), name


def test_several_devices_report_the_metrics_of_the_whole_batch(client: Any) -> None:
    import keras

    from tests.support.placement import computing_on

    def metrics() -> list[Any]:
        return ["accuracy", keras.metrics.AUC(num_thresholds=50, name="auc")]

    def still() -> Any:
        return keras.optimizers.SGD(0.0)

    made = [(x, y[:, None] % 2) for x, y in batches(3)]
    with computing_on(client, "CPU:0", "CPU:1"):
        rig = Rig(client, still, ps=1, build=binary, loss="binary_crossentropy", compiled={"metrics": metrics})
        rig.start()
        rig.train(made)
    _, logs = in_one_process(rig, binary, made, still, loss="binary_crossentropy", metrics=metrics())
    reported = rig.new_store().model.step.compiled.results(rig.model.step.compiled.outputs, reports(rig).state())
    assert set(reported) == {"accuracy", "auc"}
    for name, value in reported.items():
        assert value == pytest.approx(logs[name], rel=1e-5), name


@pytest.mark.parametrize(
    "mode",
    some(
        ["Async", "Sync", "Hybrid"],
        lambda mode: mode == "Sync",
        in_all("tests/training/test_runtime_fit.py::test_class_weights"),  # in Sync
    ),
)
def test_class_weights(client: Any, mode: str) -> None:
    import keras

    def momentum() -> Any:
        return keras.optimizers.SGD(0.1, momentum=0.9)

    rig = Rig(client, momentum, ps=2, build=small, compiled={"class_weight": WEIGHTS}, mode=mode)
    rig.start()
    rig.train(batches(10))
    loss = "sparse_categorical_crossentropy"
    assert_equal(
        rig.snapshot(), rig, in_one_process(rig, small, batches(10), momentum, loss=loss, class_weight=WEIGHTS)[0]
    )


def test_class_weights_with_sample_weights_are_rejected(client: Any) -> None:
    import keras

    from pstraining.runtime.errors import final_error

    rig = Rig(client, lambda: keras.optimizers.SGD(0.1), ps=1, build=small, compiled={"class_weight": WEIGHTS})
    rig.start()
    with pytest.raises(Exception, match="class_weight cannot") as found:
        rig.train([(*batches(1)[0], np.ones(16, np.float32))])
    assert str(final_error(found.value)).startswith("class_weight cannot"), "TensorFlow wraps errors of tracing"


def test_without_metrics_nothing_is_emitted(client: Any) -> None:
    import keras
    import tensorflow as tf

    rig = Rig(client, lambda: keras.optimizers.SGD(0.1), ps=1, build=small)
    step, (batch,) = rig.model.step, batches(1)
    traced = tf.function(step.loss).get_concrete_function(batch)
    assert step.compiled.sums() == []
    assert not [node.name for node in traced.graph.as_graph_def().node if "Assign" in node.op]


def test_an_oversized_state_is_omitted_and_named(client: Any) -> None:
    import keras

    metrics = [keras.metrics.MeanIoU(100, sparse_y_pred=False)]
    rig = Rig(client, lambda: keras.optimizers.SGD(0.1), ps=1, build=small, compiled={"metrics": metrics})
    rig.start()
    rig.train(batches(1))
    compiled = rig.model.step.compiled
    assert (compiled.left_out, compiled.sums()) == ([metrics[0].name], [])
    assert rig.new_store().model.step.compiled.names(compiled.outputs) == set(), "the chief leaves them out as well"


class Drained:
    """A thread of epochs' ends for whose completion each end waits."""

    def __init__(self, callbacks: Any, validation: Any = None, optimizer: Any = None, build: Any = small) -> None:
        import keras

        from pstraining.runtime.chief.reports.callbacks import EpochEnds
        from pstraining.runtime.model.keras_model import Model
        from pstraining.runtime.model.training.objective import Objective

        self.reported: list[Any] = []
        loss = Objective("sparse_categorical_crossentropy")
        self.model = Model(build, optimizer or (lambda: keras.optimizers.SGD(0.1)), loss)
        self.ends = EpochEnds(self.model, "/device:CPU:0", callbacks, validation, self.reported.append)
        self.ends.begin(0, epochs=9, steps=10)
        self.wait()

    def wait(self) -> None:
        while self.ends.busy:
            self.ends._thread.join(0.01)

    def end(self, step: int, state: Any = None, *, validate: bool = False, **logs: float) -> None:
        from pstraining.runtime.chief.reports.callbacks import EpochEnd

        self.ends.end(EpochEnd(len(self.reported), step, logs, state, validate, len(self.reported) + 1))
        self.wait()


def test_a_callback_sees_the_rate_of_its_step(client: Any) -> None:
    """A callback sees the learning rate of its step. TensorBoard writes `model.optimizer.learning_rate`, which a
    schedule computes from the optimizer's iterations.
    """
    import keras

    seen: list[float] = []

    class Look(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(float(self.model.optimizer.learning_rate))

    schedule = keras.optimizers.schedules.PolynomialDecay
    run = Drained([Look()], optimizer=lambda: keras.optimizers.SGD(schedule(1.0, 100, end_learning_rate=0.0)))
    run.end(25)
    run.end(50)
    assert seen == pytest.approx([0.75, 0.5])


def test_the_best_weights_are_restored_as_keras_does(client: Any) -> None:
    import keras

    from pstraining.runtime.checkpoint.state import State

    stop = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
    run = Drained([stop])
    first = run.model.values()
    states = [State(step, {path: value + step for path, value in first.items()}, {}, {}) for step in range(4)]
    for step, loss in enumerate([3.0, 1.0, 2.0, 1.5]):
        assert not run.ends.stop_asked
        run.end(step, states[step], val_loss=loss)
    assert run.ends.stop_asked
    run.ends.close()
    run.wait()
    best = run.ends.best()
    assert best is not None
    for path, value in best.items():
        np.testing.assert_array_equal(value, states[1].variables[path])
    assert Drained([keras.callbacks.EarlyStopping("val_loss")]).ends.best() is None


def test_at_the_end_of_training_callbacks_have_the_last_logs_and_the_averages(client: Any) -> None:
    """As with `fit`, which first replaces the weights by their averages. The chief may repeat the end after a loss."""
    import keras

    from pstraining.runtime.checkpoint.state import State

    seen: list[Any] = []

    class Last(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_end(self, logs: Any = None) -> None:
            seen.extend([logs, self.model.get_weights()])

    run = Drained([Last()], optimizer=lambda: keras.optimizers.SGD(0.1, use_ema=True))
    first = run.model.values()
    averages = {path: value + 7 for path, value in first.items()}
    state = State(3, {path: value + 1 for path, value in first.items()}, {"average": averages}, {})
    run.end(3, state, loss=0.5)
    for _ in range(2):
        run.ends.close(state)
    run.wait()
    logs, weights = seen
    assert logs == {"loss": 0.5}
    for found, expected in zip(weights, averages.values(), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_an_error_of_a_callback_keeps_its_message(client: Any) -> None:
    import keras

    from pstraining.runtime.chief.reports.callbacks import CallbackError

    class Fails(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            raise RuntimeError("this callback does not like it")

    run = Drained([Fails()])
    with pytest.raises(CallbackError, match="has failed: RuntimeError: this callback does not like it"):
        run.end(1)


def test_validation_steps_bound_an_infinite_validation(client: Any) -> None:
    import keras
    import tensorflow as tf

    from pstraining.runtime.chief.refusals import CallbackRefusedError, check_all
    from pstraining.runtime.data.validation import Validation

    never_ends = type("NeverEnds", (keras.utils.PyDataset,), {"num_batches": None})

    def endless() -> Any:
        (x, y), *_ = batches(1)
        return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(4)

    run = Drained([], Validation(endless, steps=3))
    run.end(1, validate=True)
    assert run.reported[0].logs["val_loss"] > 0
    check_all([], Validation(endless, steps=3), None)
    with pytest.raises(CallbackRefusedError, match=r"validation: the dataset never ends .* give validation_steps"):
        check_all([], Validation(endless), None)
    with pytest.raises(CallbackRefusedError, match=r"evaluate: the dataset never ends .* take\(n\)"):
        check_all([], None, endless)
    check_all([], Validation(lambda: endless().take(2)), lambda: endless().take(2))
    with pytest.raises(CallbackRefusedError, match=r"evaluate: the PyDataset never ends"):
        check_all([], None, never_ends)


def test_an_unknown_monitor_is_rejected(client: Any) -> None:
    import keras

    from pstraining.runtime.chief.refusals import CallbackRefusedError, LogNames, check_all, check_monitors

    stop, plateau = keras.callbacks.EarlyStopping(), keras.callbacks.ReduceLROnPlateau(monitor="val_accuracy")
    best = keras.callbacks.ModelCheckpoint("best.keras", monitor="acc", save_best_only=True)
    each = keras.callbacks.ModelCheckpoint("best.keras", monitor="nothing")
    check_all([best, each], None, None)  # the metrics of training are not known yet
    with pytest.raises(CallbackRefusedError, match=r"EarlyStopping has monitor='val_loss'.*give the Trainer a valid"):
        check_all([stop], None, None)
    known = LogNames({"loss", "accuracy"}, {"val_loss", "val_accuracy"})
    check_monitors([stop, plateau, each], known)
    check_monitors([stop, plateau, best], LogNames(None, None))
    with pytest.raises(CallbackRefusedError, match=r"monitor='acc'.*they have accuracy, loss, val_accuracy, val_loss"):
        check_monitors([best], known)
