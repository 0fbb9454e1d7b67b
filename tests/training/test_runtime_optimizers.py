"""Programs with several optimizers on real parameter servers equal Keras in one process, are restored, or are
rejected.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.local_servers import LocalServers
from tests.support.servers import Rig, batches, in_float64, small
from tests.support.soak_marks import ALL, THOROUGH, in_all
from tests.support.worker_threads import Crew
from tests.training import test_runtime_embedding as embedding
from tests.training import test_runtime_sync as sync

pytestmark = [
    pytest.mark.training,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("client"),  # a process connects before it creates any tensor
]
STEPS = 50 if THOROUGH else 20
WORKERS = 2 if THOROUGH else 1
SERVERS = 3 if ALL else 2
MOST = SERVERS if ALL else 1
"""Servers of tests that restore onto another number of them only in `make test-all`."""


WHOLE = in_all(
    "tests/training/test_runtime_optimizers.py"
    "::test_an_optimizer_on_whole_tensors_is_restored_onto_another_number_of_servers"
)  # on real servers
AVERAGED = in_all(
    "tests/training/test_runtime_optimizers.py::test_schedule_free_equals_keras_and_is_evaluated_with_its_average"
)  # on real servers
SEVERAL = in_all(
    "tests/training/test_runtime_optimizers.py::test_each_variable_and_table_has_the_optimizer_that_keras_gives_it"
)  # on real servers


def _muon() -> Any:
    import keras

    own = keras.optimizers.Muon(1e-2, exclude_layers=["dense_2"], adam_weight_decay=0.1)
    own.exclude_from_weight_decay(var_names=["bias"])
    return own


def _lamb() -> Any:
    import keras

    return keras.optimizers.Lamb(1e-2, use_ema=True, ema_overwrite_frequency=7)


def _adafactor() -> Any:
    import keras

    return keras.optimizers.Adafactor(1e-2, gradient_accumulation_steps=2)


def _schedule_free() -> Any:
    import keras

    return keras.optimizers.ScheduleFreeAdamW(1e-2, warmup_steps=5, weight_decay=0.01)


def _mixed() -> Any:
    """Return a composite optimizer with Muon for the kernels."""
    import keras

    rules = {".*/kernel": _muon(), ".*/bias": keras.optimizers.SGD(0.1, momentum=0.9)}
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.Adam(1e-2), rules))


def _adagrad() -> Any:
    import keras

    return keras.optimizers.Adagrad(0.1, weight_decay=0.01)


def _rmsprop() -> Any:
    import keras

    return keras.optimizers.RMSprop(1e-2, momentum=0.5, centered=True)


def _ftrl() -> Any:
    import keras

    return keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.001, l2_regularization_strength=0.001)


OPTIMIZERS = {
    "Adagrad": _adagrad,
    "RMSprop": _rmsprop,
    "Ftrl": _ftrl,
    "Adafactor": _adafactor,
    "Lamb": _lamb,
    "Muon": _muon,
    "ScheduleFreeAdamW": _schedule_free,
    "MultiOptimizer": _mixed,
}


def wide_and_deep() -> Any:
    """Return a composite optimizer: FTRL for a table, SGD for the biases, and Adam for the other variables."""
    import keras

    rules = {"items/embeddings": keras.optimizers.Ftrl(0.1), ".*/bias": keras.optimizers.SGD(0.1, momentum=0.9)}
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.Adam(1e-2), rules))


@pytest.mark.usefixtures("plain_arithmetic")
def test_each_variable_and_table_has_the_optimizer_that_keras_gives_it(client: Any, tmp_path: Path) -> None:
    """Each variable and table has the optimizer that Keras gives it, also after a restore onto another number of
    servers.
    """
    import keras

    shares = [[touching_all(2 * step + worker) for step in range(STEPS)] for worker in range(WORKERS)]
    build = embedding.ours(twice=False)
    state, first = train_and_restore(
        client, wide_and_deep, shares, tmp_path, servers=MOST, build=build, loss="binary_crossentropy"
    )
    expected = embedding.in_one_process(
        first,
        wide_and_deep,
        list(zip(*shares, strict=True)),
        build=embedding.clicks(keras.layers.Embedding, twice=False),
        ordered=True,
    )
    assert set(expected) == set(state.variables)
    for path, value in expected.items():
        np.testing.assert_allclose(state.variables[path], value, rtol=0, atol=1e-6, err_msg=path)


def touching_all(seed: int) -> Any:
    """Return a batch with every row of the tables, because an untouched row does not change here."""
    import tensorflow as tf

    random = np.random.default_rng(seed)
    items = np.resize(random.permutation(embedding.ROWS), (64, embedding.FEATURES))
    users = np.resize(random.permutation(embedding.ROWS), 64)
    return (tf.constant(items), tf.constant(users)), tf.constant(random.integers(0, 2, (64, 1)).astype("float32"))


@pytest.mark.usefixtures("plain_arithmetic")
def test_schedule_free_equals_keras_and_is_evaluated_with_its_average(client: Any, tmp_path: Path) -> None:
    """Schedule-free training equals Keras and is evaluated with its average, also after a restore onto another number
    of servers.
    """
    from pstraining.runtime.chief.reports.evaluation import evaluation_weights

    shares = [batches(STEPS, seed=worker) for worker in range(WORKERS)]
    state, rig = train_and_restore(client, _schedule_free, shares, tmp_path, servers=MOST)
    expected = sync.in_one_process(rig, small, _schedule_free, list(zip(*shares, strict=True)), ordered=True)
    own = expected.optimizer
    seen = dict(evaluation_weights(state, rig.model.trained_by, over=False))
    assert_equal(state.variables, rig, expected)
    pairs = zip(expected.trainable_variables, rig.model.tensors, own._momentums, strict=True)
    for variable, tensor, base in pairs:
        np.testing.assert_allclose(state.slots["momentum"][tensor.path], base.numpy(), rtol=0, atol=1e-6)
        average = (variable.numpy() - 0.1 * base.numpy()) / 0.9
        np.testing.assert_allclose(seen[tensor.path], average, rtol=0, atol=1e-6)
        assert np.abs(average - variable.numpy()).max() > 1e-4, "it is another model"


@pytest.mark.usefixtures("plain_arithmetic")
@pytest.mark.parametrize(
    "name",
    [
        "Adagrad",
        "Ftrl",
        "Muon",
        pytest.param("RMSprop", marks=in_all("tests/training/test_runtime_optimizer_matrix.py::test_in_sync")),
        *(pytest.param(name, marks=WHOLE) for name in ("Adafactor", "Lamb")),
        pytest.param("ScheduleFreeAdamW", marks=AVERAGED),
        pytest.param("MultiOptimizer", marks=SEVERAL),
    ],
)
def test_on_the_segments_of_three_servers_it_equals_keras(name: str) -> None:
    """In this process: clones of an optimizer on every server's segments equal Keras's optimizer, given the same
    gradients.
    """
    from keras.src.utils import naming

    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    model = Model(small, OPTIMIZERS[name], Objective("sparse_categorical_crossentropy"))
    naming.reset_uids()  # Muon identifies layers by their names
    alone, own = small(), OPTIMIZERS[name]()
    for variable, initial in zip(alone.trainable_variables, model.trainable, strict=True):
        variable.assign(initial)
    own.build(alone.trainable_variables)
    servers = LocalServers(model, 3)
    servers.train_beside(own, alone, STEPS)


@pytest.mark.usefixtures("plain_arithmetic")
def test_an_optimizer_on_whole_tensors_is_restored_onto_another_number_of_servers(client: Any, tmp_path: Path) -> None:
    """Adafactor on whole tensors is restored onto another number of servers, although its slots have other shapes than
    the tensors.
    """
    shares = [batches(STEPS, seed=worker) for worker in range(WORKERS)]
    state, rig = train_and_restore(client, _adafactor, shares, tmp_path)
    assert_equal(
        state.variables, rig, sync.in_one_process(rig, small, _adafactor, list(zip(*shares, strict=True)), ordered=True)
    )


@in_all(
    "tests/training/test_runtime_optimizers.py"
    "::test_an_optimizer_on_whole_tensors_is_restored_onto_another_number_of_servers"
)  # in Hybrid
def test_hybrid_workers_apply_an_optimizer_of_whole_tensors(client: Any) -> None:
    rig = Rig(client, _lamb, ps=3, build=in_float64(small), workers=2, mode="Hybrid")
    rig.start()
    try:
        shares = [batches(10, seed=worker) for worker in range(2)]
        Crew(rig, shares).join()
        state = rig.snapshot()
        one, other = (updates._dense.read() for updates in rig.workers)
    finally:
        for updates in rig.workers:
            updates.close()
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)
    steps = list(zip(*shares, strict=True))
    assert_equal(state.variables, rig, sync.in_one_process(rig, in_float64(small), _lamb, steps, ordered=False))


def test_the_rows_of_a_table_are_not_a_whole_tensor() -> None:
    import keras

    from pstraining.runtime.model.optimizers import optimizer

    for name in optimizer.WHOLE:
        with pytest.raises(optimizer.OptimizerError, match=f"{name} cannot train embedding tables by rows"):
            optimizer.check_for_tables(getattr(keras.optimizers, name)())


def train_and_restore(
    client: Any, make: Any, shares: Any, folder: Path, *, servers: int = SERVERS, **more: Any
) -> tuple[Any, Rig]:
    """Train half of the steps on some servers and the other half on one server fewer; return the last state and the
    first rig. A single server gets the first half's state back after a step more.
    """
    from pstraining.runtime.checkpoint.storage import Checkpoints

    options: dict[str, Any] = {"build": small, "mode": "Sync", "ordered_sums": True, **more}
    checkpoints = Checkpoints(folder, keep=1)
    rigs = []
    for ps, half in ((servers, slice(STEPS // 2)), (servers - 1, slice(STEPS // 2, STEPS))):
        if ps:
            rig = Rig(client, make, ps=ps, workers=len(shares), **options)
        else:
            Crew(rig, [share[-1:] for share in shares]).join()
        rig.start(checkpoints.newest())
        Crew(rig, [share[half] for share in shares]).join()
        checkpoints.save(rig.control.snapshot(fence=1), term=1, layout=rig.store.layout)
        client.container += ".after"
        rigs.append(rig)
    state = checkpoints.newest()
    assert state is not None
    assert state.step == STEPS
    return state, rigs[0]


def assert_equal(values: Any, rig: Rig, expected: Any) -> None:
    for variable, tensor in zip(expected.trainable_variables, rig.model.tensors, strict=True):
        np.testing.assert_allclose(values[tensor.path], variable.numpy(), rtol=0, atol=1e-6, err_msg=tensor.path)


def test_the_averages_are_the_result_as_at_the_end_of_fit() -> None:
    import keras

    from pstraining.runtime.checkpoint.state import State
    from pstraining.runtime.chief.reports.evaluation import evaluation_weights, with_weights

    both = {"a": keras.optimizers.SGD(0.1, use_ema=True), "b": keras.optimizers.SGD(0.1)}
    values = {"a": np.array([1.0]), "b": np.array([2.0])}
    state = State(1, values, {"average": {"a": np.array([3.0])}}, {})
    assert dict(evaluation_weights(state, both, over=False)) == values
    assert dict(evaluation_weights(state, both, over=True)) == {"a": [3.0], "b": [2.0]}
    best = with_weights(state, {"a": np.array([4.0]), "b": np.array([5.0])}, both)
    assert dict(evaluation_weights(best, both, over=True)) == {"a": [4.0], "b": [5.0]}
    free = {"a": keras.optimizers.ScheduleFreeAdamW(0.1)}
    state = State(1, values, {"momentum": {"a": np.array([9.0])}}, {})
    best = with_weights(state, {"a": np.array([4.0]), "b": np.array([5.0])}, free)
    assert dict(evaluation_weights(best, free, over=True)) == {"a": [4.0], "b": [5.0]}


def test_where_schedule_free_does_not_work() -> None:
    import keras

    from pstraining.runtime.model.optimizers import optimizer

    own = keras.optimizers.ScheduleFreeAdamW()
    with pytest.raises(optimizer.OptimizerError, match="embedding tables"):
        optimizer.check_for_tables(own)
    with pytest.raises(optimizer.OptimizerError, match="localSteps"):
        optimizer.check_for_local_steps(own)


def test_each_optimizer_has_a_learning_rate(client: Any) -> None:
    import keras

    from pstraining.runtime.chief.reports import rates

    def make() -> Any:
        schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.9)
        rules = {".*kernel": keras.optimizers.SGD(0.5, name="own"), ".*bias": keras.optimizers.SGD(schedule)}
        return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.25), rules))

    rig = Rig(client, make, ps=MOST, build=small)
    rig.start()
    assert rig.control.learning_rates() == [0.5, None, 0.25]
    names = rates.learning_rates(rig.model.optimizers, 10)
    assert names == pytest.approx({"learning_rate_own": 0.5, "learning_rate_sgd": 0.45, "learning_rate_sgd_1": 0.25})
    rig.control.set_learning_rates(1, [0.0, None, 0.125])
    assert rig.control.learning_rates() == [0.0, None, 0.125]


def test_callbacks_set_the_rate_of_each_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `fit` of Keras 3.15; callbacks of an older Keras, which set one rate, are rejected."""
    import keras

    from pstraining.runtime.chief import refusals
    from pstraining.runtime.chief.reports.rates import scheduled

    optimizers = [keras.optimizers.SGD(0.5), keras.optimizers.SGD(0.25)]
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch else rate)
    plateau = keras.callbacks.ReduceLROnPlateau("loss")
    refusals.check_rates([scheduler, plateau], optimizers)
    assert scheduled(optimizers, [scheduler], 3), "two epochs have halved both"
    assert [float(own.learning_rate) for own in optimizers] == [0.125, 0.0625]
    monkeypatch.delattr(keras.callbacks.ReduceLROnPlateau, "_reduce_optimizer_lr")
    with pytest.raises(refusals.CallbackRefusedError, match="ReduceLROnPlateau of this Keras sets one learning rate"):
        refusals.check_rates([plateau], optimizers)
    refusals.check_rates([plateau], optimizers[:1])


