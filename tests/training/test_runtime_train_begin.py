"""What callbacks do before the first batch, and what is evaluated later: as in `fit`, or refused with the way out."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pstraining.runtime.checkpoint.state import State
from pstraining.runtime.data.validation import Validation
from pstraining.runtime.errors import final_error
from tests.support.servers import batches, small
from tests.training.test_runtime_fit import Drained
from tests.training.test_runtime_logs import leading, still

# A process connects before it creates its first tensor, so every test here uses the client.
pytestmark = [pytest.mark.training, pytest.mark.timeout(240)]


def at(hook: str, change: Any) -> Any:
    """Return a callback that changes its model in a hook."""
    import keras

    made: Any = keras.callbacks.LambdaCallback(**{hook: lambda *_: change(made.model)})
    return made


def put(path: str, value: Any) -> Any:
    """Return a function that sets an attribute of a model by its path."""
    *names, last = path.split(".")

    def change(model: Any) -> None:
        owner = model
        for name in names:
            owner = owner[int(name)] if name.isdecimal() else getattr(owner, name)
        setattr(owner, last, value)

    return change


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_begin", "on_epoch_end"])
@pytest.mark.parametrize("scheduled", [False, True])
def test_a_callback_that_sets_a_schedule_is_refused(client: Any, hook: str, scheduled: bool) -> None:
    """With `fit`, the schedule would train. Here the servers kept the program's rate, without a word."""
    import keras

    from pstraining.runtime.chief.reports.callbacks import CallbackError

    falling = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.9)
    given = put("optimizer.learning_rate", keras.optimizers.schedules.CosineDecay(0.1, 100))

    def run() -> None:
        made = Drained([at(hook, given)], optimizer=lambda: keras.optimizers.SGD(falling if scheduled else 0.5))
        made.end(1, loss=1.0)

    with pytest.raises(CallbackError, match=r"rate to CosineDecay, which .* follow: give a schedule to") as raised:
        run()
    assert final_error(raised.value) is not None


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("optimizer.weight_decay", 0.5, "the optimizer's weight_decay"),
        ("optimizer.momentum", 0.5, "the optimizer's momentum"),
        ("optimizer.clipnorm", 1.0, "the optimizer's clipnorm"),
        ("layers.0.trainable", False, "which variables are trained"),
    ],
)
def test_a_callback_that_changes_what_only_its_process_has_is_refused(
    client: Any, path: str, value: Any, words: str
) -> None:
    """With `fit`, what it sets before the first batch would train."""
    from pstraining.runtime.chief.reports.callbacks import CallbackError

    for hook in ("on_train_begin", "on_epoch_begin"):
        with pytest.raises(CallbackError, match=f"a callback has changed {words}.* not follow: set it in") as raised:
            Drained([at(hook, put(path, value))])
        assert final_error(raised.value) is not None
    Drained([at("on_epoch_end", put(path, value))]).end(1, loss=1.0)  # `fit` has traced its step, which stays


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_begin"])
def test_an_epoch_that_a_callback_stops_at_its_beginning_has_an_update_and_an_end(client: Any, hook: str) -> None:
    """`fit` trains one batch of it, and calls `on_epoch_end`."""
    import keras

    from pstraining.runtime.chief.reports.reporting import FitOptions, TrainingReporter
    from pstraining.runtime.data.epochs import Epochs
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective
    from pstraining.runtime.telemetry.counters import ChiefCounters

    ended: list[Any] = []
    model = Model(small, still, Objective("sparse_categorical_crossentropy"))
    admin = leading(model)
    admin.learning_rates = lambda: [0.0]
    callbacks = [
        at(hook, put("stop_training", True)),
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: ended.append((epoch, sorted(logs))),
            on_train_end=lambda logs: ended.append(sorted(logs)),
        ),
    ]
    reporter = TrainingReporter(
        lambda: admin, FitOptions(Epochs(10, 4), callbacks=callbacks), ChiefCounters(), steps=40, total=40
    )
    state = State(1, model.values(), {}, {})
    reporter.begin(0)
    reporter._drain(lambda: time.sleep(0.01))
    assert [reporter.stops(step) for step in (0, 1)] == [False, True]
    for _ in range(2):  # the chief repeats it after a loss
        reporter.finish(state, 1, early=True, wait=lambda: time.sleep(0.01))
    assert ended == [(0, ["learning_rate", "loss"]), ["learning_rate", "loss"]]


