"""Messages of asynchronous updates: each one's `pack` on the sending side beside its `unpack` on the receiving side."""

from collections.abc import Sequence
from typing import Generic, NamedTuple

import tensorflow as tf

from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.updates.messages import GradientStats, Number


class UpdateHeader(NamedTuple):
    """The numbers that a worker sends with an update."""

    progress: Tensor
    """The worker's progress in its data after the update. int64[3]."""
    number: Tensor
    """The worker's number for the update, from 1; no server applies a number twice. int64[]."""
    batches: Tensor
    """Number of batches in the update. int64[]."""
    workers: Tensor
    """Number of workers of the job. int64[]."""

    @staticmethod
    def pack(progress: Sequence[int], number: int, batches: int, workers: int) -> Tensor:
        """Return the vector that a worker sends. int64[6]."""
        return tf.constant([*progress, number, batches, workers], tf.int64)

    @classmethod
    def unpack(cls, vector: Tensor) -> "UpdateHeader":
        """Emit the fields on the server."""
        return cls(vector[:3], vector[3], vector[4], vector[5])


class UpdateReply(NamedTuple, Generic[Number]):
    """One server's reply to an update, or to a worker that waits for the slowest one."""

    accepted: Number
    """1 if the worker's session is the server's."""
    done: Number
    """1 or 2 if training is over; see `RecordField.DONE`."""
    step: Number
    """Updates applied on the server."""
    ahead: Number
    """Updates by which the worker is ahead of the slowest live worker; 0 without a bound. `PAUSED` in a pause."""
    is_new: Number
    """1 if the server had not accepted this update before."""

    def pack(self) -> Tensor:
        """Emit the reply on the server. int64[5]."""
        return tf.stack([tf.cast(field, tf.int64) for field in self])

    @staticmethod
    def read(vector: Tensor) -> "UpdateReply[Tensor]":
        """Emit the fields inside a traced function."""
        return UpdateReply(*tf.unstack(vector))

    @staticmethod
    def unpack(vector: Array) -> "UpdateReply[int]":
        """Return the reply on the client."""
        return UpdateReply(*map(int, vector))


class PushResult(NamedTuple, Generic[Number]):
    """All servers' replies to an update together, and the loss of its gradient."""

    accepted: Number
    """1 if every server accepted the update."""
    done: Number
    """1 or 2 if training is over; see `RecordField.DONE`."""
    step: Number
    """Updates applied on the first server."""
    ahead: Number
    """Updates by which the worker is ahead of the slowest live worker; 0 without a bound."""
    is_new: Number
    """1 if the first server had not accepted the update before."""
    loss: Number
    """Mean loss over the update's samples."""
    finite: Number
    """1 if the gradient has no NaN or infinity."""
    version: Number
    """The global step whose parameters the gradient was computed on; -1 if the client knows it."""
    overflowed: Number
    """1 if the loss was scaled and the gradient is not finite."""

    @staticmethod
    def pack(replies: Sequence[UpdateReply[Tensor]], stats: Tensor, version: Tensor | None) -> Tensor:
        """Emit the result on the worker from the servers' replies, the first server's first. float64[9]."""
        first = replies[0]
        numbers = [
            tf.reduce_min(tf.stack([reply.accepted for reply in replies])),
            tf.reduce_max(tf.stack([reply.done for reply in replies])),
            first.step,
            first.ahead,
            first.is_new,
        ]
        gradient = GradientStats.read(stats)
        fields = [*numbers, gradient.loss, gradient.finite, tf.constant(-1) if version is None else version]
        fields.append(gradient.overflowed)
        return tf.stack([tf.cast(field, tf.float64) for field in fields])

    @staticmethod
    def empty() -> Tensor:
        """Emit a result of zeros. float64[9]."""
        return tf.zeros([len(PushResult._fields)], tf.float64)

    @staticmethod
    def unpack(vector: Array) -> "PushResult[float]":
        """Return the result on the client."""
        return PushResult(*vector.tolist())
