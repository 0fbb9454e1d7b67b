"""NaN and infinity in gradients are detected, also if only the factors of a product are read."""

import math
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.training
SIDE = 300
"""Side of a matrix that has enough elements for a product not to be read."""


def found(first: Any, second: Any, *, view: bool = False) -> tuple[bool, list[str]]:
    """Return the verdict on the product of two matrices, and the kinds of the check's operations."""
    import tensorflow as tf

    from pstraining.runtime.model.optimizers.finite import are_finite

    def emit(a: Any, b: Any) -> Any:
        product = tf.matmul(a, b, transpose_a=True)
        return are_finite([tf.reshape(product, [-1])[: SIDE * SIDE - 1] if view else product])

    check = tf.function(emit, autograph=False)
    graph = check.get_concrete_function(tf.TensorSpec([None, SIDE]), tf.TensorSpec([None, SIDE])).graph
    return bool(check(first, second)), [op.type for op in graph.get_operations()]


def factor(value: float = 1.0, place: tuple[int, int] = (0, 0)) -> Any:
    made = np.random.default_rng(0).normal(size=(4, SIDE)).astype("float32")
    made[place] = value
    return made


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "finite"),
    [
        (1.0, 1.0, True),
        (math.nan, 1.0, False),
        (1.0, math.inf, False),
        (-math.inf, 1.0, False),
        (1e30, 1e30, False),  # finite factors, an infinite product
        (1e30, 1e-30, True),
        (1e37, 1.0, True),  # close enough to the largest number for the product to be read
        (1e-30, 1e-30, True),
        (0.0, math.inf, False),
    ],
)
def test_the_verdict_on_a_product(first: float, second: float, finite: bool, view: bool) -> None:
    said, kinds = found(factor(first), factor(second), view=view)
    assert said is finite
    assert "L2Loss" in kinds


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.0])
def test_the_verdict_on_other_tensors(value: float) -> None:
    import tensorflow as tf

    from pstraining.runtime.model.optimizers.finite import are_finite

    check = tf.function(lambda large, small, half: are_finite([large * 2.0, small, half]), autograph=False)
    plain = [np.ones([SIDE * SIDE], "float32"), np.ones([3], "float32"), np.full([9], 60000, "float16")]
    for place in range(3):
        changed = [array.copy() for array in plain]
        changed[place][1] = value
        assert bool(check(*changed)) is math.isfinite(value)


def test_a_model_of_dense_layers_checks_the_factors() -> None:
    """A model of dense layers checks factors only. Without that the result is the same and only slower, so this test is
    the one that requires it.
    """
    import keras
    import tensorflow as tf

    from pstraining.runtime.model.optimizers.finite import are_finite

    model = keras.Sequential([keras.Input((SIDE,)), keras.layers.Dense(SIDE), keras.layers.Dense(SIDE)])

    def emit(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)))
        return are_finite(tape.gradient(loss, model.trainable_variables))

    check = tf.function(emit, input_signature=[tf.TensorSpec([None, SIDE])])
    kinds = [op.type for op in check.get_concrete_function().graph.get_operations()]
    assert kinds.count("L2Loss") == 4
    assert kinds.count("StatelessIf") == 2
    assert bool(check(np.ones([2, SIDE], "float32")))
    assert not bool(check(np.full([2, SIDE], math.nan, "float32")))
