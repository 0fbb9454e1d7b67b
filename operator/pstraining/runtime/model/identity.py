"""Settings as text that is equal on all tasks of a job: names and numbers only.

The address of an object, which its `repr` may contain, differs between processes, and the last bits of a tensor between
devices. Neither may make two tasks of one program differ.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_PLAIN = (bool, int, float, str, type(None))


def described(value: Any) -> Any:
    """Return a value's names and numbers, as a structure whose `repr` is equal in every process.

    An array or a tensor is described by its dtype and shape, a learning-rate schedule or a constraint by its class and
    attributes, and any other object by its name if it has one, or else by its class.
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        return sorted((str(name), described(part)) for name, part in value.items())
    if isinstance(value, list | tuple):
        return [described(part) for part in value]
    if isinstance(value, np.ndarray | np.generic | tf.Tensor | tf.Variable | keras.Variable):
        return str(np.dtype(tf.as_dtype(value.dtype).as_numpy_dtype)), [int(size) for size in value.shape]
    if isinstance(value, keras.optimizers.schedules.LearningRateSchedule | keras.constraints.Constraint):
        return type(value).__qualname__, described(vars(value))
    return getattr(value, "__qualname__", type(value).__qualname__)
