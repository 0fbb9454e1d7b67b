"""Vectors of view changes and state transfers: each one's `pack` on a server beside its `unpack` on the chief.

Fields are tensors inside a traced function, and numbers on the chief, which receives a function's result.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import tensorflow as tf

from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.record import ShardRecord
from pstraining.runtime.replication import encoding
from pstraining.runtime.replication.view import NO_BALLOT, Ballot, ProcessStatus

NOT_A_LEARNER: Final = -1
"""Reply to a chunk from a member that is not a learner under the sender's ballot."""


class AcceptorState(NamedTuple):
    """An acceptor's vector on its server."""

    incarnation: Tensor
    """The process; 0: it has no incarnation yet. int64[]."""
    is_voter: Tensor
    """1 if the process votes for its task. int64[]."""
    transferred_in: Tensor
    """Number of the ballot under which the member received its state. int64[]."""
    ballot: Tensor
    """Number of the accepted view's ballot; 0: none was accepted. int64[]."""
    chunks: Tensor
    """Chunks of the state that a learner has received under its view. int64[]."""
    view: Tensor
    """The accepted view; see `encoding.encode`. int64[1 + 2 * shards * members]."""

    def pack(self) -> Tensor:
        """Emit the vector. int64[n]."""
        return tf.concat([tf.stack(self[: encoding.HEAD]), self.view], 0)

    @classmethod
    def unpack(cls, vector: Tensor) -> "AcceptorState":
        """Return the fields of the vector, on a server or on the chief."""
        incarnation, is_voter, transferred_in, ballot, chunks = (vector[index] for index in range(encoding.HEAD))
        return cls(incarnation, is_voter, transferred_in, ballot, chunks, vector[encoding.HEAD :])

    def received(self, fence: Tensor) -> Tensor:
        """Emit the number of chunks that were received under the view of this ballot. int64[]."""
        return tf.where(tf.equal(self.ballot, fence), self.chunks, 0)


class MemberReply(NamedTuple):
    """A member's reply to a poll."""

    record: Tensor
    """See `Shard.record`; zeros if the server is empty. int64[5]."""
    acceptor: Tensor
    """See `AcceptorState`; zeros if the server is empty. int64[n]."""
    leased: Tensor
    """Whether the member's lease holds. bool[]."""
    draining: Tensor
    """Whether the member's pod is being terminated. bool[]."""

    @property
    def promised(self) -> Ballot:
        """Return the highest ballot that the member has promised."""
        return encoding.ballot(ShardRecord.from_vector(self.record).fence)

    def status(self, tasks: Sequence[str], *, shards: int, members: int) -> ProcessStatus:
        """Return the member's status on the chief.

        Args:
            tasks: the tasks of all servers, in their order.
            shards: the number of shards.
            members: the maximum number of members of each shard.
        """
        record, own = ShardRecord.from_vector(self.record), AcceptorState.unpack(self.acceptor)
        accepted = encoding.ballot(int(own.ballot))
        return ProcessStatus(
            incarnation=int(own.incarnation),
            promised=encoding.ballot(record.fence),
            is_voter=bool(own.is_voter),
            view=encoding.decode(accepted, own.view, tasks, shards=shards, members=members),
            active=record.generation > 0 and bool(self.leased),
            step=record.step if record.generation else None,
            generation=Ballot(abs(record.generation), 0) if record.generation else NO_BALLOT,
            transferred_in=encoding.ballot(int(own.transferred_in)),
            chunks=int(own.chunks),
            draining=bool(self.draining),
        )


class StateCopy(NamedTuple):
    """A member's state, or a part of it, read at one moment."""

    record: Tensor
    """The member's record. int64[5]."""
    values: Sequence[Tensor]
    """Values of variables, in an order that the source and the target share."""


class ChunkHeader(NamedTuple):
    """The numbers that are sent with a chunk."""

    number: Tensor
    """The chunk's number in its `ChunkPlan`. int64[]."""
    incarnation: Tensor
    """Incarnation of the target process. int64[]."""
    fence: Tensor
    """The ballot's number. int64[]."""
    begin: Tensor
    """The first element or row. int64[]."""
    end: Tensor
    """The index after the last element or row. int64[]."""

    @staticmethod
    def pack(number: int, incarnation: int, fence: int, begin: int, end: int) -> Tensor:
        """Return the vector that the chief sends. int64[5]."""
        return tf.constant([number, incarnation, fence, begin, end], tf.int64)

    @classmethod
    def unpack(cls, vector: Tensor) -> "ChunkHeader":
        """Emit the fields on the servers."""
        return cls(*tf.unstack(vector, num=len(cls._fields)))
