"""A server as a member of a shard with standbys: its own variables, its update mode's, and its part in rounds."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import tensorflow as tf

from pstraining.runtime.model.tensor import Tensor, Variable
from pstraining.runtime.ps.critical_section import is_ahead, with_dependencies
from pstraining.runtime.ps.variables import PSVariable

LEASE_SECONDS: Final = 10.0
"""Seconds for which members apply steps after the chief's last renewal of their lease."""


class ModeVariables(Protocol):
    """The variables of an update mode on one server, as a transfer of the server's state sees them."""

    @property
    def transient(self) -> Sequence[Variable]:
        """Return the variables that a returning member does not receive: they start from initial values."""

    @property
    def carried(self) -> Sequence[PSVariable]:
        """Return the variables that the same server of another layout needs, besides those in a checkpoint."""
        return ()

    def followers(self, segment: int) -> Sequence[PSVariable]:
        """Return the variables that each step computes from all of a segment's vector, and that go with it."""


class LockstepRounds(Protocol):
    """A member's part in rounds, where standbys apply the same steps."""

    def start(self, session: Tensor, attempt: Tensor) -> Tensor:
        """Emit restarting rounds with an attempt's number, on a member that applies no steps. int64[]."""

    def follow(self, session: Tensor, step: Tensor) -> Tensor:
        """Emit applying the step after `step`, which others have applied; 1 if this call applied it. int64[]."""

    def set_learning_rates(self, fence: Tensor, rates: Tensor) -> Tensor:
        """Emit setting the optimizers' learning rates from one step on, the same on all members of a shard.

        See `Shard.set_learning_rates`.
        """

    def learning_rates(self) -> Tensor:
        """Emit the learning rates of steps that are not prepared yet; see `Shard.learning_rates`."""


class UpdatePause(NamedTuple):
    """A pause of updates that servers apply independently of each other: functions that emit operations on a shard."""

    begin: Callable[..., Tensor]
    """Begin a pause on the first server, under a fence, for a number of seconds; 1 if the server has that fence."""
    not_waiting: Callable[..., Tensor]
    """Return the live workers that may have an update under way; from the first server. int64[n]."""
    applied: Callable[..., Tensor]
    """Return the number of each worker's last update that a server has applied, outside the section."""


class MemberState(NamedTuple):
    """A server's variables as a member of a shard with standbys."""

    acceptor: PSVariable
    """The acceptor's vector; see `replication.messages.AcceptorState`. int64[n]."""
    lease: PSVariable
    """The member applies steps until then, in seconds since 1970 on its own clock. float64[]."""

    @classmethod
    def create(cls, acceptor_size: int) -> "MemberState":
        """Create the variables; inside `variables_on`, where they become the server's."""
        return cls(tf.Variable(tf.zeros([acceptor_size], tf.int64)), tf.Variable(tf.zeros([], tf.float64)))

    def is_leased(self) -> Tensor:
        """Emit whether the member may apply steps, inside the critical section; a lease that is over stays so. bool[].

        If the clock was set back, the time at which the lease ended comes again.
        """
        until = self.lease.read_value()
        holds = is_ahead(until, LEASE_SECONDS)
        kept = self.lease.assign(tf.where(holds, until, tf.zeros_like(until)), read_value=False)
        return with_dependencies([kept], holds)
