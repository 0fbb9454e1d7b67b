"""Programs with several optimizers, on real parameter servers: equal to Keras in one process, restored, and refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.servers import Rig, small
from tests.support.worker_threads import Crew
from tests.training import test_runtime_embedding as embedding

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]
STEPS = 50


def wide_and_deep() -> Any:
    """FTRL for a table, SGD for the biases, and Adam for all else."""
    import keras

    rules = {"items/embeddings": keras.optimizers.Ftrl(0.1), ".*/bias": keras.optimizers.SGD(0.1, momentum=0.9)}
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.Adam(1e-2), rules))


@pytest.mark.usefixtures("plain_arithmetic")
def test_each_variable_and_table_has_the_optimizer_that_keras_gives_it(client: Any, tmp_path: Path) -> None:
    """Also after a restore onto another number of servers."""
    import keras

    from pstraining.runtime.checkpoint.storage import Checkpoints

    def rig(ps: int) -> Rig:
        return Rig(
            client,
            wide_and_deep,
            ps=ps,
            build=embedding.ours(twice=False),
            workers=2,
            loss="binary_crossentropy",
            mode="Sync",
            ordered_sums=True,
        )

    shares = [[touching_all(2 * step + worker) for step in range(STEPS)] for worker in range(2)]
    first = rig(3)
    first.start()
    Crew(first, [share[: STEPS // 2] for share in shares]).join()
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(first.control.snapshot(fence=1), term=1, layout=first.store.layout)

    client.container += ".after"
    second = rig(2)
    second.start(checkpoints.newest())
    Crew(second, [share[STEPS // 2 :] for share in shares]).join()
    state = second.control.snapshot(fence=1)
    expected = embedding.alone(
        first,
        wide_and_deep,
        list(zip(*shares, strict=True)),
        build=embedding.clicks(keras.layers.Embedding, twice=False),
        ordered=True,
    )
    assert state.step == STEPS
    assert set(expected) == set(state.variables)
    for path, value in expected.items():
        np.testing.assert_allclose(state.variables[path], value, rtol=0, atol=1e-6, err_msg=path)


def touching_all(seed: int) -> Any:
    """A batch with every row of the tables, since a row that is not touched does not move here."""
    import tensorflow as tf

    random = np.random.default_rng(seed)
    items = np.resize(random.permutation(embedding.ROWS), (64, embedding.FEATURES))
    users = np.resize(random.permutation(embedding.ROWS), 64)
    return (tf.constant(items), tf.constant(users)), tf.constant(random.integers(0, 2, (64, 1)).astype("float32"))


def test_each_optimizer_has_a_learning_rate(client: Any) -> None:
    import keras

    from pstraining.runtime.chief import callbacks, refusals

    def make() -> Any:
        schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.9)
        rules = {".*kernel": keras.optimizers.SGD(0.5, name="own"), ".*bias": keras.optimizers.SGD(schedule)}
        return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.25), rules))

    rig = Rig(client, make, ps=3, build=small)
    rig.start()
    assert rig.control.learning_rates() == [0.5, None, 0.25]
    names = callbacks.learning_rates(rig.model.optimizers, 10)
    assert names == pytest.approx({"learning_rate_own": 0.5, "learning_rate_sgd": 0.45, "learning_rate_sgd_1": 0.25})
    rig.control.set_learning_rates(1, [0.0, None, 0.125])
    assert rig.control.learning_rates() == [0.0, None, 0.125]
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)
    with pytest.raises(refusals.CallbackRefusedError, match="LearningRateScheduler sets one learning rate"):
        refusals.check_rates([scheduler], rig.model.optimizers)
    refusals.check_rates([scheduler], rig.model.optimizers[:1])


def test_gradients_are_clipped_with_those_of_the_same_optimizer() -> None:
    import keras
    import tensorflow as tf

    from pstraining.runtime.model import optimizer

    both = [keras.optimizers.SGD(0.1, global_clipnorm=5.0), keras.optimizers.SGD(0.1)]
    gradients = [tf.constant([6.0]), tf.constant([7.0]), tf.constant([8.0])]
    clipped = optimizer.clip(both, [0, 1, 0], gradients)
    np.testing.assert_allclose([float(value[0]) for value in clipped], [3.0, 7.0, 4.0])


def test_optimizers_of_a_function_and_patterns_that_overlap() -> None:
    import keras

    from pstraining.runtime.model import optimizer

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
    lamb = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.Lamb()))
    with pytest.raises(optimizer.OptimizerError, match="Lamb"):
        optimizer.assign(lamb, variables)
