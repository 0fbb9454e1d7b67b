"""Programs that `fit` accepts and that this library could train differently: they equal `fit`, or are rejected."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.errors import FinalError, final_error
from tests.support.servers import Rig, small
from tests.support.servers import batches as classified
from tests.support.soak_marks import in_all, some
from tests.training.test_runtime_programs import batches, line, sgd

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]


def subclassed(build: Any, call: Any) -> Any:
    """Return a function that creates a model of a subclass and calls it once."""
    import keras

    def init(self: Any) -> None:
        keras.Model.__init__(self)
        build(self)

    def made() -> Any:
        model = type("Own", (keras.Model,), {"__init__": init, "call": call})()
        model(np.zeros((1, 2), "float32"))
        return model

    return made


def two_layers(self: Any) -> None:
    import keras

    self.first = keras.layers.Dense(1, kernel_initializer="ones")
    self.second = keras.layers.Dense(1, kernel_initializer="ones")
    self.dropout = keras.layers.Dropout(0.9, seed=1)


def refusal(build: Any, optimizer: Any = sgd) -> str:
    """Return the error message of the first step, which is rejected while it is traced."""
    import tensorflow as tf

    from pstraining.runtime.model.errors import ModelError
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    model = Model(build, optimizer, Objective("mse"))
    step = tf.function(lambda batch: model.loss_and_gradients(batch, lambda *_: None)[0], autograph=False)
    with pytest.raises(ModelError) as found:
        step.get_concrete_function(batches(1)[0])
    return str(found.value)


def as_fit(client: Any, build: Any, optimizer: Any, made: Any) -> tuple[Any, Any]:
    """Return the parameters after training, by path, and those of `fit` in the same order."""
    rig = Rig(client, optimizer, ps=1, build=build, loss="mse")
    rig.start()
    rig.train(made)
    alone = build()
    alone.compile(optimizer=optimizer(), loss="mse", jit_compile=False)
    for variable, tensor in zip(alone.trainable_variables, rig.model.tensors, strict=True):
        variable.assign(rig.initial[tensor.path])
    for batch in made:
        alone.train_on_batch(*batch)
    return rig, [variable.numpy() for variable in alone.trainable_variables]


def test_a_model_whose_call_has_no_training_argument_computes_as_in_fit(client: Any) -> None:
    """A model whose `call` has no argument `training` trains as in `fit`: Keras calls it without the argument, so its
    dropout is inactive.
    """
    build = subclassed(two_layers, lambda self, x: self.second(self.dropout(self.first(x))))
    rig, expected = as_fit(client, build, sgd, batches(3))
    found = rig.control.snapshot(fence=1).variables
    for value, tensor in zip(expected, rig.model.tensors, strict=True):
        np.testing.assert_allclose(found[tensor.path], value, rtol=0, atol=1e-6)


def unused(self: Any, x: Any) -> Any:
    self.first(x)
    return self.second(x)


def test_a_variable_without_a_gradient_stays_or_is_rejected(client: Any) -> None:
    """A variable without a gradient does not change, as in `fit`, or is rejected if decay, Ftrl or a constraint would
    change it.
    """
    import keras

    build = subclassed(two_layers, unused)
    rig, expected = as_fit(client, build, lambda: keras.optimizers.Adam(0.1), batches(3))
    found = rig.control.snapshot(fence=1).variables
    for value, tensor in zip(expected, rig.model.tensors, strict=True):
        np.testing.assert_allclose(found[tensor.path], value, rtol=0, atol=1e-6)
    assert rig.model.connections.missing == [tensor.path for tensor in rig.model.tensors[:2]]
    for make, words in {
        lambda: keras.optimizers.AdamW(0.1): "AdamW decays it here",
        lambda: keras.optimizers.Ftrl(0.1): "Ftrl computes it again",
    }.items():
        assert re.search(rf"kernel has no gradient: .*{words}.*trainable = False", refusal(build, make))
    nothing = subclassed(two_layers, lambda self, x: keras.ops.stop_gradient(self.second(x)))
    assert "no variable has a gradient" in refusal(nothing)


def test_a_layer_that_only_training_builds_is_rejected(client: Any) -> None:
    """A layer that only a training step builds is rejected, because the servers would not have its variables."""

    def call(self: Any, x: Any, training: bool = False) -> Any:
        return self.first(x) + self.second(x) if training else self.first(x)

    message = refusal(subclassed(two_layers, call))
    assert re.search(r"kernel was created by the first training step.*training=True", message)


def test_settings_without_effect_are_rejected() -> None:
    import keras

    from pstraining.runtime.model.errors import ModelError
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.optimizers.optimizer import OptimizerError
    from pstraining.runtime.model.training.objective import Objective

    def used() -> Any:
        optimizer = sgd()
        optimizer.iterations.assign(7)
        return optimizer

    with pytest.raises(OptimizerError, match=r"SGD has made 7 steps before.*return a new optimizer"):
        Model(lambda: line(keras.Model), used, Objective("mse"))

    def synchronized() -> Any:
        layers = [keras.layers.Dense(1), keras.layers.BatchNormalization(synchronized=True)]
        return keras.Sequential([keras.Input((2,)), *layers])

    with pytest.raises(ModelError, match=r"synchronized=True.*normalizes its own batch"):
        Model(synchronized, sgd, Objective("mse"))

    def overwritten() -> Any:
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16)])
        model.quantize("float8")
        return model

    with pytest.raises(ModelError, match="float8"):
        Model(overwritten, sgd, Objective("mse"))


def test_the_numbers_of_the_global_generator_are_each_workers_own() -> None:
    """Each worker draws its own numbers from the generator of `keras.random` without a seed; the trial of a step draws
    none.
    """
    import keras
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    from pstraining.runtime.model import own_state
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    drawn = []
    for worker in (0, 1):
        keras.utils.set_random_seed(5)
        global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)
        model = Model(lambda: line(keras.Model), sgd, Objective("mse"))
        model.reseed(worker=worker, step=0)
        with own_state.kept(model.restored_after_trials()):
            keras.random.normal((3,))
        drawn.append(keras.random.normal((3,)).numpy())
    keras.utils.set_random_seed(5)
    global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)
    line(keras.Model)
    np.testing.assert_array_equal(drawn[0], keras.random.normal((3,)).numpy())
    assert not np.allclose(*drawn)


def test_a_normalization_computes_with_the_values_of_all_tasks(tmp_path: Path) -> None:
    """Each task has adapted its layer to other samples, and then all have the chief's mean and variance."""
    import keras
    import numpy as np
    import tensorflow as tf

    from pstraining.runtime.model import export
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    def task(*samples: float) -> Any:
        def build() -> Any:
            layer = keras.layers.Normalization()
            layer.adapt(np.array(samples, np.float32)[:, np.newaxis])
            return keras.Sequential([keras.Input((1,)), layer, keras.layers.Dense(1, kernel_initializer="ones")])

        return Model(build, lambda: keras.optimizers.SGD(0.1), Objective("mse"))

    chief, worker, evaluator = task(0, 2), task(10, 12), task(100, 102)
    x, y = tf.constant([[1.0], [3.0]]), tf.constant([[0.0], [0.0]])
    step = tf.function(lambda: worker.loss_and_gradients((x, y), lambda number, rows: rows)[0], autograph=False)
    assert step().numpy() == 82, "with its own values"
    for variable, other in zip(worker.variables, chief.variables, strict=True):  # as a step fetches them
        variable.assign(other)
    expected = chief.keras.evaluate(x, y, verbose=0)
    assert step().numpy() == expected == 2
    evaluator.assign(chief.values().items())
    assert evaluator.keras.evaluate(x, y, verbose=0) == 2
    export.save_model(evaluator.keras, tmp_path / "final.keras")
    loaded = keras.models.load_model(tmp_path / "final.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), evaluator.keras.predict(x, verbose=0))


@pytest.mark.parametrize(
    "compiled",
    some(
        [False, True],
        lambda compiled: compiled,
        in_all("tests/training/test_runtime_as_fit.py::test_a_class_without_a_weight_has_one"),  # by XLA
    ),
)
def test_a_class_without_a_weight_has_one(client: Any, compiled: bool) -> None:
    """Classes without a weight have 1, as in `fit` with arrays; XLA reports no read beyond the weights."""
    import keras
    import tensorflow as tf

    from pstraining.runtime.model.training.training_step import TrainingStep

    model = small()
    model.compile(loss="categorical_crossentropy")
    x, y = np.ones((4, 8), np.float32), np.array([0, 1, 2, -1])
    one_hot = keras.utils.to_categorical([0, 1, 2, 1], 3).astype(np.float32)

    def loss(batch: Any, **options: Any) -> Any:
        step = TrainingStep(model, **options)
        return tf.function(step.loss, jit_compile=compiled, autograph=False)(batch).numpy()

    weights = np.array([3, 1, 1, 1], np.float32)
    expected = loss((x, one_hot, weights))
    for batch in ((x, one_hot), [x, one_hot]):
        np.testing.assert_allclose(loss(batch, class_weight={0: 3.0}), expected, rtol=1e-6)
    model.compile(loss=lambda wanted, predicted: keras.ops.mean(predicted, -1) * 3)
    for labels in (y, y[:, np.newaxis], y.astype(np.float32)):
        np.testing.assert_allclose(loss((x, labels), class_weight={0: 3.0}), weights.mean(), rtol=1e-6)
        found = loss((x, labels), class_weight={2: 1.0, -1: 5.0, 0: 3.0})
        np.testing.assert_allclose(found, 10 / 4, rtol=1e-6, err_msg="as labels of a hinge loss")


def test_a_model_of_losses_alone_needs_no_labels(client: Any) -> None:
    """A model that only has losses, as a variational autoencoder, needs no labels."""
    import keras

    class Penalty(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            self.add_loss(keras.ops.mean((x - 1) ** 2))
            return x

    def build() -> Any:
        x = keras.Input((2,))
        return keras.Model(x, Penalty()(keras.layers.Dense(1, kernel_initializer="ones")(x)))

    rig = Rig(client, sgd, ps=1, build=build, loss=None)
    rig.start()
    rig.train([x for x, _ in batches(3)])
    alone = build()
    alone.compile(optimizer=sgd(), jit_compile=False)
    for x, _ in batches(3):
        alone.train_on_batch(x)
    found = rig.control.snapshot(fence=1).variables
    for variable, tensor in zip(alone.trainable_variables, rig.model.tensors, strict=True):
        np.testing.assert_allclose(found[tensor.path], variable.numpy(), rtol=0, atol=1e-6)


def test_optional_inputs_may_be_absent(client: Any) -> None:
    """A batch may begin with None, as the absent input of `keras.Input(optional=True)`, or with a scalar."""
    import keras
    import tensorflow as tf

    from pstraining.runtime.model.training.training_step import number_of_samples, samples

    class Sum(keras.layers.Layer):  # type: ignore[misc]
        def call(self, first: Any, second: Any) -> Any:
            return second if first is None else first + second

    def build() -> Any:
        first, second = keras.Input((2,), optional=True), keras.Input((2,))
        return keras.Model([first, second], keras.layers.Dense(1)(Sum()(first, second)))

    made: Any = [([None, x], y) for x, y in batches(3)]
    rig, expected = as_fit(client, build, sgd, made)
    found = rig.control.snapshot(fence=1).variables
    for value, tensor in zip(expected, rig.model.tensors, strict=True):
        np.testing.assert_allclose(found[tensor.path], value, rtol=0, atol=1e-6)
    scaled = (np.float32(2.0), None, np.ones((4, 2)))
    assert (number_of_samples(scaled), int(tf.function(samples)(scaled))) == (4, 4)


def test_a_layer_that_assigns_a_trained_weight_is_rejected(client: Any) -> None:
    """A layer that assigns a trained weight is rejected, because the servers would ignore the assignment."""
    import keras

    def build() -> Any:
        layers = [keras.layers.SpectralNormalization(keras.layers.Dense(2)), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((2,)), *layers])

    assert re.search(r"kernel is trained, and a layer assigns it.*use a constraint", refusal(build))


def test_a_metric_whose_states_cannot_be_added_is_omitted_and_named(client: Any) -> None:
    import keras

    class Smallest(keras.metrics.Metric):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="smallest")
            self.least = self.add_variable((), "zeros", name="least")
            self.reset_state()

        def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
            self.least.assign(keras.ops.minimum(self.least, keras.ops.min(predicted)))

        def reset_state(self) -> None:
            self.least.assign(1.0)

        def result(self) -> Any:
            return self.least.value

    metrics = [Smallest()]
    rig = Rig(client, lambda: keras.optimizers.SGD(0.1), ps=1, build=small, compiled={"metrics": metrics})
    rig.start()
    rig.train(classified(1))
    compiled = rig.model.step.compiled
    assert (compiled.left_out, compiled.sums()) == (["smallest"], [])
    assert "least does not begin with zeros" in compiled.reason
    assert rig.new_store().model.step.compiled.names(compiled.outputs) == set(), "the chief leaves them out as well"


