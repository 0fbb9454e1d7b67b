"""What all update modes share: the worker's side of them as a port, and what an update says about itself."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import tensorflow as tf

from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.data_ledger import NO_PROGRESS, Progress
from pstraining.runtime.ps.record import Session, ShardRecord
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.transport.client import Client
from pstraining.runtime.updates.gradients import Computation

FIRST_PAUSE: Final = 0.0002
LONGEST_PAUSE: Final = 0.01
"""Seconds between looks while others have yet to deliver; doubled from the first to the longest."""


@dataclass(frozen=True)
class Reply:
    """What a worker's step came to."""

    accepted: bool
    """Its session goes on. When only some servers took an update (a chief took over at that moment), it does not."""
    applied: bool
    """The batches are part of the parameters; if not, they are to be trained again."""
    done: bool
    """Training is over."""
    step: int
    """The job's global step after it."""
    loss: float
    """Mean over the samples."""
    finite: bool = True
    """Whether the gradient was free of NaN and infinity; one that is not is left out, and counts as applied."""
    staleness: int = 0
    """How many updates of others were made since the parameters that it was computed on."""
    ahead: int = 0
    """How many updates this worker is ahead of the slowest living one, where that is bounded."""


@dataclass(frozen=True)
class Identity:
    """A worker's process, as the servers know it."""

    worker: int
    incarnation: int
    """When the process began, in nanoseconds since 1970: of two with the same index, the newer one counts."""

    def tensor(self) -> Tensor:
        """Index and incarnation. int64[2]."""
        return tf.constant([self.worker, self.incarnation], tf.int64)


def as_numbers(progress: Progress | None) -> Sequence[int]:
    """A progress as servers take it, three numbers."""
    return progress.numbers() if progress else NO_PROGRESS


def as_tensor(progress: Progress | None) -> Tensor:
    """The same. int64[3]."""
    return tf.constant(as_numbers(progress), tf.int64)


class Updates(Protocol):
    """How a worker's batches get into the parameters."""

    counts_once: bool
    """Whether the same batches, given again because their reply was lost, count once as long as the set of parameters
    is the same. If not, the servers have to be asked what has come of them."""

    def prepare(self, batches: Sequence[Any]) -> None:
        """Do whatever takes long the first time, without an effect: from `begin` on others may wait for this worker."""

    def begin(self, session: Session) -> None:
        """Start over with what the servers hold: nothing that was fetched earlier counts any more."""

    def rest(self, shards: Sequence[ShardRecord]) -> None:
        """Do what others may want of this worker; called now and then while it has nothing to train.

        Args:
            shards: what the servers have just said of themselves.

        Raises:
            ShardLostError: a server is gone.
        """

    def step(self, batches: Sequence[Any], progress: Progress | None = None) -> Reply:
        """Make one update of these batches, and with it move the worker on in its data.

        Raises:
            ShardLostError: from `Client.call`; some servers may have applied it.
        """


class OnAnyMembers(ABC):
    """What the modes have in common: a worker's side of them can go to any members of the shards.

    See `worker.router.Rebindable`.
    """

    _store: ParameterStore
    _client: Client
    _computation: Computation

    def bind(self, store: ParameterStore) -> Self:
        """The same worker with other members of the shards; what it remembers, has and owes the servers, is shared."""
        other = copy.copy(self)
        other._store, other._computation = store, self._computation.on(store)
        other._trace()
        return other

    def trace(self, batches: Sequence[Any]) -> None:
        """Make the functions of a usual step, and run none of them: another thread may train meanwhile."""
        for function, arguments in self._of_a_usual_step(batches):
            function.get_concrete_function(*arguments)

    def rehearse(self, batches: Sequence[Any]) -> None:
        """Run them, without an effect: another thread may train meanwhile.

        Raises:
            ShardLostError: a server is gone.
        """
        for function, arguments in self._of_a_usual_step(batches):
            self._client.run(function, *arguments)

    @abstractmethod
    def _trace(self) -> None:
        """Make the functions on the store's servers; they are traced when they are first called."""

    @abstractmethod
    def _of_a_usual_step(self, batches: Sequence[Any]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        """Its functions, each with what makes it do nothing."""

    def _carried(self, session: Session) -> Tensor:
        """A session as servers take it. int64[2]."""
        with tf.device(self._client.local):
            return tf.constant([session.term, session.generation], tf.int64)
