"""Dynamic loss scaling on real parameter servers equals Keras's own in `fit`, and all servers decide alike."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.model.optimizers import loss_scale
from pstraining.runtime.ps import worker_registry
from tests.support.pairs import STEPS as STEPS_OF_PAIRS
from tests.support.pairs import Message, Pairs
from tests.support.servers import Rig
from tests.support.soak_marks import THOROUGH, in_all, some
from tests.support.worker_threads import Crew

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]
STEPS = 12
GROWTH = 3
LARGE = 2.0**24
"""An initial scale that overflows in the first steps, and again after it has grown."""


@contextmanager
def half_precision() -> Iterator[None]:
    import keras

    former = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(former)


def model() -> Any:
    """Return a model with statistics, which a step that overflows changes as well."""
    import keras

    with half_precision():
        return keras.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(16, activation="tanh"),
                keras.layers.BatchNormalization(momentum=0.9),
                keras.layers.Dense(1),
                keras.layers.Activation("linear", dtype="float32"),
            ]
        )


def optimizer(scale: float = LARGE) -> Any:
    """Return an optimizer whose schedule and moments would show a counted step that overflows."""
    import keras

    rate = keras.optimizers.schedules.ExponentialDecay(1e-2, 1, 0.8)
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(rate), initial_scale=scale, dynamic_growth_steps=GROWTH
    )


def batches(number: int = STEPS, *, seed: int = 0) -> list[Any]:
    import tensorflow as tf

    random = np.random.default_rng(seed)
    x, y = random.normal(size=(number, 16, 8)), random.normal(size=(number, 16, 1))
    return [tuple(tf.constant(part.astype("float32")) for part in pair) for pair in zip(x, y, strict=True)]


def prepared(rig: Rig, build: Callable[[], Any], make: Callable[[], Any], loss: str = "mse") -> Any:
    """Return a compiled model of plain Keras with the rig's initial values; its optimizer is the one that `compile`
    creates.
    """
    found = build()
    found.compile(optimizer=make(), loss=loss, jit_compile=False)
    for variable, tensor in zip(found.trainable_variables, rig.model.tensors, strict=False):
        variable.assign(rig.initial[tensor.path])
    return found


def trained(found: Any, steps: Sequence[Any]) -> Any:
    """Return the model after one step of Keras for each batch."""
    for batch in steps:
        found.train_on_batch(*batch)
    return found


def scale_of(rig: Rig) -> dict[str, Any]:
    """Return the first worker's own scale."""
    return {name: value.numpy() for name, value in rig.workers[0]._store.model.loss_scale.saved().items()}


def assert_equal(rig: Rig, state: Any, expected: Any, scalars: dict[str, Any]) -> None:
    variables = expected.trainable_variables + expected.non_trainable_variables
    for variable, tensor in zip(variables, rig.model.tensors, strict=True):
        np.testing.assert_allclose(
            state.variables[tensor.path], variable.numpy(), rtol=0, atol=1e-6, err_msg=tensor.path
        )
    scaled = expected.optimizer
    assert scalars["loss_scale"] == scaled.dynamic_scale.numpy()
    assert scalars["loss_scale_good_steps"] == scaled.step_counter.numpy()
    skipped = state.step - int(scaled.iterations.numpy())
    assert state.scalars["loss_scale_skipped_steps"] == rig.control.skipped_steps() == skipped
    assert 0 < skipped < state.step, "some steps overflow, and some do not"


@pytest.fixture
def rigs(client: Any) -> Iterator[Any]:
    """Create rigs, and close the connections of their workers."""
    with ExitStack() as stack:

        def make(make_optimizer: Callable[[], Any], build: Callable[[], Any] = model, **options: Any) -> Rig:
            rig = Rig(client, make_optimizer, build=build, **{"loss": "mse", **options})
            if options["mode"] == "Hybrid":
                stack.callback(lambda: [updates.close() for updates in rig.workers])
            rig.start()
            return rig

        yield make


@pytest.mark.parametrize(
    ("mode", "ps"),
    some(
        [(mode, ps) for mode in ("Sync", "Async", "Hybrid") for ps in (1, 3)],
        lambda mode, ps: (mode, ps) in (("Sync", 3), ("Async", 1), ("Hybrid", 1)),
        in_all("tests/training/test_runtime_loss_scale.py::test_one_worker_equals_keras_in_one_process"),
    ),
)
def test_one_worker_equals_keras_in_one_process(rigs: Any, mode: str, ps: int) -> None:
    """One worker equals Keras in one process: a step that overflows changes no weights, moments, iterations or
    schedules, and halves the scale.
    """
    rig = rigs(optimizer, ps=ps, mode=mode)
    replies = [rig.step(batch) for batch in batches()]
    assert all(reply.finite and reply.applied for reply in replies), "an overflow is no gradient that is not finite"
    state = rig.snapshot()
    decided = scale_of(rig) if mode == "Async" else state.scalars
    assert_equal(rig, state, trained(prepared(rig, model, optimizer), batches()), decided)
    if mode != "Async":
        assert scale_of(rig)["loss_scale"] == decided["loss_scale"], "it came with a reply"


