"""Vectors of the store and its data ledger: each one's `pack` on the sending side beside its `unpack` on the other.

A message is one tensor if possible, because each tensor that is sent costs a call. A message with a
type parameter has tensors as fields inside a traced function, and numbers on the client.
"""

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import tensorflow as tf

from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.record import Session

Number = TypeVar("Number")
"""A tensor inside a traced function, an int on the client."""

ASSIGNED: Final = 1
"""State of a split's reply: the worker has the split."""
EXHAUSTED: Final = 0
"""State of a split's reply: no split is left."""
SESSION_OVER: Final = -1
"""State of a split's reply: the worker's session is over, or a standby does not keep the assignment."""


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
        return cls(*tf.unstack(vector, num=len(cls._fields)))


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
        return cls(*tf.unstack(vector, num=len(cls._fields)))


class SplitReply(NamedTuple, Generic[Number]):
    """The reply to a request for a split of the data."""

    state: Number
    """ASSIGNED, EXHAUSTED or SESSION_OVER."""
    position: Number
    """The split's position in the order of all splits."""
    done: Number
    """Number of batches of the split that are already trained."""

    def pack(self) -> Tensor:
        """Emit the reply on the server. int64[3]."""
        return tf.stack([tf.cast(field, tf.int64) for field in self])

    @staticmethod
    def refusal() -> Tensor:
        """Emit the reply to a worker whose session is over. int64[3]."""
        return tf.constant([SESSION_OVER, 0, 0], tf.int64)

    @staticmethod
    def unpack(vector: Array) -> "SplitReply[int]":
        """Return the reply on the client."""
        return SplitReply(*map(int, vector))


class DataLeft(NamedTuple, Generic[Number]):
    """The data that is not trained yet."""

    following: Number
    """The first position that was assigned to no worker."""
    held: Number
    """Number of splits that workers are training."""
    first: Number
    """The first position that is not trained."""

    def pack(self) -> Tensor:
        """Emit the reply on the server. int64[3]."""
        return tf.stack([tf.cast(field, tf.int64) for field in self])

    @staticmethod
    def unpack(vector: Array) -> "DataLeft[int]":
        """Return the reply on the client."""
        return DataLeft(*map(int, vector))


class HeldSplit(NamedTuple):
    """A worker's row of the ledger, or the rows of several workers."""

    number: Tensor
    """The split's position plus one; 0: the worker has none. int64[...]."""
    done: Tensor
    """Batches of the split that are trained. int64[...]."""

    def pack(self) -> Tensor:
        """Emit the row, or the rows. int64[..., 2]."""
        return tf.stack(self, -1)

    @classmethod
    def unpack(cls, rows: Tensor) -> "HeldSplit":
        """Emit the fields of a row, or of several."""
        return cls(*tf.unstack(rows, num=len(cls._fields), axis=-1))


class SplitProgress(NamedTuple):
    """A worker's progress after an update, or that of several workers; see `data_ledger.Progress`."""

    position: Tensor
    """The split's position; negative: the update's data is not in the ledger. int64[...]."""
    done: Tensor
    """Number of batches of the split that are trained after the update. int64[...]."""
    finished: Tensor
    """1 if the whole split is trained. int64[...]."""

    @classmethod
    def unpack(cls, rows: Tensor) -> "SplitProgress":
        """Emit the fields of `data_ledger.Progress.pack`, or of several rows of that."""
        return cls(*tf.unstack(rows, num=len(cls._fields), axis=-1))


class LedgerNews(NamedTuple):
    """Changes of the ledger, for its copy on a standby."""

    rows: Tensor
    """The workers' rows, up to the last one that ever changed; see `HeldSplit`. int64[n, 2]."""
    versions: Tensor
    """How often each row has changed. int64[n]."""
    following: Tensor
    """The first position that was assigned to no worker. int64[]."""
    limit: Tensor
    """The first position that is never assigned. int64[]."""

    def pack(self) -> list[Tensor]:
        """Emit the tensors that are sent. int64[n, 2], int64[n], int64[2]."""
        return [self.rows, self.versions, tf.stack([self.following, self.limit])]

    @classmethod
    def unpack(cls, news: Sequence[Tensor]) -> "LedgerNews":
        """Emit the fields of the tensors that were received."""
        rows, versions, positions = news
        return cls(rows, versions, *tf.unstack(positions, num=2))
