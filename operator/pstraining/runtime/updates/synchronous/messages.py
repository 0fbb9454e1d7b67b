"""Messages of a synchronous round: each one's `pack` on the sending side beside its `unpack` on the receiving side.

A reply with a type parameter has tensors as fields inside a traced function, and integers on the client.
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple

import tensorflow as tf

from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.record import RECORD_SIZE, ShardRecord
from pstraining.runtime.ps.tensors import bits
from pstraining.runtime.updates.messages import Number
from pstraining.runtime.updates.synchronous.protocol import PushObservation, mask


class RoundPlace(NamedTuple):
    """The round that a request belongs to."""

    step: Tensor
    """Global step of the worker's parameters; the round applies the next step. int64[]."""
    attempt: Tensor
    """Number of the round's attempt. int64[]."""

    @staticmethod
    def pack(step: int | None, attempt: int | None) -> Tensor:
        """Return the vector that a worker sends. int64[2]."""
        return tf.constant([step, attempt], tf.int64)

    @classmethod
    def unpack(cls, vector: Tensor) -> "RoundPlace":
        """Emit the fields of the vector on the server that received it."""
        return cls(*tf.unstack(vector))


class StepRequest(NamedTuple):
    """The arguments of every request of a step, as they are sent."""

    session: Tensor
    """Fence and generation. int64[2]."""
    identity: Tensor
    """See `Sender`. int64[2]."""
    place: Tensor
    """See `RoundPlace`. int64[2]."""
    progress: Tensor
    """The worker's progress in its data after the step. int64[3]."""
    proposed: Tensor
    """Number of the wire format that this worker proposes for the next round. int64[]."""


class ShardPushReply(NamedTuple, Generic[Number]):
    """One server's reply to a pushed gradient."""

    in_sum: Number
    """1 if the gradient is in the server's sum."""
    done: Number
    """1 or 2 if training is over; see `RecordField.DONE`."""
    step: Number
    """Updates applied on the server."""
    attempt: Number
    """The round's attempt that the sum belongs to."""
    closed: Number
    """1 if the arbiter admits no more workers; 0 on other servers."""
    admitted: Number
    """Number of workers that the arbiter admitted; 0 on other servers."""
    pushed: Number
    """Number of workers whose gradients are in the sum."""
    void: Number
    """1 if the batches are not this worker's to train."""

    def pack(self) -> Tensor:
        """Emit the reply on the server. int64[8]."""
        return tf.stack([tf.cast(field, tf.int64) for field in self])

    @staticmethod
    def unpack(vector: Array) -> "ShardPushReply[int]":
        """Return one server's reply on the client."""
        return ShardPushReply(*map(int, vector))

    @staticmethod
    def read_all(replies: Tensor) -> "ShardPushReply[Tensor]":
        """Emit the fields of all servers' stacked replies, int64[servers, 8]; each field is int64[servers]."""
        return ShardPushReply(*tf.unstack(replies, axis=1))


class PushReply(NamedTuple):
    """All servers' replies to a pushed gradient, and the result that the same call fetched."""

    replies: Array
    """Each server's `ShardPushReply`, the arbiter's first. int64[servers, 8]."""
    fetched: Array
    """See `FetchReply`. int64[5]."""

    @staticmethod
    def empty(servers: int) -> "PushReply":
        """Emit replies of zeros from this number of servers."""
        return PushReply(
            tf.zeros([servers, len(ShardPushReply._fields)], tf.int64), tf.zeros([len(FetchReply._fields)], tf.int64)
        )


def push_observation(replies: Array) -> PushObservation:
    """Return the input of `protocol.push_status` on the client from all servers' stacked replies."""
    shards = [ShardPushReply.unpack(reply) for reply in replies]
    arbiter = shards[0]
    return PushObservation(
        in_sum=tuple(bool(shard.in_sum) for shard in shards),
        pushed=tuple(shard.pushed for shard in shards),
        admitted=arbiter.admitted,
        closed=bool(arbiter.closed),
        void=bool(arbiter.void),
    )


