"""Hybrid rounds on both members of a shard: those of `updates.hybrid.server`, decided as in
`updates.synchronous.two_phase_commit`.

Rows of tables come to a standby as in synchronous rounds. What workers hold of a step, the sum of the dense gradients,
is told by the attempt that the step was made in; so the standby keeps that, too, and how workers are reached. Who takes
over has no ring: workers form the next one.
"""

import tensorflow as tf

from pstraining.runtime.model.tensor import Operation, Tensor, Variable
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.updates.hybrid.messages import StandbyState
from pstraining.runtime.updates.hybrid.server import HybridAccumulators, HybridRoundOps
from pstraining.runtime.updates.synchronous.accumulators import RoundConfig
from pstraining.runtime.updates.synchronous.two_phase_commit import (
    PrimaryRoundOps,
    ReplicatedAccumulators,
    StandbyRoundOps,
)


class ReplicatedHybridAccumulators(HybridAccumulators, ReplicatedAccumulators):
    """The variables of hybrid rounds on a server that is a primary or a standby."""

    @property
    def transient(self) -> list[Variable]:
        """Variables of the current round, and deadlines on this server's clock."""
        own = [self.members, self.barred_until, self.paused_until, self.claim, self.claimed_until]
        return [*super().transient, *own]

    def void(self, attempt: Tensor) -> list[Operation]:
        """Emits starting over under another view: without a ring, and nothing is held up."""
        anew = [self.members, self.paused_until, self.claimed_until]
        return [
            *super().void(attempt),
            *(variable.assign(tf.zeros_like(variable.read_value()), read_value=False) for variable in anew),
        ]


class HybridPrimaryRoundOps(HybridRoundOps, PrimaryRoundOps):
    """Emits a primary's part in hybrid rounds whose steps its standby makes, too."""

    def _is_paused(self) -> Tensor:
        # A prepared round's step may have been made by the standby: it is too late.
        return super()._is_paused() & self._may_renew()


class HybridStandbyRoundOps(HybridRoundOps, StandbyRoundOps):
    """Emits a standby's part."""

    def state(self) -> Tensor:
        """Return the packed `StandbyState`. int64[6]."""

        def body() -> Tensor:
            return StandbyState.pack(self._shard.record.read_value(), self._hybrid.behind.read_value())

        return self._critical([], body)

    def _attempt(self) -> Tensor:
        return self._staged_place().attempt

    def _is_paused(self) -> Tensor:
        return tf.constant(False)  # that is the arbiter's to say: it has prepared the round


def primary_hybrid_ops(shard: Shard, config: RoundConfig) -> HybridRoundOps:
    """Return the round operations of a primary."""
    return (HybridPrimaryRoundOps if isinstance(shard.mode_state, ReplicatedAccumulators) else HybridRoundOps)(
        shard, config
    )