def test_gradients_are_clipped_with_those_of_the_same_optimizer() -> None:
    import keras
    import tensorflow as tf

    from pstraining.runtime.model.optimizers import optimizer

    both = [keras.optimizers.SGD(0.1, global_clipnorm=5.0), keras.optimizers.SGD(0.1)]
    gradients = [tf.constant([6.0]), tf.constant([7.0]), tf.constant([8.0])]
    clipped = optimizer.clip(both, [0, 1, 0], gradients)
    np.testing.assert_allclose([float(value[0]) for value in clipped], [3.0, 7.0, 4.0])


def test_optimizers_of_a_function_and_patterns_that_overlap() -> None:
    import keras

    from pstraining.runtime.model.optimizers import optimizer

    made = []

    def of(variable: Any) -> Any:
        made.append(keras.optimizers.SGD(0.1) if "bias" in variable.path else keras.optimizers.Adam())
        return made[-1]

    variables = small().trainable_variables
    found, numbers = optimizer.assign(keras.optimizers.MultiOptimizer(of), variables)
    assert (found, numbers) == (made, [*range(len(variables))])

    rules = keras.optimizers.OptimizerMap(
        keras.optimizers.SGD(), {".*kernel": keras.optimizers.SGD(), ".*dense.*": keras.optimizers.SGD()}
    )
    with pytest.raises(optimizer.OptimizerError, match="Multiple optimizers assigned"):
        optimizer.assign(keras.optimizers.MultiOptimizer(rules), variables)

    class Mine(keras.optimizers.SGD):  # type: ignore[misc]
        pass

    mine = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(Mine()))
    with pytest.raises(optimizer.OptimizerError, match="Mine"):
        optimizer.assign(mine, variables)


@pytest.mark.parametrize("given", ["adam", {"class_name": "Adam", "config": {"learning_rate": 0.25}}])
def test_an_optimizer_may_be_given_as_in_compile(given: Any) -> None:
    import keras

    from pstraining.runtime.errors import FinalError
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    model = Model(small, lambda: given, Objective("sparse_categorical_crossentropy"))
    assert type(model.optimizer) is keras.optimizers.Adam
    assert float(model.optimizer.learning_rate) == (0.25 if isinstance(given, dict) else pytest.approx(0.001))
    with pytest.raises(FinalError, match=r"the optimizer cannot be created: ValueError: .*adamm"):
        Model(small, lambda: "adamm", Objective("mse"))  # type: ignore[arg-type, return-value]