def test_a_loss_with_a_value_for_each_sample_is_refused(client: Any) -> None:
    """`fit` takes the gradient of their sum, whose size depends on the batch."""
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(reduction=None)
    rig = Rig(client, lambda: keras.optimizers.SGD(0.1), ps=1, build=small, loss=loss)
    rig.start()
    (batch,) = classified(1)
    with pytest.raises(Exception, match=r"loss: a batch's loss has the shape .* return one number") as raised:
        rig.step(batch)
    assert final_error(raised.value) is not None


def test_arrays_in_place_of_batches_are_refused_before_training() -> None:
    from pstraining.runtime.chief.refusals import check_all
    from pstraining.runtime.data.validation import Validation

    def arrays() -> Any:
        return np.zeros((4, 2)), np.zeros(4)

    with pytest.raises(FinalError, match=r"evaluate: the function returned tuple; return a tf\.data\.Dataset"):
        check_all([], None, arrays)
    for steps in (None, 3):
        with pytest.raises(FinalError, match="validation: the function returned tuple"):
            check_all([], Validation(arrays, steps=steps), None)


def test_a_step_that_cannot_be_traced_is_refused(client: Any) -> None:
    """Another run would trace the same step: the loss is unknown, or the model does not fit the batches."""
    import keras

    whole, narrow = classified(1)[0], (np.zeros((16, 5), "float32"), np.zeros(16, "int32"))
    for loss, batch, message in (
        ("msee", whole, "Could not interpret loss identifier: msee"),
        ("sparse_categorical_crossentropy", narrow, "axis -1 of input shape to have value 8"),
    ):
        rig = Rig(client, lambda: keras.optimizers.SGD(0.1), ps=1, build=small, loss=loss)
        rig.start()
        with pytest.raises(Exception, match=message) as raised:
            rig.step(batch)
        assert str(final_error(raised.value)).startswith("the training step cannot be traced: ValueError: ")


def test_a_later_batch_that_does_not_fit_the_step_does_not_fail_the_job_at_once(client: Any) -> None:
    """The program has trained, so the batch is wrong: after a restart, the data may have another order."""
    import tensorflow as tf

    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    whole, narrow = classified(1)[0], (tf.zeros((16, 5)), tf.zeros(16, tf.int64))
    model = Model(small, sgd, Objective("sparse_categorical_crossentropy"))
    step = tf.function(lambda batch: model.loss_and_gradients(batch, lambda *_: None)[0], autograph=False)
    step.get_concrete_function(whole)
    with pytest.raises(ValueError, match="axis -1 of input shape to have value 8") as raised:
        step.get_concrete_function(narrow)
    assert final_error(raised.value) is None
