"""Whether gradients are finite, found out with as little reading as can be.

A sum tells it: one pass, and nothing as large is written. But most of a large model's gradient is products of matrices,
each far larger than its factors where a batch is small, and what its factors are bounds what it can be. By Cauchy and
Schwarz no element of a product is greater than the product of the factors' norms; where that is far from the largest
number, the product need not be read. Measured with 100 MB in four dense layers on two cores: a pass over all gradients
is 4 % of what a synchronous step costs.
"""

from collections.abc import Callable, Sequence
from typing import Final

import tensorflow as tf

from pstraining.runtime.model.partition import LARGE_BYTES
from pstraining.runtime.model.tensor import Tensor

VIEWS: Final = ("Reshape", "Identity", "StridedSlice")
"""Operations whose result holds nothing that their first input does not."""


def are_finite(values: Sequence[Tensor]) -> Tensor:
    """Emits whether there is no NaN or infinity in any of them. bool[].

    A sum that overflows counts as infinite; gradients whose sum does are of no use either. Not so in float16, whose
    largest number is 65504.
    """
    found, summed = [], []
    for value in values:
        factors = _factors(value)
        if factors is None:
            summed.append(_sum(value))
        else:
            found.append(tf.cond(_is_small(value, *factors), lambda: tf.constant(True), _sum_is_finite(value)))
    return tf.reduce_all([*found, tf.reduce_all(tf.math.is_finite(summed))] if summed else found)


def _factors(value: Tensor) -> tuple[Tensor, Tensor] | None:
    """What a large gradient is the product of, if it is one."""
    size = value.shape.num_elements()
    if size is None or size * value.dtype.size < LARGE_BYTES:
        return None
    operation = value.op
    while operation.type in VIEWS:
        operation = operation.inputs[0].op
    first, second = operation.inputs[:2] if operation.type == "MatMul" else (None, None)
    return None if first is None or first.dtype != value.dtype else (first, second)


def _is_small(value: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Whether a product of these has no element near the largest number; not so if one of them is not finite."""
    norms = [2 * tf.cast(tf.nn.l2_loss(factor), tf.float64) for factor in (first, second)]
    return tf.sqrt(norms[0]) * tf.sqrt(norms[1]) < float(value.dtype.max) / 4


def _sum_is_finite(value: Tensor) -> Callable[[], Tensor]:
    return lambda: tf.math.is_finite(_sum(value))


def _sum(value: Tensor) -> Tensor:
    wide = tf.cast(value, tf.float32) if value.dtype == tf.float16 else value
    return tf.cast(tf.reduce_sum(wide), tf.float64)