def test_an_epoch_that_has_ended_is_the_last_one_if_a_callback_stops_there(client: Any) -> None:
    """EarlyStopping sets `stop_training` in `on_epoch_end`: no further batch, and no further epoch."""
    run = Drained([at("on_epoch_end", put("stop_training", True))])
    assert not run.ends.stops(1)
    run.end(10, loss=1.0)
    assert run.ends.stops(10)
    assert run.ends.open_epoch is None


def test_a_restarted_chief_writes_into_the_columns_of_its_log(client: Any, tmp_path: Path) -> None:
    """Its first epoch may lack the metrics of late workers, or have no validation. Values stood in other columns."""
    import keras

    header = "epoch;accuracy;learning_rate;loss;val_accuracy;val_loss"
    logs: dict[str, Any] = {"accuracy": 0.9, "learning_rate": 0.1, "loss": 1.0, "val_accuracy": 0.8, "val_loss": 2.0}
    file = tmp_path / "log.csv"
    Drained([keras.callbacks.CSVLogger(file, separator=";", append=True)]).end(10, **logs)
    run = Drained([keras.callbacks.CSVLogger(file, separator=";", append=True)])
    run.end(20, learning_rate=0.1, loss=0.5)
    run.end(30, **logs)
    first, second = "0;0.9;0.1;1.0;0.8;2.0", "1;0.9;0.1;1.0;0.8;2.0"
    assert file.read_text().splitlines() == [header, first, "0;NA;0.1;0.5;NA;NA", second]
    file.write_text("another,header\n")
    Drained([keras.callbacks.CSVLogger(file, append=True)]).end(10, loss=0.5)
    assert file.read_text().splitlines() == ["another,header", "0,0.5,NA"]


def test_batches_that_the_model_cannot_evaluate_are_refused_before_training(client: Any) -> None:
    """Keras refuses them at the first evaluation, which may be after days of training. No batch is read for that."""
    import keras
    import tensorflow as tf

    from pstraining.runtime.chief.refusals import check_all
    from pstraining.runtime.chief.reports.evaluable import check_evaluable
    from pstraining.runtime.errors import FinalError
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    device, read = "/device:CPU:0", list[int]()
    objective = Objective("sparse_categorical_crossentropy", metrics=["accuracy", keras.metrics.F1Score()])
    model: Any = Model(small, still, objective).keras
    ((x, y),) = batches(1)

    def refused(data: Any) -> str:
        with pytest.raises(FinalError, match=r"^evaluate: the model cannot be evaluated: ") as raised:
            check_evaluable(model, check_all([], None, lambda: data), device)
        return str(raised.value)

    def generated() -> Any:
        for _ in range(2):
            read.append(1)
            yield x, tf.one_hot(y, 3)

    assert "expected axis -1 of input shape" in refused(tf.data.Dataset.from_tensors((tf.concat([x, x], -1), y)))
    assert refused(tf.data.Dataset.from_tensor_slices((x, y)))  # not in batches
    assert refused(tf.data.Dataset.from_tensors(x))  # without labels
    assert refused(tf.data.Dataset.from_tensors({"image": x, "label": y}))
    types = (tf.TensorSpec((None, 8)), tf.TensorSpec((None, 3)))
    objective = Objective("categorical_crossentropy", metrics=["accuracy", keras.metrics.F1Score()])
    models: Any = [Model(small, still, objective).keras for _ in range(2)]
    checked, other = models
    other.set_weights(checked.get_weights())
    check_evaluable(
        checked,
        check_all([], Validation(partial(tf.data.Dataset.from_generator, generated, output_signature=types)), None),
        device,
    )
    assert not read
    found, expected = (own.evaluate(generated(), return_dict=True, verbose=0) for own in (checked, other))
    assert found["loss"] == expected["loss"]
    assert found["accuracy"] == expected["accuracy"]
    assert checked.test_function is not None


