"""Learning rates of optimizers' clones, which callbacks may set."""

from collections.abc import Iterable, Sequence

import keras
import tensorflow as tf

from pstraining.runtime.model.tensor import KerasOptimizer, Operation, Tensor, Variable


def rate_variables(clones: Iterable[tuple[int, KerasOptimizer]]) -> list[tuple[int, Variable]]:
    """Return the numbers of optimizers, and the learning rates of their clones; without schedules."""
    found = [(index, getattr(clone, "_learning_rate", None)) for index, clone in clones]
    return [(index, rate.value) for index, rate in found if isinstance(rate, keras.Variable)]


def adopted(variables: Sequence[tuple[int, Variable]], rates: Tensor) -> list[Operation]:
    """Emit setting learning rates where the new ones are numbers; return the operations to wait for.

    Args:
        variables: see `rate_variables`.
        rates: the learning rate of each optimizer; NaN: it stays. float64[optimizers].
    """
    found = [(variable, tf.cast(rates[index], variable.dtype)) for index, variable in variables]
    return [
        variable.assign(tf.where(tf.math.is_finite(rate), rate, variable.read_value()), read_value=False)
        for variable, rate in found
    ]
