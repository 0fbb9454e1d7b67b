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
from pstraining.runtime.updates.gradients import GradientComputer
from pstraining.runtime.updates.messages import Sender, SessionToken

FIRST_PAUSE: Final = 0.0002
LONGEST_PAUSE: Final = 0.01
"""Seconds between looks while others have yet to deliver; doubled from the first to the longest."""


@dataclass(frozen=True)
class StepResult:
    """The result of a worker's step."""

    session_valid: bool
    """Whether the worker's session is still valid. It is not when only some servers accepted the update."""
    applied: bool
    """Whether the update is part of the parameters. If not, the batches are trained again."""
    done: bool
    """Whether training is over."""
    step: int
    """The job's global step after the update."""
    loss: float
    """Mean loss over the samples."""
    finite: bool = True
    """Whether the gradient has no NaN or infinity. A gradient that is not finite is skipped and counts as applied."""
    staleness: int = 0
    """Updates by other workers since the parameters that the gradient was computed on."""
    ahead: int = 0
    """Updates by which this worker is ahead of the slowest live worker, if that is bounded."""


@dataclass(frozen=True)
class Identity:
    """A worker's process, as the servers know it."""

    worker: int
    incarnation: int
    """When the process began, in nanoseconds since 1970: of two with the same index, the newer one counts."""

    def tensor(self) -> Tensor:
        """Index and incarnation. int64[2]."""
        return Sender.pack(self.worker, self.incarnation)


def as_numbers(progress: Progress | None) -> Sequence[int]:
    """A progress as servers take it, three numbers."""
    return progress.numbers() if progress else NO_PROGRESS


def as_tensor(progress: Progress | None) -> Tensor:
    """The same. int64[3]."""
    return tf.constant(as_numbers(progress), tf.int64)


class Updates(Protocol):
    """How a worker's batches get into the parameters."""

    is_idempotent: bool
    """Whether a step may be repeated after a lost reply: the same batches count once in one set of parameters."""

    def warm_up(self, batches: Sequence[Any]) -> None:
        """Trace every function of a step, without an effect. After `start_session` others may wait for this worker."""

    def start_session(self, session: Session) -> None:
        """Start a session on the servers' current state. Parameters that were fetched earlier are discarded."""

    def on_idle(self, shards: Sequence[ShardRecord]) -> None:
        """Serve requests of the chief; called regularly while the worker has nothing to train.

        Args:
            shards: the servers' current records.

        Raises:
            ShardLostError: a server is gone.
        """

    def step(self, batches: Sequence[Any], progress: Progress | None = None) -> StepResult:
        """Apply one update with these batches, and advance the worker's data progress with it.

        Raises:
            ShardLostError: from `Client.call`; some servers may have applied it.
        """


class OnAnyMembers(ABC):
    """The common base of the modes: a worker's side that can be bound to any members of the shards.

    See `worker.router.Rebindable`.
    """

    _store: ParameterStore
    _client: Client
    _computer: GradientComputer

    def bind(self, store: ParameterStore) -> Self:
        """Return the same worker with other members of the shards; its progress and residuals are shared."""
        other = copy.copy(self)
        other._store, other._computer = store, self._computer.bind(store)
        other._trace()
        return other

    def trace(self, batches: Sequence[Any]) -> None:
        """Trace the functions of a usual step without running them; another thread may train meanwhile."""
        for function, arguments in self._usual_step_functions(batches):
            function.get_concrete_function(*arguments)

    def dry_run(self, batches: Sequence[Any]) -> None:
        """Run the functions of a usual step without an effect; another thread may train meanwhile.

        Raises:
            ShardLostError: a server is gone.
        """
        for function, arguments in self._usual_step_functions(batches):
            self._client.run(function, *arguments)

    @abstractmethod
    def _trace(self) -> None:
        """Create the functions for the store's servers; each is traced at its first call."""

    @abstractmethod
    def _usual_step_functions(self, batches: Sequence[Any]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        """Yield the functions of a usual step, each with arguments that have no effect."""

    def _session_tensor(self, session: Session) -> Tensor:
        """Return a session in the servers' form. int64[2]."""
        with tf.device(self._client.local):
            return SessionToken.pack(session)