class LookReply(NamedTuple):
    """One server's state of the round."""

    record: ShardRecord
    attempt: int
    """The round's attempt that `pushed` belongs to."""
    closed: bool
    """Whether the arbiter admits no more workers."""
    last_round: int
    """The last global step that the asking worker's gradient is part of."""
    pushed: int
    """Workers whose gradients are in the server's sum, as a bit mask."""
    admitted: int
    """Workers that the arbiter admitted, as a bit mask; 0 on other servers."""
    alive: int
    """Workers with a recent heartbeat on the arbiter, as a bit mask; 0 on other servers."""

    @staticmethod
    def pack(
        record: Tensor, attempt: Tensor, closed: Tensor, last_round: Tensor, sets: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Emit the reply on the server: numbers, int64[8], and sets of workers, uint8[1 or 3, WORKER_SLOTS / 8].

        Args:
            record: the server's record. int64[5].
            attempt: int64[].
            closed: int64[].
            last_round: int64[].
            sets: pushed, and on the arbiter admitted and alive; 1 for every worker in it. int64[WORKER_SLOTS] each.
        """
        return tf.concat([record, tf.stack([attempt, closed, last_round])], 0), bits(tf.stack(sets))

    @staticmethod
    def unpack(numbers: Array, sets: Array) -> "LookReply":
        """Return the reply on the client."""
        attempt, closed, last_round = map(int, numbers[RECORD_SIZE:])
        pushed, admitted, alive = unpack_sets(sets, 3)
        record = ShardRecord.from_vector(numbers[:RECORD_SIZE])
        return LookReply(record, attempt, bool(closed), last_round, pushed, admitted, alive)


def unpack_sets(sets: Array, number: int) -> list[int]:
    """Return `number` sets of workers as bit masks, from the rows that a server sent; 0 for each missing row."""
    masks = [mask(row.tobytes()) for row in sets]
    return [*masks, *[0] * (number - len(masks))]


class ApplyReply(NamedTuple, Generic[Number]):
    """One server's reply to a request to apply the step."""

    applied: Number
    """1 if the server has applied the step."""
    last_round: Number
    """The last global step that the worker's gradient is part of; in hybrid rounds the attempt of the last step."""
    format: Number
    """Number of the current round's wire format."""

    def pack(self) -> Tensor:
        """Emit the reply on the server. int64[3]."""
        return tf.stack([tf.cast(field, tf.int64) for field in self])

    @staticmethod
    def read(vector: Tensor) -> "ApplyReply[Tensor]":
        """Emit the fields of an `ApplyReply`, or the equal first fields of a `FetchReply`."""
        return ApplyReply(*tf.unstack(vector[: len(ApplyReply._fields)]))


class FetchReply(NamedTuple, Generic[Number]):
    """The reply to a request to apply the step and fetch its result: of one server, and of all of them together."""

    applied: Number
    """1 if the arbiter has applied the step."""
    last_round: Number
    """The last global step that the worker's gradient is part of."""
    format: Number
    """Number of the current round's wire format."""
    fetched: Number
    """Of one server: 1 if the step can be fetched in the worker's format. Of all: 1 if the local parameters are those
    of the next step now."""
    scale: Number
    """The loss scale of the current round, as `LossScale.bits`; 0 if servers decide none."""

    def pack(self) -> Tensor:
        """Emit the reply. int64[5]."""
        return tf.stack([tf.cast(field, tf.int64) for field in self])

    @staticmethod
    def read(vector: Tensor) -> "FetchReply[Tensor]":
        """Emit the fields of one server's reply."""
        return FetchReply(*tf.unstack(vector))

    @staticmethod
    def unpack(vector: Array) -> "FetchReply[int]":
        """Return the reply on the client."""
        return FetchReply(*map(int, vector))


class PullHeader(NamedTuple, Generic[Number]):
    """The numbers that come with pulled parameters."""

    step: Number
    """Updates applied on the server."""
    format: Number
    """Number of the current round's wire format."""
    scale: Number
    """See `FetchReply`."""

    def pack(self) -> Tensor:
        """Emit the header on the server. int64[3]."""
        return tf.stack([self.step, self.format, self.scale])

    @staticmethod
    def read(vector: Tensor) -> "PullHeader[Tensor]":
        """Emit the fields on the worker."""
        return PullHeader(*tf.unstack(vector))

    @staticmethod
    def unpack(vector: Array) -> "PullHeader[int]":
        """Return one server's header on the client."""
        return PullHeader(*map(int, vector))


class StagedStats(NamedTuple):
    """The numbers that a primary sends its standbys with the input of a step."""

    weight: Tensor
    """Weight of all gradients together. float64[]."""
    losses: Tensor
    """Sum of their losses times weights, and of the weights. float64[2]."""
    format: Tensor
    """Number of the next round's wire format. float64[]."""
    overflowed: Tensor
    """1 if the loss is scaled and a gradient is not finite. float64[]."""
    rates: Tensor
    """The primary's learning rates in the step; see `Shard.learning_rates`. float64[optimizers]."""
    norms: Tensor
    """The sums of squares by which the primary has clipped the mean, and those by which the step scales updates.

    Empty if the step needs no norms. float64[length].
    """

    def pack(self) -> Tensor:
        """Emit the numbers on the primary. float64[5 + optimizers + length]."""
        return tf.concat([[self.weight], self.losses, [self.format, self.overflowed], self.rates, self.norms], 0)

    @classmethod
    def unpack(cls, vector: Tensor, optimizers: int) -> "StagedStats":
        """Emit the fields on the standby."""
        rates, norms = vector[5 : 5 + optimizers], vector[5 + optimizers :]
        return cls(vector[0], vector[1:3], vector[3], vector[4], rates, norms)
