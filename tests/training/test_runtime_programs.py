"""Custom methods, schedules and layers that a Keras program may contain, as `fit` takes them."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.support.moved_programs import PROGRAMS, STEPS
from tests.support.servers import Rig, small
from tests.support.soak_marks import ALL

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]


def sgd() -> Any:
    import keras

    return keras.optimizers.SGD(0.05)


def line(kind: Any) -> Any:
    """A straight line, as a functional model of a subclass."""
    import keras

    x = keras.Input((2,))
    return kind(x, keras.layers.Dense(1, kernel_initializer="ones")(x))


def batches(number: int) -> Any:
    import tensorflow as tf

    random = np.random.default_rng(0)
    made = [random.normal(size=(16, 2)).astype("float32") for _ in range(number)]
    return [(tf.constant(x), tf.constant(x.sum(1, keepdims=True) * 2)) for x in made]


def with_method(name: str, method: Any) -> Any:
    import keras

    return lambda: line(type("Own", (keras.Model,), {name: method}))


@pytest.mark.parametrize("method", ["train_step", "make_train_function", "train_on_batch", "fit"])
def test_a_custom_training_method_is_rejected_unless_a_step_replaces_it(method: str) -> None:
    from pstraining.runtime.model.errors import ModelError
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    build = with_method(method, lambda self, *_, **__: None)
    with pytest.raises(ModelError, match=rf"Own\.{method} .* Trainer\(train_step=\.\.\.\)"):
        Model(build, sgd, Objective("mse"))
    Model(build, sgd, Objective("mse", train_step=lambda model, batch: 0.0))

    def on_the_object() -> Any:
        import keras

        model = line(keras.Model)
        setattr(model, method, lambda *_: None)
        return model

    with pytest.raises(ModelError, match=method):
        Model(on_the_object, sgd, Objective("mse"))


def test_a_custom_training_method_can_be_moved_into_a_function(client: Any) -> None:
    """A custom training method can be moved into a function. `fit` calls the method, whose loss is 0 at 3 although
    labels are 0, and the function has the same effect here.
    """
    program = PROGRAMS["own train_step"]
    step = {"train_step": program.train_step}
    rig = Rig(client, program.optimizer, ps=1, build=program.model, loss="mse", compiled=step, mode="Sync")
    rig.start()
    rig.train([program.batch(0)] * STEPS)
    (found,) = rig.snapshot().variables.values()
    (wanted,) = program.fitted().get_weights()
    assert wanted.item() == pytest.approx(3.0, abs=1e-3)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("limit", "argument"), [("max_epochs", "epochs"), ("max_steps_per_epoch", "steps")])
def test_a_limit_of_keras_for_debugging_is_refused(client: Any, limit: str, argument: str) -> None:
    """`fit` ends after that number of epochs or steps. The job trained all of them."""
    import keras

    from pstraining.runtime.model.errors import ModelError
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    set_limit = getattr(keras.config, f"set_{limit}")
    set_limit(2)
    try:
        with pytest.raises(ModelError, match=rf"KERAS_{limit.upper()}, is 2, .*give the Trainer {argument}$"):
            Model(small, lambda: keras.optimizers.SGD(0.1), Objective("mse"))
    finally:
        set_limit(None)


def test_a_custom_compile_is_called_or_rejected() -> None:
    import keras

    from pstraining.runtime.model.errors import ModelError
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    def two_optimizers(self: Any, generator: Any, critic: Any) -> None:
        del self, generator, critic

    with pytest.raises(ModelError, match=r"Own\.compile .* must accept optimizer=, loss="):
        Model(with_method("compile", two_optimizers), sgd, Objective("mse", train_step=lambda model, batch: 0.0))

    def counted(self: Any, **options: Any) -> None:
        self.compiled_with = sorted(options)
        keras.Model.compile(self, **options)

    model: Any = Model(with_method("compile", counted), sgd, Objective("mse"))
    assert model.keras.compiled_with[:1] == ["jit_compile"]
    assert model.keras.compiled


def test_what_only_the_programs_own_compile_has_is_refused() -> None:
    """The `Trainer` compiles the model again. Weights of losses that it was not given had no effect."""
    import keras

    from pstraining.runtime.model.errors import ModelError
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    def compiled(**options: Any) -> Any:
        model = line(keras.Model)
        model.compile(sgd(), "mse", **options)
        return model

    for name, given in (("loss_weights", [5.0]), ("metrics", ["mae"]), ("weighted_metrics", ["mae"])):
        with pytest.raises(ModelError, match=rf"compiles the model with {name}, .*give it to the Trainer, as {name}="):
            Model(partial(compiled, **{name: given}), sgd, Objective("mse"))
        options: dict[str, Any] = {name: given}
        Model(partial(compiled, **options), sgd, Objective("mse", **options))
    with pytest.raises(ModelError, match=r"compiles the model with loss, "):
        Model(compiled, sgd, Objective(None))
    Model(compiled, sgd, Objective("mae"))


def test_an_evaluation_without_a_loss_is_refused_before_training() -> None:
    """Keras cannot evaluate without a loss, which the program learnt after all training."""
    import keras

    from pstraining.runtime.chief.refusals import CallbackRefusedError, check_loss
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    def made(build: Any, loss: Any = None) -> Any:
        return Model(build, sgd, Objective(loss, train_step=lambda model, batch: 0.0)).keras

    class Penalty(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            self.add_loss(keras.ops.mean(x))
            return x

    plain, x = made(lambda: line(keras.Model)), keras.Input((2,))
    check_loss(plain, [])
    for argument in ("validation", "evaluate"):
        with pytest.raises(CallbackRefusedError, match=rf"{argument}: Keras evaluates a model only with a loss: give "):
            check_loss(plain, [argument])
    dense = partial(keras.layers.Dense, 1)
    check_loss(made(lambda: line(keras.Model), "mse"), ["evaluate"])
    check_loss(made(with_method("compute_loss", lambda self, **_: 0.0)), ["evaluate"])
    for penalty in (Penalty(), dense(kernel_regularizer="l2"), dense(activity_regularizer="l2")):
        check_loss(made(partial(keras.Model, x, dense()(penalty(x)))), ["evaluate"])


@pytest.mark.parametrize("with_argument", [True, False])
def test_custom_compute_loss_and_add_loss_count_as_in_fit(client: Any, with_argument: bool) -> None:
    """A custom `compute_loss` and `add_loss` count as in `fit`, with and without the argument `training` that Keras has
    since 3.3.
    """
    import keras

    class Penalty(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            self.add_loss(0.1 * keras.ops.mean(x**2))
            return x

    def loss(self: Any, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
        del x, sample_weight
        return keras.ops.mean(keras.ops.abs(y - y_pred)) + sum(self.losses)

    def with_training(self: Any, *values: Any, training: bool = True, **named: Any) -> Any:
        assert training
        return loss(self, *values, **named)

    method = with_training if with_argument else loss

    def build() -> Any:
        x = keras.Input((2,))
        own = type("Own", (keras.Model,), {"compute_loss": method})
        return own(x, Penalty()(keras.layers.Dense(1, kernel_initializer="ones")(x)))

    rig = Rig(client, sgd, ps=1, build=build, loss="mse")
    rig.start()
    rig.train(batches(10))
    alone = build()
    alone.compile(optimizer=sgd(), loss="mse", jit_compile=False)
    for batch in batches(10):
        alone.train_on_batch(*batch)
    found = rig.control.snapshot(fence=1).variables
    for variable, tensor in zip(alone.trainable_variables, rig.model.tensors, strict=True):
        np.testing.assert_allclose(found[tensor.path], variable.numpy(), rtol=0, atol=1e-6)


class Warmup:
    """The schedule of the Transformer tutorial: no `get_config`, and a tensor among its attributes."""

    @staticmethod
    def make() -> Any:
        import keras

        class Schedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.scale = keras.ops.cast(64, "float32") ** -0.5
                self.steps = 5

            def __call__(self, step: Any) -> Any:
                step = keras.ops.cast(step, "float32") + 1.0
                return self.scale * keras.ops.minimum(step**-0.5, step * self.steps**-1.5)

        return keras.optimizers.Adam(Schedule(), beta_2=0.98, epsilon=1e-9)


def without_config() -> tuple[Any, Any]:
    """Return a model and a loss that have no `get_config`."""
    import keras

    class Scaled(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, factor: Any) -> None:
            super().__init__()
            self.factor = factor

        def call(self, x: Any) -> Any:
            return x * self.factor

    class Loss(keras.losses.Loss):  # type: ignore[misc]
        def __init__(self, power: Any) -> None:
            super().__init__()
            self.power = power

        def call(self, y_true: Any, y_pred: Any) -> Any:
            return keras.ops.mean(keras.ops.abs(y_true - y_pred) ** self.power)

    def build() -> Any:
        x = keras.Input((2,))
        return keras.Model(x, Scaled(keras.ops.ones((1,)))(keras.layers.Dense(1, kernel_initializer="ones")(x)))

    return build, Loss(2.0)


def test_schedules_losses_and_layers_need_no_config(client: Any, tmp_path: Any) -> None:
    import keras

    from pstraining.runtime.model import export

    build, loss = without_config()
    rig = Rig(client, Warmup.make, ps=2 if ALL else 1, build=build, loss=loss)
    assert rig.new_store().fingerprint == rig.store.fingerprint, "no address of an object is part of it"
    rig.start()
    rig.train(batches(20))
    alone = build()
    alone.compile(optimizer=Warmup.make(), loss=loss, jit_compile=False)
    for batch in batches(20):
        alone.train_on_batch(*batch)
    found = rig.control.snapshot(fence=1).variables
    for variable, tensor in zip(alone.trainable_variables, rig.model.tensors, strict=True):
        np.testing.assert_allclose(found[tensor.path], variable.numpy(), rtol=0, atol=1e-6)

    plain = Rig(client, Warmup.make, ps=1, build=lambda: line(keras.Model), loss=loss)
    export.save_model(plain.model.keras, tmp_path / "final.keras")
    assert keras.models.load_model(tmp_path / "final.keras").count_params() == 3


def test_a_schedule_may_read_the_type_of_the_step(client: Any) -> None:
    """As in `fit`, the step is a number of TensorFlow, not of Python, also where the logs get the rate."""
    import keras
    import tensorflow as tf

    from pstraining.runtime.chief.reports.rates import learning_rates

    class Rises(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
        def __call__(self, step: Any) -> Any:
            return tf.cast(tf.minimum(step, tf.cast(100, step.dtype)), "float32") / 100

    assert learning_rates([keras.optimizers.SGD(Rises())], 50) == {"learning_rate": 0.5}


def test_a_schedule_with_a_variable_is_rejected() -> None:
    import keras

    from pstraining.runtime.model.optimizers.optimizer import OptimizerError, check

    class Steered(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rate = keras.Variable(0.1)

        def __call__(self, step: Any) -> Any:
            del step
            return self.rate

    with pytest.raises(OptimizerError, match=r"Steered\.rate is a variable"):
        check(keras.optimizers.SGD(Steered()))


def test_a_jobs_identity_has_names_and_numbers_but_no_addresses() -> None:
    import keras

    from pstraining.runtime.model.identity import described

    class Own(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
        def __init__(self, steps: int, function: Any = abs) -> None:
            self.steps, self.function, self.table = steps, function, keras.ops.ones((2,))
            self.after, self.other = keras.optimizers.schedules.CosineDecay(0.1, steps), object()

        def __call__(self, step: Any) -> Any:
            return step

    assert repr(described({"rate": Own(3)})) == repr(described({"rate": Own(3)}))
    assert "0x" not in repr(described(Own(3)))
    assert described(Own(3)) != described(Own(4))
    assert described(Own(3)) != described(Own(3, function=max))


def test_a_tensor_created_before_the_connection_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    import tensorflow as tf

    from pstraining.runtime import Trainer
    from pstraining.runtime.config.settings import SettingsError
    from pstraining.runtime.transport.before_connecting import has_tensors

    made = tf.data.Dataset.from_tensors((tf.ones([8, 2]), tf.ones([8, 1]))).repeat()
    assert has_tensors()
    cluster = {"cluster": {"worker": ["127.0.0.1:9"], "ps": ["127.0.0.1:9"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(SettingsError, match=r"before Trainer\.run, .* inside the functions"):
        Trainer(lambda: None, sgd, "mse", lambda worker, workers: made, steps=1).run()


def test_what_keras_refuses_in_a_program_is_refused_before_training(client: Any) -> None:
    """A restart would meet the same error, until the job's budget is spent."""
    import keras

    from pstraining.runtime.errors import FinalError
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    def build() -> Any:
        return line(keras.Model)

    with pytest.raises(FinalError, match=r"the optimizer cannot be created: ValueError: .*not recognized"):
        Model(build, lambda: keras.optimizers.Adam(lr=0.1), Objective("mse"))
    for metrics in ("accuracy", keras.metrics.MeanSquaredError()):
        with pytest.raises(FinalError, match="the model cannot be compiled: "):
            Model(build, sgd, Objective("mse", metrics=metrics))


