"""Vectors that all update modes send: each one's `pack` on the sending side beside its `unpack` on the receiving side.

A message is one tensor, because every tensor that crosses the network costs a call. A message with a type parameter has
tensors as fields inside a traced function, and numbers on the client.
"""

from typing import Generic, NamedTuple, TypeVar

import tensorflow as tf

from pstraining.runtime.model.tensor import Tensor

Number = TypeVar("Number")
"""A scalar tensor inside a traced function, an int or a float on the client."""


class GradientStats(NamedTuple, Generic[Number]):
    """The numbers that belong to a gradient."""

    samples: Number
    """Number of samples, the gradient's weight."""
    loss: Number
    """Mean loss over the samples."""
    finite: Number
    """1 if the gradient has no NaN or infinity; with a scaled loss, if the changes of state have none."""
    parts: Number
    """The divisor already applied to the gradient."""
    overflowed: Number
    """1 if the loss was scaled and the gradient is not finite: no optimizer may make a step with it."""

    def pack(self) -> Tensor:
        """Emit the vector. float64[5]."""
        return tf.stack([tf.cast(field, tf.float64) for field in self])

    @staticmethod
    def read(vector: Tensor) -> "GradientStats[Tensor]":
        """Emit the fields inside a traced function."""
        return GradientStats(*tf.unstack(vector))

    @staticmethod
    def read_all(vectors: Tensor) -> "GradientStats[Tensor]":
        """Emit the fields of stacked vectors, float64[n, 5]; each field is float64[n]."""
        return GradientStats(*tf.unstack(vectors, axis=1))

    @staticmethod
    def unpack(vector: Tensor) -> "GradientStats[float]":
        """Return the numbers on the worker."""
        return GradientStats(*vector.numpy().tolist())
