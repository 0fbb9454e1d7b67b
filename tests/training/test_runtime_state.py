"""Variables that change without a gradient, with several asynchronous workers."""

from typing import Any

import numpy as np
import pytest

from pstraining.runtime.ps.record import Session
from tests.support.servers import GENERATION, Rig
from tests.support.soak_marks import in_all, some

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]
WORKERS = 4
MOMENTUM = 0.05
"""With four workers, 4 (1 - 0.05) is beyond 2, where the sum of whole changes oscillates; so is 20 (1 - 0.9)."""


def sgd() -> Any:
    import keras

    return keras.optimizers.SGD(1e-3)


def normalized(calls: int = 1) -> Any:
    """Return a model with statistics of its inputs, which no other variable changes; a step calls it `calls` times."""
    import keras

    x = keras.Input((4,))
    layer = keras.layers.BatchNormalization(momentum=MOMENTUM, name="bn")
    outputs = [layer(x * (number + 1.0)) for number in range(calls)]
    return keras.Model(x, keras.layers.Dense(1)(keras.layers.Average()(outputs) if calls > 1 else outputs[0]))


def batches(number: int) -> Any:
    import tensorflow as tf

    random = np.random.default_rng(1)
    made = [random.normal(5.0, 1.0, size=(64, 4)).astype("float32") for _ in range(number)]
    return [(tf.constant(x), tf.constant(x.sum(1, keepdims=True))) for x in made]


def stale(rig: Rig, shares: Any) -> None:
    """Apply one update of every worker, each computed on the state before the first update."""
    from pstraining.runtime.updates.asynchronous.progress import SentUpdate

    for updates, share in zip(rig.workers, shares, strict=True):
        version = int(updates._client.call(updates._pull[0]))
        gradient = updates._computer.compute(share)
        progress = updates._worker_progress
        progress.number, progress.sent = progress.number + 1, share
        parts, residual = updates._compressor.encode(gradient.vectors, 0)
        progress.encoded = SentUpdate(gradient, parts, residual, 0, version)
    for updates, share in zip(rig.workers, shares, strict=True):
        assert updates.step(share).applied


def of_one_process(shares: Any, calls: int = 1) -> tuple[Any, Any]:
    """Return mean and variance after the updates of these shares in sequence."""
    mean, variance = np.zeros(4), np.ones(4)
    for share in shares:
        kept = MOMENTUM ** (calls * len(share))
        seen = [np.zeros(4), np.zeros(4)]
        for x, _ in share:
            moments = (
                [(x.numpy() * (n + 1.0)).mean(0) for n in range(calls)],
                [(x.numpy() * (n + 1.0)).var(0) for n in range(calls)],
            )
            for number, found in enumerate(moments):
                value = np.zeros(4)
                for one in found:
                    value = value * MOMENTUM + one * (1 - MOMENTUM)
                seen[number] += value / (1 - MOMENTUM**calls) / len(share)
        mean, variance = (before * kept + now * (1 - kept) for before, now in zip((mean, variance), seen, strict=True))
    return mean, variance


def found(rig: Rig) -> tuple[Any, Any]:
    state = rig.control.snapshot(fence=1).variables
    return state["bn/moving_mean"], state["bn/moving_variance"]


@pytest.mark.parametrize(
    ("calls", "training"),
    some(
        [(1, {}), (2, {}), (1, {"accumulation_steps": 2}), (1, {"local_steps": 2})],
        lambda calls, training: calls == 1 and not training,
        in_all("tests/training/test_runtime_state.py::test_statistics_of_stale_workers_are_those_of_one_process"),
    ),
    ids=["plain", "twice", "accumulation", "local"],
)
def test_statistics_of_stale_workers_are_those_of_one_process(
    client: Any, calls: int, training: dict[str, Any]
) -> None:
    rig = Rig(
        client, sgd, ps=2, build=lambda: normalized(calls), workers=WORKERS, loss="mse", min_shard_bytes=0, **training
    )
    rig.start()
    count = max(training.values(), default=1)
    made = batches(6 * WORKERS * count)
    shares = [made[first : first + count] for first in range(0, len(made), count)]
    if "accumulation_steps" in training:  # at the end of a split, an update has fewer batches
        shares[-WORKERS:] = [share[:1] for share in shares[-WORKERS:]]
    for first in range(0, len(shares), WORKERS):
        stale(rig, shares[first : first + WORKERS])
        assert (found(rig)[1] >= 0).all()
    mean, variance = found(rig)
    expected = of_one_process(shares, calls)
    # With local steps, a target is a moving average over a worker's batches, and not their mean.
    tolerance = 0.05 if "local_steps" in training else 1e-4
    np.testing.assert_allclose(mean, expected[0], rtol=tolerance)
    np.testing.assert_allclose(variance, expected[1], rtol=6 * tolerance)
    assert np.isfinite(rig.model.keras.predict_on_batch(made[0][0])).all()


