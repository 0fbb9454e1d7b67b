"""Checks whether gradients are finite, with as few reads of memory as possible.

A sum is one pass that writes nothing large. But most gradients of a large model are products of matrices, far larger
than their factors if the batch is small. By Cauchy and Schwarz no element of a product exceeds the product of the
factors' norms. If that bound is far below the largest number, the product need not be read. Measured with 100 MB in
four dense layers on two cores: a pass over all gradients takes 4 % of a synchronous step.
"""

from collections.abc import Callable, Sequence
from typing import Final

import tensorflow as tf

from pstraining.runtime.model.partition import LARGE_BYTES
from pstraining.runtime.model.tensor import Tensor

VIEWS: Final = ("Reshape", "Identity", "StridedSlice")
"""Operations whose result contains only elements of their first input."""


def are_finite(values: Sequence[Tensor]) -> Tensor:
    """Emit whether no value has a NaN or an infinity. bool[].

    A sum that overflows counts as infinite, because such gradients are useless as well. Sums of float16, whose largest
    number is 65504, are computed in float32.
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
    """Return the factors of a large gradient that is a product; None for other gradients."""
    size = value.shape.num_elements()
    if size is None or size * value.dtype.size < LARGE_BYTES:
        return None
    operation = value.op
    while operation.type in VIEWS:
        operation = operation.inputs[0].op
    first, second = operation.inputs[:2] if operation.type == "MatMul" else (None, None)
    return None if first is None or first.dtype != value.dtype else (first, second)


def _is_small(value: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Emit whether no element of a product is near the largest number; False if a factor is not finite. bool[]."""
    norms = [2 * tf.cast(tf.nn.l2_loss(factor), tf.float64) for factor in (first, second)]
    return tf.sqrt(norms[0]) * tf.sqrt(norms[1]) < float(value.dtype.max) / 4


def _sum_is_finite(value: Tensor) -> Callable[[], Tensor]:
    return lambda: tf.math.is_finite(_sum(value))


def _sum(value: Tensor) -> Tensor:
    wide = tf.cast(value, tf.float32) if value.dtype == tf.float16 else value
    return tf.cast(tf.reduce_sum(wide), tf.float64)