def test_what_another_run_would_meet_in_the_model_function_is_refused(client: Any) -> None:
    """A file that the function reads may be there in another run; a misspelt name or a wrong shape stays."""
    import keras

    from pstraining.runtime.errors import FinalError
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    def flat() -> Any:
        return keras.Sequential([keras.Input((4,)), keras.layers.Conv2D(3, 3)])

    def absent() -> Any:
        return keras.models.load_model("absent.keras")

    for build, message in (
        (lambda: keras.layers.Dense(1, activatoin="relu"), "Unrecognized keyword arguments"),
        (lambda: keras.layers.Dense(1, activation="rellu"), "Could not interpret activation"),
        (keras.layers.Dense, "missing 1 required positional argument: 'units'"),
        (lambda: keras.layers.Dens(1), "has no attribute 'Dens'"),
        (lambda: keras.layers.Reshape((3,))(keras.Input((4,))), "total size of the tensor"),
        (flat, "is incompatible with the layer"),
    ):
        with pytest.raises(FinalError, match=r"(?s)the model cannot be built: .*" + message):
            Model(build, sgd, Objective("mse"))
    with pytest.raises(ValueError, match="File not found") as raised:
        Model(absent, sgd, Objective("mse"))
    assert not isinstance(raised.value, FinalError)
