"""Hybrid rounds on both members of a shard: those of `updates.hybrid.server`, decided as in
`updates.synchronous.two_phase_commit`.

A standby receives rows of tables as in synchronous rounds. The attempt in which a step was applied identifies the
workers' sum of dense gradients, so the standby keeps that attempt, and the workers' addresses. After a failover there
is no ring: workers form the next one.
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
        """Emit the reset under a new view: no ring, no pause and no claim."""
        cleared = [self.members, self.paused_until, self.claimed_until]
        return [
            *super().void(attempt),
            *(variable.assign(tf.zeros_like(variable.read_value()), read_value=False) for variable in cleared),
        ]


class HybridPrimaryRoundOps(HybridRoundOps, PrimaryRoundOps):
    """Emits a primary's operations in hybrid rounds that its standbys apply as well."""

    def _is_paused(self) -> Tensor:
        # The standby may have applied the step of a prepared round: it is too late for a pause.
        return super()._is_paused() & self._may_renew()


class HybridStandbyRoundOps(HybridRoundOps, StandbyRoundOps):
    """Emits a standby's operations in hybrid rounds."""

    def state(self) -> Tensor:
        """Return the packed `StandbyState`. int64[6]."""

        def body() -> Tensor:
            return StandbyState.pack(self._shard.record.read_value(), self._hybrid.behind.read_value())

        return self._critical([], body)

    def _attempt(self) -> Tensor:
        return self._staged_place().attempt

    def _totals(self) -> Tensor:
        return self._replicated.staged_stats().norms

    def _is_paused(self) -> Tensor:
        return tf.constant(False)  # only the arbiter decides that, and it has prepared the round


def primary_hybrid_ops(shard: Shard, config: RoundConfig) -> HybridRoundOps:
    """Return the round operations of a primary."""
    return (HybridPrimaryRoundOps if isinstance(shard.mode_state, ReplicatedAccumulators) else HybridRoundOps)(
        shard, config
    )
