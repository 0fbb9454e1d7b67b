"""The port of all update modes on a worker, and the result of a step."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self

import tensorflow as tf

from pstraining.runtime.model.tensor import Batch, Tensor, TracedFunction
from pstraining.runtime.ps.data_ledger import NO_PROGRESS, SplitPosition
from pstraining.runtime.ps.messages import Sender, SessionToken
from pstraining.runtime.ps.record import Session, ShardRecord
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.updates.gradients import GradientComputer

FIRST_PAUSE: Final = 0.0002
LONGEST_PAUSE: Final = 0.01
"""Seconds between queries while other workers have yet to push; they double from the first to the longest."""


@dataclass(frozen=True)
class StepResult:
    """The result of a worker's step."""

    session_valid: bool
    """Whether the worker's session is still valid. It is not when only some servers accepted the update."""
    applied: bool
    """Whether the update is part of the parameters. Otherwise the batches are trained again."""
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
    """A worker's process in requests to the servers."""

    worker: int
    """The worker's index, from 0."""
    incarnation: int
    """Start of the process, in nanoseconds since 1970. The newest process with an index replaces the others."""

    def tensor(self) -> Tensor:
        """Return index and incarnation; see `Sender`. int64[2]."""
        return Sender.pack(self.worker, self.incarnation)


def as_numbers(progress: SplitPosition | None) -> Sequence[int]:
    """Return a progress in the servers' form, three numbers."""
    return progress.numbers() if progress else NO_PROGRESS


def as_tensor(progress: SplitPosition | None) -> Tensor:
    """Return a progress in the servers' form. int64[3]."""
    return tf.constant(as_numbers(progress), tf.int64)


class Updates(Protocol):
    """A worker's side of an update mode: turns batches into updates of the parameters."""

    is_idempotent: bool
    """Whether a step may be repeated after a lost reply: the same batches count once in one set of parameters."""
    looks_ahead: bool
    """Whether a step computes the gradient of the next one, whose batches it then expects."""

    def warm_up(self, batches: Sequence[Batch]) -> None:
        """Trace every function of a step, without an effect.

        Call it before `start_session`: from then on, other workers may wait for this one.
        """

    def start_session(self, session: Session) -> None:
        """Start a session on the servers' current state. Parameters that were fetched earlier are discarded."""

    def on_idle(self, shards: Sequence[ShardRecord]) -> None:
        """Serve requests of the chief; called regularly while the worker has nothing to train.

        Args:
            shards: the servers' current records.

        Raises:
            ShardLostError: a server is unreachable.
        """

    def expect(self, batches: Sequence[Batch] | None) -> None:
        """Note the batches of the step after the next one, in modes that look ahead; None if they are not drawn."""

    def step(self, batches: Sequence[Batch], progress: SplitPosition | None = None) -> StepResult:
        """Apply one update with these batches, together with the worker's progress in its data.

        Raises:
            ShardLostError: from `PSClient.call`; some servers may have applied it.
        """


class BoundUpdates(ABC):
    """A worker's side of updates on one assignment of members; the common base of the modes.

    State that does not depend on the members is in an object that all bound updates
    of the worker share. See `worker.router.Rebindable`.
    """

    looks_ahead = False

    def __init__(self, store: ParameterStore, computer: GradientComputer) -> None:
        self._store, self._client, self._computer = store, store.client, computer

    def expect(self, batches: Sequence[Batch] | None) -> None:
        """Raise TypeError: a step of this mode needs only its own batches."""
        raise TypeError(f"{type(self).__name__} does not look ahead")

    @abstractmethod
    def bind(self, store: ParameterStore) -> Self:
        """Return the worker's updates on other members of the shards."""

    def trace(self, batches: Sequence[Batch]) -> None:
        """Trace the functions of a usual step without running them; another thread may train meanwhile."""
        for function, arguments in self._usual_step_functions(batches):
            function.get_concrete_function(*arguments)

    def dry_run(self, batches: Sequence[Batch]) -> None:
        """Run the functions of a usual step without an effect; another thread may train meanwhile.

        Raises:
            ShardLostError: a server is unreachable.
        """
        for function, arguments in self._usual_step_functions(batches):
            self._client.run(function, *arguments)

    @abstractmethod
    def _usual_step_functions(self, batches: Sequence[Batch]) -> Iterator[tuple[TracedFunction, tuple[object, ...]]]:
        """Yield the functions of a usual step, each with arguments that have no effect."""

    def _session_tensor(self, session: Session) -> Tensor:
        """Return a session in the servers' form. int64[2]."""
        with tf.device(self._client.local):
            return SessionToken.pack(session)