@pytest.mark.parametrize("left", [2, 1])
def test_state_of_another_kind_moves_towards_each_workers_own_value(
    client: Any, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State of another kind, here the largest input, moves towards each worker's value. The sum of all changes would be
    twice as large, and the newest value that of a single worker. When the job is scaled, the number of workers follows.
    """
    import keras

    monkeypatch.setattr("pstraining.runtime.updates.asynchronous.state.LOOK_SECONDS", 0.0)
    number = [2]

    class Peak(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.peak = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="peak")

        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                self.peak.assign(keras.ops.maximum(self.peak, keras.ops.max(x, axis=0)))
            return x

    rig = Rig(
        client,
        sgd,
        ps=1,
        build=lambda: keras.Sequential([keras.Input((4,)), Peak(name="peak"), keras.layers.Dense(1)]),
        workers=2,
        count=lambda: number[0],
        loss="mse",
    )
    rig.start()
    made, number[0] = batches(2), left
    expected = np.zeros(4)
    for x, _ in made:
        expected += (x.numpy().max(0) - expected) / left
    stale(rig, [[batch] for batch in made])
    (value,) = (v for path, v in rig.control.snapshot(fence=1).variables.items() if path.endswith("peak"))
    np.testing.assert_allclose(value, expected, rtol=1e-6)


def stateful() -> Any:
    """Return a model whose cell adds up its inputs, so that after n batches of k + 1 it outputs n (k + 1)."""
    import keras

    class Adds(keras.layers.Layer):  # type: ignore[misc]
        state_size = output_size = 1

        def call(self, x: Any, states: Any, training: bool = False) -> Any:
            del training
            total = states[0] + x
            return total, [total]

        def get_initial_state(self, batch_size: Any = None) -> Any:
            return [keras.ops.zeros((batch_size, 1))]

    x = keras.Input(batch_shape=(1, 1, 1))
    return keras.Model(x, keras.layers.Dense(1)(keras.layers.RNN(Adds(), stateful=True)(x)))


@pytest.mark.parametrize(
    "mode",
    some(
        ["Sync", "Async", "Hybrid"],
        lambda mode: mode == "Sync",
        in_all(
            "tests/training/test_runtime_state.py::test_the_state_of_a_stateful_rnn_belongs_to_its_worker"
        ),  # in Sync
    ),
)
def test_the_state_of_a_stateful_rnn_belongs_to_its_worker(client: Any, mode: str) -> None:
    import tensorflow as tf

    from pstraining.runtime.model.own_state import kept
    from tests.support.servers import SESSION
    from tests.support.worker_threads import Crew

    rig = Rig(client, sgd, ps=1, build=stateful, workers=2, loss="mse", mode=mode)
    rig.start()
    shares = [[(tf.fill([1, 1, 1], worker + 1.0), tf.zeros([1, 1]))] * 3 for worker in range(2)]
    models = [updates._store.model for updates in rig.workers]
    for updates, model, share in zip(rig.workers, models, shares, strict=True):
        with kept(model.local):
            updates.warm_up(share[:1])
        updates.start_session(SESSION)
    Crew(rig, shares).join()
    assert [float(model.carried[0].numpy()[0, 0]) for model in models] == [3.0, 6.0]
    assert not any("rnn_state" in path for path in rig.snapshot().variables)


def test_a_batch_computed_twice_advances_the_state_once() -> None:
    import keras

    from pstraining.runtime.model.own_state import CarriedStates

    state = keras.Variable([0.0])
    carried = CarriedStates([state])

    def compute() -> None:
        state.assign(state.numpy() * 2 + 1)

    carried.begin(again=False)
    compute()
    carried.begin(again=True)  # the servers rejected it
    compute()
    carried.applied()
    assert state.numpy().tolist() == [1.0]
    carried.begin(again=False)
    compute()
    carried.begin(again=True)  # only its reply was lost
    carried.applied()
    assert state.numpy().tolist() == [3.0]


def test_each_worker_draws_its_own_numbers_from_the_programs_seed() -> None:
    import keras

    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    def draws(*, worker: int, step: int, seed: int = 7) -> list[int]:
        def build() -> Any:
            keras.utils.set_random_seed(seed)
            layers = [keras.layers.Dropout(0.5), keras.layers.GaussianNoise(1.0), keras.layers.Dense(1)]
            return keras.Sequential([keras.Input((8,)), *layers])

        model = Model(build, sgd, Objective("mse"))
        model.reseed(worker=worker, step=step)
        value: list[int] = model.keras(np.ones([4, 8], "float32"), training=True).numpy().tolist()
        return value

    first = draws(worker=0, step=0)
    keras.utils.set_random_seed(7)
    layers = [keras.layers.Dropout(0.5), keras.layers.GaussianNoise(1.0), keras.layers.Dense(1)]
    plain = keras.Sequential([keras.Input((8,)), *layers])
    assert first == plain(np.ones([4, 8], "float32"), training=True).numpy().tolist(), "one worker draws as fit does"
    others = [draws(worker=1, step=0), draws(worker=2, step=0), draws(worker=0, step=5), draws(worker=1, step=5)]
    assert all(one != other for number, one in enumerate([first, *others]) for other in [first, *others][:number])
    assert draws(worker=1, step=5) == others[-1], "repeatable"
    assert draws(worker=1, step=5, seed=8) != others[-1]


def test_tasks_must_agree_on_what_they_do_not_exchange() -> None:
    """Vocabularies, boundaries and integer weights are each task's own: tasks whose contents differ are refused."""
    import keras

    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    class Permuted(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, order: Any) -> None:
            super().__init__()
            self.order = self.add_weight(shape=(2,), dtype="int32", initializer="zeros", trainable=False)
            self.order.assign(order)

        def call(self, x: Any) -> Any:
            return keras.ops.take(x, self.order, axis=-1)

    def adapted(layer: Any, data: Any) -> Any:
        layer.adapt(data)
        return layer

    def weighed() -> Any:
        return keras.layers.TextVectorization(output_mode="tf_idf")

    def identity(layer: Any, shape: Any, dtype: str) -> str:
        def build() -> Any:
            x = keras.Input(shape, dtype=dtype)
            return keras.Model(x, keras.layers.Dropout(0.5)(keras.layers.Dense(1)(layer(x))))

        return Model(build, sgd, Objective("mse")).identity()

    for made, shape, dtype, one, other in (
        (lambda data: adapted(keras.layers.StringLookup(output_mode="one_hot"), data), (1,), "string", "aab", "abb"),
        (lambda data: keras.layers.StringLookup(vocabulary=data, output_mode="one_hot"), (1,), "string", "ab", "ba"),
        (lambda data: adapted(keras.layers.TextVectorization(2, output_mode="count"), data), (), "string", "aab", "bb"),
        (lambda data: adapted(keras.layers.Discretization(num_bins=2), data), (1,), "float32", [1, 2, 3], [1, 8, 9]),
        (Permuted, (2,), "float32", [0, 1], [1, 0]),
        (lambda data: adapted(weighed(), data), (), "string", ["a b", "a"], ["a a b"]),
        (
            lambda data: keras.layers.Normalization(mean=data.mean(), variance=data.var()),
            (1,),
            "float32",
            [1, 2, 3],
            [1, 8, 9],
        ),
        (lambda data: keras.layers.Rescaling(1 / data.max()), (1,), "float32", [1, 2, 3], [1, 8, 9]),
    ):
        texts = [identity(made(np.array(list(data))), shape, dtype) for data in (one, one, other)]
        assert texts[0] == texts[1] != texts[2], made(np.array(list(one)))


def test_statistics_of_a_step_that_is_computed_again_count_once(client: Any) -> None:
    """A chief that restarts refuses the update under way; the servers, and the step, are the same afterwards."""
    rig = Rig(client, sgd, ps=1, build=normalized, loss="mse", mode="Sync")
    rig.start()
    first, second = batches(2)
    rig.train([first])
    rig.control.raise_fence(rig.store.read(), 2)
    assert not rig.step(second).session_valid
    assert rig.step(second, Session(2, GENERATION)).applied
    state = rig.control.snapshot(fence=2).variables
    mean, variance = of_one_process([[first], [second]])
    np.testing.assert_allclose(state["bn/moving_mean"], mean, rtol=1e-4)
    np.testing.assert_allclose(state["bn/moving_variance"], variance, rtol=1e-3)


def test_variables_of_no_layer_are_found_by_the_lines_that_use_them(tracebacks: None) -> None:
    """A variable that the loss, a layer or the training step has, and no weight of the model is, has another value on
    each worker: the lines that use it are reported. Weights, metrics, seeds, tables of words and generators are not.
    """
    import keras
    import tensorflow as tf

    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    calls, factor, of_layer = keras.Variable(0.0), tf.Variable(1.0), tf.Variable(0)
    generator = tf.random.Generator.from_seed(1)
    scaled = tf.function(lambda x: x * factor)

    class Counting(keras.layers.Layer):  # type: ignore[misc]
        def build(self, _: Any) -> None:
            self.calls = self.add_weight(shape=(), trainable=False)

        def call(self, x: Any) -> Any:
            self.calls.assign_add(1.0)
            return x + generator.normal([]) * 0.0

    def free(x: Any) -> Any:
        of_layer.assign_add(1)
        return x

    def loss(true: Any, predicted: Any) -> Any:
        calls.assign_add(1.0)
        return scaled(keras.ops.square(true - predicted))

    def lines(layers: Any, loss: Any) -> list[str]:
        def build() -> Any:
            return keras.Sequential([keras.Input((4,)), *layers(), keras.layers.Dense(1)])

        model = Model(build, sgd, Objective(loss, metrics=["mae"]))
        step = tf.function(lambda batch: model.loss_and_gradients(batch, lambda *_: None)[0], autograph=False)
        step.get_concrete_function(batches(1)[0])
        return model.connections.of_no_layer

    def usual() -> Any:
        words = keras.layers.IntegerLookup(vocabulary=[1, 2])
        rounded = keras.layers.Lambda(lambda x: keras.ops.cast(x, "int64"), output_shape=(4,))
        return [rounded, words, keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), Counting()]

    assert lines(usual, "mse") == []
    begin = {function: function.__code__.co_firstlineno for function in (free, loss)}
    name = "test_runtime_state.py"
    assert lines(lambda: [keras.layers.Lambda(free, output_shape=(4,))], "mse") == [f"{name}:{begin[free] + 1}"]
    assert lines(list, loss) == [f"{name}:{begin[loss] + 1}", f"{name}:{begin[loss] + 2}"]


def test_models_of_one_process_share_no_variables() -> None:
    """Worker 0 of a job without a chief evaluates one model while it trains another one."""
    import keras

    from pstraining.runtime.model.errors import ModelError
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.own_state import check_separate
    from pstraining.runtime.model.training.objective import Objective

    layer, optimizer = keras.layers.Dense(1, name="shared"), sgd()

    def partly() -> Any:
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), layer])

    def two(build: Any, make: Any) -> tuple[Model, Model]:
        first, second = (Model(build, make, Objective("mse")) for _ in range(2))
        return first, second

    check_separate(two(normalized, sgd)[1], [])
    first, second = two(normalized, sgd)
    check_separate(second, [first])
    first, second = two(partly, sgd)
    second.trainable[-1].assign([3.0])
    assert first.trainable[-1].numpy().tolist() == [3.0]
    with pytest.raises(ModelError, match=r"returned sequential/shared/kernel twice, .*functools\.cache"):
        check_separate(second, [first])
    first, second = two(normalized, lambda: optimizer)
    with pytest.raises(ModelError, match="the optimizer function returned the same SGD twice"):
        check_separate(second, [first])