def annealed() -> Any:
    """Return a model with a weight that no gradient changes, as that of a loss, and with statistics of batches."""
    import keras

    class Annealed(keras.layers.Layer):  # type: ignore[misc]
        def build(self, _: Any) -> None:
            self.factor = self.add_weight(name="factor", shape=(), trainable=False)

        def call(self, x: Any) -> Any:
            return x * self.factor

    layers = keras.layers.Dense(3), keras.layers.BatchNormalization(), Annealed(name="annealed")
    return keras.Sequential([keras.Input((8,)), *layers])


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_begin", "on_epoch_end"])
@pytest.mark.parametrize(("layer", "name"), [(2, "factor"), (0, "bias")])
def test_a_callback_that_assigns_weights_of_its_copy_is_refused(client: Any, hook: str, layer: int, name: str) -> None:
    """Such a callback raises the weight of a loss with the epochs, or clips weights. Training had other values."""
    from pstraining.runtime.chief.reports.callbacks import CallbackError

    def run(change: Any) -> None:
        made = Drained([at(hook, change)], build=annealed)
        made.end(1, State(1, made.model.values(), {}, {}), loss=1.0)

    def assign(model: Any) -> None:
        getattr(model.layers[layer], name).assign_add(model.layers[layer].weights[-1] * 0 + 1)

    def assign_for_a_while(model: Any) -> None:
        before = model.get_weights()
        assign(model)
        model(model.layers[0].kernel.numpy().T, training=True)
        model.set_weights([*before[:4], *(own.numpy() for own in model.weights[4:6]), *before[6:]])

    path = "annealed/factor" if name == "factor" else "sequential/dense/bias"
    with pytest.raises(CallbackError, match=f"a callback has assigned .*{path}, which training would not") as raised:
        run(assign)
    assert final_error(raised.value) is not None
    run(assign_for_a_while)


def test_weights_that_a_callback_sets_at_the_end_of_training_are_the_result(client: Any) -> None:
    """As with `fit`: averages of the program's own, for example. They were lost without a word."""

    def average(model: Any) -> None:
        model.set_weights([weight * 0 + 0.5 for weight in model.get_weights()])

    for change, is_result in ((average, True), (lambda model: model.get_weights(), False)):
        run = Drained([at("on_train_end", change)])
        state = State(3, run.model.values(), {}, {})
        run.end(3, state, loss=0.5)
        run.ends.close(state)
        run.wait()
        best = run.ends.best()
        assert (best is not None) == is_result
        for value in (best or {}).values():
            assert (value == 0.5).all()


@pytest.mark.parametrize("stops", [False, True])
def test_weights_that_a_callback_sets_in_the_last_epoch_are_the_result(client: Any, stops: bool) -> None:
    """`fit` trains nothing after them. The last state replaced them without a word."""
    import keras

    from pstraining.runtime.chief.reports.callbacks import EpochEnd

    def average(model: Any) -> None:
        model.set_weights([weight * 0 + 0.5 for weight in model.get_weights()])
        model.stop_training = stops

    for use_ema in (False, True):
        run = Drained([at("on_epoch_end", average)], optimizer=lambda ema=use_ema: keras.optimizers.SGD(use_ema=ema))
        values = run.model.values()
        state = State(3, values, {"average": values} if use_ema else {}, {})
        run.ends.end(EpochEnd(0, 3, {"loss": 0.5}, state, validate=False, following=1 if stops else None))
        run.wait()
        run.ends.close(state)
        run.wait()
        best = run.ends.best()
        assert (best is None) == use_ema, "with use_ema, `fit` ends with the averages"
        for value in (best or {}).values():
            assert (value == 0.5).all()


@pytest.mark.parametrize("layer", [0, 1])
def test_a_callback_that_assigns_a_large_weight_or_a_table_is_refused(client: Any, layer: int) -> None:
    """Also if it changes a few of many numbers, as clipping does."""
    import keras

    from pstraining.runtime import Embedding
    from pstraining.runtime.chief.reports.callbacks import CallbackError

    def build() -> Any:
        layers = Embedding(30_000, 4), keras.layers.Dense(20_000), keras.layers.Dense(3, activation="softmax")
        return keras.Sequential([keras.Input((), dtype="int32"), *layers])

    def clip(model: Any) -> None:
        own = model.layers[layer].weights[0]
        values = own.numpy()
        values[-1, -1] = 0.25
        own.assign(values)

    run = Drained([at("on_epoch_end", clip)], build=build)
    with pytest.raises(CallbackError, match=r"a callback has assigned .*(embeddings?|dense\S*/kernel), which training"):
        run.end(1, State(1, run.model.values(), {}, {}), loss=1.0)


