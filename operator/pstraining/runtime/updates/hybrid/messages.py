"""Messages of a hybrid round: each one's `pack` on the sending side beside its `unpack` on the receiving side.

Gradients of tables and requests are those of `updates.synchronous.messages`.
"""

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple

import tensorflow as tf

from pstraining.runtime.allreduce.topology import PEER_SIZE, Peer
from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.record import RECORD_SIZE, ShardRecord
from pstraining.runtime.ps.tensors import bits
from pstraining.runtime.updates.messages import Number
from pstraining.runtime.updates.synchronous.messages import unpack_sets

SUSPECTS_MAX: Final = 2
"""Number of suspected workers in a request."""


def pack_suspects(suspects: Sequence[Peer]) -> Tensor:
    """Return the suspects in the arbiter's form: worker and incarnation, -1 for none. int64[SUSPECTS_MAX, 2]."""
    rows = [[peer.worker, peer.incarnation] for peer in suspects][:SUSPECTS_MAX]
    return tf.constant([*rows, *[[-1, -1]] * (SUSPECTS_MAX - len(rows))], tf.int64)


class ArbiterState(NamedTuple, Generic[Number]):
    """The arbiter's part of a `HybridLookReply`; each field is 1 or 0, and 0 on other servers."""

    waits: Number
    """Whether the arbiter waits for workers that have not registered yet."""
    paused: Number
    """Whether steps are paused because the chief saves."""
    current: Number
    """Whether the asking process has its worker's index."""
    prepared: Number
    """Whether the round is prepared: the arbiter's standby may have applied the step."""


class HybridLookReply(NamedTuple):
    """One server's state of the round."""

    record: ShardRecord
    attempt: int
    """The round's attempt that `pushed` belongs to."""
    closed: bool
    """Whether all members of the ring have pushed."""
    made_in: int
    """The attempt in which the server applied its last step."""
    behind: int
    """Steps since the server's dense parameters were written."""
    arbiter: ArbiterState[bool]
    pushed: int
    """Workers whose rows are in the server's sum, as a bit mask."""
    admitted: int
    """Workers that the arbiter admitted, as a bit mask; 0 on other servers."""
    members: int
    """Workers in the ring of the arbiter's attempt, as a bit mask; 0 on other servers."""
    ready: int
    """Workers that are alive and reachable, as a bit mask; 0 on other servers."""

    @staticmethod
    def pack(
        record: Tensor, state: Sequence[Tensor], arbiter: ArbiterState[Tensor], sets: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Emit the reply on the server: numbers, int64[13], and sets of workers, uint8[1 or 4, WORKER_SLOTS / 8].

        Args:
            record: the server's record. int64[5].
            state: attempt, closed, made_in and behind. int64[] each.
            arbiter: bool[] or int64[] each.
            sets: pushed, and on the arbiter admitted, members and ready; 1 for every worker in it.
                int64[WORKER_SLOTS] each.
        """
        flags = [tf.cast(flag, tf.int64) for flag in arbiter]
        return tf.concat([record, tf.stack([*state, *flags])], 0), bits(tf.stack(sets))

    @staticmethod
    def unpack(numbers: Array, sets: Array) -> "HybridLookReply":
        """Return the reply on the client."""
        attempt, closed, made_in, behind, *flags = map(int, numbers[RECORD_SIZE:])
        return HybridLookReply(
            ShardRecord.from_vector(numbers[:RECORD_SIZE]),
            attempt,
            bool(closed),
            made_in,
            behind,
            ArbiterState(*map(bool, flags)),
            *unpack_sets(sets, 4),
        )


class StandbyState(NamedTuple):
    """A standby's state."""

    record: ShardRecord
    behind: int
    """Steps since the standby's dense parameters were written."""

    @staticmethod
    def pack(record: Tensor, behind: Tensor) -> Tensor:
        """Emit the state on the standby. int64[6]."""
        return tf.concat([record, [behind]], 0)

    @staticmethod
    def unpack(vector: Array) -> "StandbyState":
        """Return the state on the client."""
        return StandbyState(ShardRecord.from_vector(vector[:RECORD_SIZE]), int(vector[RECORD_SIZE]))


class DenseAge(NamedTuple, Generic[Number]):
    """How current a server's dense parameters are."""

    step: Number
    """Updates applied on the server."""
    behind: Number
    """Steps since the server's dense parameters were written."""

    def pack(self) -> Tensor:
        """Emit the numbers on the server. int64[2]."""
        return tf.stack([self.step, self.behind])

    @staticmethod
    def unpack(vector: Array) -> "DenseAge[int]":
        """Return the numbers on the client."""
        return DenseAge(*map(int, vector))


class FollowReply(NamedTuple, Generic[Number]):
    """All servers' reply to a request to apply the step."""

    applied: Number
    """1 if every server and standby has applied the step."""
    made_in: Number
    """The attempt in which the arbiter applied its last step."""

    def pack(self) -> Tensor:
        """Emit the reply. int64[2]."""
        return tf.stack([self.applied, self.made_in])

    @staticmethod
    def unpack(vector: Array) -> "FollowReply[int]":
        """Return the reply on the client."""
        return FollowReply(*map(int, vector))


class RingMembers(NamedTuple):
    """The members of a ring."""

    attempt: int
    """The attempt that the ring belongs to."""
    peers: tuple[Peer, ...]

    @staticmethod
    def pack(attempt: Tensor, members: Tensor, peers: Tensor) -> Tensor:
        """Emit the members on the arbiter. int64[1 + number of members, 1 + PEER_SIZE].

        Args:
            attempt: int64[].
            members: 1 for every worker in the ring. int64[WORKER_SLOTS].
            peers: every worker's `Peer.numbers`. int64[WORKER_SLOTS, PEER_SIZE].
        """
        workers = tf.where(tf.equal(members, 1))
        head = tf.reshape(tf.one_hot(0, 1 + PEER_SIZE, dtype=tf.int64) * attempt, [1, -1])
        return tf.concat([head, tf.concat([workers, tf.gather(peers, workers[:, 0])], 1)], 0)

    @staticmethod
    def unpack(matrix: Array) -> "RingMembers":
        """Return the members on the client."""
        head, *rows = matrix.tolist()
        return RingMembers(head[0], tuple(Peer.of(worker, numbers) for worker, *numbers in rows))