@in_all(
    "tests/training/test_runtime_loss_scale.py::test_one_worker_equals_keras_in_one_process"
)  # the local optimizer's in Async
def test_a_workers_local_optimizer_has_its_own_scale(rigs: Any) -> None:
    rig = rigs(optimizer, ps=2, mode="Sync", local_steps=2)
    steps = batches()
    for k in range(0, STEPS, 2):
        assert rig.workers[0].step(steps[k : k + 2]).applied
    state, expected = rig.snapshot(), trained(prepared(rig, model, optimizer), steps)
    for variable, tensor in zip(expected.trainable_variables, rig.model.tensors, strict=False):
        np.testing.assert_allclose(state.variables[tensor.path], variable.numpy(), rtol=0, atol=1e-6)
    assert scale_of(rig)["loss_scale"] == expected.optimizer.dynamic_scale.numpy()


def without_statistics(units: int = 16) -> Any:
    import keras

    with half_precision():
        layers = [keras.layers.Dense(units, activation="tanh"), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((8,)), *layers, keras.layers.Activation("linear", dtype="float32")])


def small_scale() -> Any:
    import keras

    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2), initial_scale=64.0, dynamic_growth_steps=4)


def means(rig: Rig, shares: Sequence[Sequence[Any]]) -> Any:
    """Apply Keras's `LossScaleOptimizer` to the mean of the gradients of all workers, as a mirrored strategy computes
    it.
    """
    import tensorflow as tf

    found = prepared(rig, without_statistics, small_scale)
    scaled, variables = found.optimizer, found.trainable_variables
    scaled.build(variables)

    @tf.function(jit_compile=False)  # type: ignore[untyped-decorator]
    def gradients(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            predicted = found(batch[0], training=True)
            loss = scaled.scale_loss(found.compute_loss(x=batch[0], y=batch[1], y_pred=predicted, training=True))
        return tape.gradient(loss, [variable.value for variable in variables])

    for step in zip(*shares, strict=True):
        parts = [gradients(batch) for batch in step]
        scaled.apply([tf.add_n(own) / len(own) for own in zip(*parts, strict=True)], variables)
    return found


@pytest.mark.parametrize(
    "mode",
    some(
        ["Sync", "Hybrid"],
        lambda mode: mode == "Sync",
        in_all("tests/training/test_runtime_loss_scale.py::test_a_step_with_a_non_finite_mean_is_skipped"),  # in Sync
    ),
)
def test_a_step_with_a_non_finite_mean_is_skipped(rigs: Any, mode: str) -> None:
    """A step with a non-finite mean is skipped: if one worker's gradient overflows, no worker's gradient is applied."""
    rig = rigs(small_scale, without_statistics, ps=2, workers=2, mode=mode)
    shares = [batches(seed=worker) for worker in range(2)]
    x, y = shares[1][3]
    shares[1][3] = (x, y * 1e5)
    crew = Crew(rig, shares)
    crew.join()
    assert all(reply.finite and reply.applied for replies in crew.replies for reply in replies)
    state = rig.snapshot()
    assert_equal(rig, state, means(rig, shares), state.scalars)
    assert state.scalars["loss_scale_skipped_steps"] == 1


def test_a_step_that_another_workers_overflow_skips_leaves_residuals_as_they_are(rigs: Any) -> None:
    """What a codec has lost of a gradient that is not applied is not sent later, and what was owed before still is."""
    codec = {"push": "Int8"}
    rig = rigs(small_scale, partial(without_statistics, 512), ps=1, workers=2, mode="Sync", compression=codec)
    shares = [batches(2, seed=worker) for worker in range(2)]
    x, y = shares[1][1]
    shares[1][1] = (x, y * 1e5)
    owed = []
    for step in range(2):
        Crew(rig, [share[step : step + 1] for share in shares]).join()
        owed.append([vector.numpy() for row in rig.workers[0]._compressor._residuals for vector in row])
    assert rig.snapshot().scalars["loss_scale_skipped_steps"] == 1
    assert any(vector.any() for vector in owed[0]), "the codec loses a part of the first gradient"
    for before, after in zip(*owed, strict=True):
        np.testing.assert_array_equal(after, before)


def tiny() -> Any:
    """Return a model whose weight has a gradient that is zero in half precision, unless the loss is scaled."""
    import keras

    with half_precision():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        return keras.Sequential([keras.Input((1,)), layer, keras.layers.Activation("linear", dtype="float32")])


@pytest.mark.parametrize(
    "scaled",
    some(
        [True, False],
        lambda scaled: scaled,
        in_all(
            "tests/training/test_runtime_loss_scale.py::test_gradients_that_underflow_in_half_precision_train"
        ),  # the reason for the scale
    ),
)
def test_gradients_that_underflow_in_half_precision_train(
    rigs: Any, scaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients that underflow in half precision train, because Keras's `compile` scales the loss of such a model by
    itself. Without that, nothing is learned, and no error is raised.
    """
    import keras
    import tensorflow as tf

    if not scaled:
        monkeypatch.setattr(loss_scale, "settings_of", lambda compiled: None)
    rig = rigs(lambda: keras.optimizers.Adam(1e-3, epsilon=1e-12), tiny, ps=1, mode="Sync")
    steps = [(tf.fill([32, 1], 1e-4), tf.fill([32, 1], 1e-5))] * 30
    rig.train(steps)
    state = rig.snapshot()
    (found,) = state.variables.values()
    expected = trained(prepared(rig, tiny, lambda: keras.optimizers.Adam(1e-3, epsilon=1e-12)), steps)
    (wanted,) = expected.trainable_variables
    assert wanted.numpy() > 0.02
    assert found == (pytest.approx(wanted.numpy(), abs=1e-6) if scaled else 0.0)
    assert ("loss_scale" in state.scalars) is scaled


def with_table() -> Any:
    import keras

    from pstraining.runtime import Embedding

    with half_precision():
        inputs = keras.Input((1,), dtype="int32")
        pooled = keras.layers.Flatten()(Embedding(6, 4)(inputs))
        outputs = keras.layers.Activation("linear", dtype="float32")(keras.layers.Dense(1)(pooled))
        return keras.Model(inputs, outputs)


@in_all("tests/training/test_runtime_loss_scale.py::test_a_step_with_a_non_finite_mean_is_skipped")  # rows of tables
def test_non_finite_table_rows_skip_the_step_and_a_checkpoint_has_the_scale(
    rigs: Any, client: Any, tmp_path: Path
) -> None:
    """Non-finite rows of tables skip the step, and a checkpoint has the scale. Rows count steps as dense parameters do,
    for the same place in the schedule.
    """
    import keras
    import tensorflow as tf

    random = np.random.default_rng(0)
    indices = [random.permutation(6).reshape(6, 1) for _ in range(STEPS)]
    steps = [(tf.constant(x), tf.constant(random.normal(size=(6, 1)).astype("float32"))) for x in indices]
    make = partial(optimizer, 2.0**18)
    rig = rigs(make, with_table, ps=3, mode="Sync")
    rig.train(steps[: STEPS // 2])
    checkpoints = Checkpoints(tmp_path, keep=1)
    saved = rig.snapshot()
    checkpoints.save(saved, term=1, layout=rig.store.layout)
    rig.train(steps[STEPS // 2 :])
    state = rig.snapshot()

    client.container += ".after"
    restored = checkpoints.newest()
    assert restored is not None
    other = Rig(client, make, ps=2, build=with_table, loss="mse", mode="Sync")
    other.start(restored)
    other.train(steps[STEPS // 2 :])
    again = other.snapshot()
    assert again.scalars == state.scalars

    def in_one_process() -> Any:
        with half_precision():
            inputs = keras.Input((1,), dtype="int32")
            pooled = keras.layers.Flatten()(keras.layers.Embedding(6, 4)(inputs))
            outputs = keras.layers.Activation("linear", dtype="float32")(keras.layers.Dense(1)(pooled))
            return keras.Model(inputs, outputs)

    alone = in_one_process()
    alone.compile(optimizer=make(), loss="mse", jit_compile=False)
    table, *dense = alone.trainable_variables
    paths = [rig.model.tables[0].path, *(tensor.path for tensor in rig.model.tensors)]
    for path, variable in zip(paths, [table, *dense], strict=True):
        variable.assign(rig.initial[path])
    trained(alone, steps)
    for path, variable in zip(paths, [table, *dense], strict=True):
        for found in (state, again):
            np.testing.assert_allclose(found.variables[path], variable.numpy(), rtol=0, atol=1e-6, err_msg=path)
    assert state.scalars["loss_scale"] == alone.optimizer.dynamic_scale.numpy()
    assert 0 < state.scalars["loss_scale_skipped_steps"] < saved.step


class ScaledPairs(Pairs):
    """Two shards with a standby each, whose first step overflows."""

    def _share(self, worker: int) -> list[Any]:
        return batches(STEPS_OF_PAIRS, seed=worker)


WORKERS = 2 if THOROUGH else 1
"""Workers of pairs of servers that decide: tracing takes twice as long for two."""
DECIDED = [
    *(Message("push", shard, worker) for worker in range(WORKERS) for shard in range(2)),
    *(Message(what, shard) for what in ("prepare", "stage") for shard in range(2)),
    Message("apply standby", 0),
]
"""The number of a round's messages until its decision."""


def test_members_decide_alike_after_any_loss_during_a_round(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_registry, "LAPSE_SECONDS", 600.0)
    cluster.container = "test.scaled.pairs"
    pairs = ScaledPairs(cluster, optimizer, without_statistics, WORKERS, loss="mse")
    assert pairs.expected
    assert not pairs.differences(pairs.both)
    survivors = ((1,), (1,))
    for cut in (len(DECIDED) - 1, len(DECIDED)):
        pairs.play(DECIDED[:cut])
        pairs.fail_over(survivors)
        pairs.finish(survivors)
        assert not pairs.differences(survivors), cut
    names = list(pairs.rig.store.shards[0].scalars)
    values = dict(zip(names, pairs.expected[0][1][-len(names) :], strict=True))
    assert values["loss_scale_skipped_steps"] >= 1