@pytest.mark.parametrize("kind", ["list", "PyDataset"])
def test_batches_in_memory_that_the_model_cannot_evaluate_are_refused_before_training(client: Any, kind: str) -> None:
    """Keras reads their first two batches, too."""
    import keras

    from pstraining.runtime.chief.refusals import check_all
    from pstraining.runtime.chief.reports.evaluable import check_evaluable
    from pstraining.runtime.errors import FinalError
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    class Read(keras.utils.PyDataset):  # type: ignore[misc]
        def __init__(self, found: Any) -> None:
            super().__init__()
            self.found = found

        def __len__(self) -> int:
            return len(self.found)

        def __getitem__(self, index: int) -> Any:
            if self.found[index] is None:
                raise ValueError("a file is not there yet")
            return self.found[index]

    model: Any = Model(small, still, Objective("sparse_categorical_crossentropy")).keras
    made = [(x.numpy(), y.numpy()) for x, y in batches(2)]

    def check(found: Any) -> None:
        data = Read(found) if kind == "PyDataset" else found
        check_evaluable(model, check_all([], Validation(lambda: data), lambda: data), "/device:CPU:0")

    for accepted in (made, [(x, y, None) for x, y in made], [made[0], tuple(part[:3] for part in made[1])]):
        check(accepted)
    for refused in ([(x[:, :4], y) for x, y in made], [x for x, _ in made], [(x[0], y[0]) for x, y in made], []):
        with pytest.raises(FinalError, match=r"^validation: the (model cannot be evaluated: |dataset is empty)"):
            check(refused)
    assert check_all([], None, lambda: Read([None])) == {"evaluate": None}, "it may be there after training"
    endless = iter(made)
    assert check_all([], None, lambda: endless) == {"evaluate": None}
    assert len(list(endless)) == len(made), "nothing was read"


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_begin"])
def test_callbacks_of_a_restarted_chief_begin_with_the_present_state(client: Any, hook: str) -> None:
    """They saw the program's first weights, from which averages or a limit of a callback's own would begin."""
    import keras

    from pstraining.runtime.chief.reports.callbacks import EpochEnds
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    seen: list[Any] = []
    falling = keras.optimizers.schedules.PolynomialDecay(1.0, 100, end_learning_rate=0.0)
    model = Model(small, lambda: keras.optimizers.SGD(falling), Objective("sparse_categorical_crossentropy"))
    look = at(hook, lambda own: seen.append((own.get_weights()[0].mean(), float(own.optimizer.learning_rate))))
    ends, first = EpochEnds(model, "/device:CPU:0", [look], None), next(iter(model.values().values())).mean()
    ends.begin(2, 25, State(25, {path: value + 1.0 for path, value in model.values().items()}, {}, {}))
    while ends.busy:
        ends._thread.join(0.01)
    assert seen == [(pytest.approx(first + 1.0), pytest.approx(0.75))]


def test_the_first_batches_of_a_generator_are_checked_and_evaluated(client: Any) -> None:
    """The job failed at the first validation, or for `evaluate` after all training, after hours."""
    from pstraining.runtime.chief.refusals import check_all
    from pstraining.runtime.chief.reports.evaluable import check_evaluable
    from pstraining.runtime.data.validation import KeptData
    from pstraining.runtime.errors import FinalError
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    model: Any = Model(small, still, Objective("sparse_categorical_crossentropy")).keras
    made = [(x.numpy(), y.numpy()) for x, y in batches(5)]

    class Other:
        """An iterable that is no iterator."""

        def __init__(self, found: Any) -> None:
            self.found = found

        def __iter__(self) -> Any:
            return iter(self.found)

    def check(make: Any) -> Any:
        kept = KeptData(make)
        check_evaluable(model, check_all([], Validation(kept), None), "/device:CPU:0")
        return kept

    once = iter(made)
    for make, numbers in ((lambda: iter(made), [5, 5]), (lambda: once, [5, 0]), (lambda: Other(made), [5, 5])):
        kept = check(make)
        assert [len(list(kept())) for _ in numbers] == numbers, "no evaluation lacks what was read"
    for kind in (iter, Other):
        for refused in ([(x[:, :4], y) for x, y in made], [x for x, _ in made], [(x[0], y[0]) for x, y in made], []):
            with pytest.raises(FinalError, match=r"^validation: the (model cannot be evaluated: |dataset is empty)"):
                check(lambda refused=refused, kind=kind: kind(refused))

    def fails() -> Any:
        yield made[0]
        raise OSError("a file is not there yet")

    assert next(iter(check(fails)())) is made[0], "another generator is created after an error"
