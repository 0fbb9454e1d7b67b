"""Vectors that all update modes send: each one's `pack` on the sending side beside its `unpack` on the receiving side.

A message is one tensor, because every tensor that crosses the network costs a call. A message with a type parameter has
tensors as fields inside a traced function, and numbers on the client.
"""

from typing import Generic, NamedTuple, TypeVar

import tensorflow as tf

from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.record import Session

Number = TypeVar("Number")
"""A scalar tensor inside a traced function, an int or a float on the client."""


class SessionToken(NamedTuple):
    """The session of a request."""

    fence: Tensor
    """The fencing token. int64[]."""
    generation: Tensor
    """The set of parameters. int64[]."""

    @staticmethod
    def pack(session: Session) -> Tensor:
        """Return the vector that a worker sends. int64[2]."""
        return tf.constant([session.fence, session.generation], tf.int64)

    @classmethod
    def unpack(cls, vector: Tensor) -> "SessionToken":
        """Emit the fields of the vector."""
        return cls(*tf.unstack(vector))


class Sender(NamedTuple):
    """The worker process that sent a request."""

    worker: Tensor
    """The worker's index. int64[]."""
    incarnation: Tensor
    """Start of the process, in nanoseconds since 1970. int64[]."""

    @staticmethod
    def pack(worker: int, incarnation: int) -> Tensor:
        """Return the vector that a worker sends. int64[2]."""
        return tf.constant([worker, incarnation], tf.int64)

    @classmethod
    def unpack(cls, vector: Tensor) -> "Sender":
        """Emit the fields of the vector on the server that received it."""
        return cls(*tf.unstack(vector))


class GradientStats(NamedTuple, Generic[Number]):
    """The numbers that belong to a gradient."""

    samples: Number
    """Number of samples, the gradient's weight."""
    loss: Number
    """Mean loss over the samples."""
    finite: Number
    """1 if the gradient has no NaN or infinity."""
    parts: Number
    """The divisor already applied to the gradient."""

    def pack(self) -> Tensor:
        """Emit the vector. float64[4]."""
        return tf.stack([tf.cast(field, tf.float64) for field in self])

    @staticmethod
    def read(vector: Tensor) -> "GradientStats[Tensor]":
        """Emit the fields inside a traced function."""
        return GradientStats(*tf.unstack(vector))

    @staticmethod
    def read_all(vectors: Tensor) -> "GradientStats[Tensor]":
        """Emit the fields of stacked vectors, float64[n, 4]; each field is float64[n]."""
        return GradientStats(*tf.unstack(vectors, axis=1))

    @staticmethod
    def unpack(vector: Tensor) -> "GradientStats[float]":
        """Return the numbers on the worker."""
        return GradientStats(*vector.numpy().tolist())
