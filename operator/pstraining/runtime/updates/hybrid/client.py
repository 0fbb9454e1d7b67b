"""The traced functions of a worker's hybrid steps."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import Batch, Tensor, TracedFunction
from pstraining.runtime.ps.critical_section import arbiter_first
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.updates.gradients import NEVER, GradientComputer, LocalGradient, Rows, ShardGradient
from pstraining.runtime.updates.hybrid.messages import DenseAge, FollowReply
from pstraining.runtime.updates.hybrid.server import HybridRoundOps
from pstraining.runtime.updates.hybrid.two_phase_commit import HybridStandbyRoundOps
from pstraining.runtime.updates.synchronous.messages import ApplyReply, RoundPlace
from pstraining.runtime.updates.synchronous.two_phase_commit import decided


class HybridOperations:
    """Traced functions of a step; each returns when every server that it calls has replied.

    Args:
        store: the model and the servers.
        servers: the primaries' operations, the arbiter's first.
        standbys: the operations of each server's standbys, which apply the same steps.
        computer: computes gradients.
    """

    def __init__(
        self,
        store: ParameterStore,
        servers: Sequence[HybridRoundOps],
        standbys: Sequence[Sequence[HybridStandbyRoundOps]],
        computer: GradientComputer,
    ) -> None:
        self._client, self._local, self._home = store.client, store.client.local, store.client.to_local
        self.servers, self._standbys, self._computer = servers, standbys, computer
        arbiter, home = servers[0], self._home
        arbiters = [arbiter, *standbys[0]]
        shards = [[server, *own] for server, own in zip(servers, standbys, strict=True)]

        def traced(emit: Callable[..., Tensor]) -> TracedFunction:
            function: TracedFunction = tf.function(emit, autograph=False, reduce_retracing=True)
            return function

        def on_each(operations: Sequence[Callable[..., Tensor]]) -> TracedFunction:
            return traced(lambda *arguments: self._stacked([operation(*arguments) for operation in operations]))

        def store_all(session: Tensor, step: Tensor, values: Sequence[Sequence[Tensor]]) -> Tensor:
            pairs = zip(shards, values, strict=True)
            return self._stacked([member.store(session, step, own) for members, own in pairs for member in members])

        self.compute = traced(self._emit_compute)
        self.look = traced(self._emit_look)
        self.push = traced(self._emit_push)
        self.apply, self.follow = traced(self._emit_apply), traced(self._emit_follow)
        """`apply` applies the step; `follow` applies on other servers the step that the arbiter has applied."""
        self.register_peer = on_each([member.register_peer for member in arbiters])
        self.give_up_state = on_each([member.give_up_state for member in arbiters])
        self.form_ring = traced(lambda *arguments: home(arbiter.form_ring(*arguments)))
        self.members = traced(lambda: home(arbiter.members()))
        self.claim = traced(lambda *arguments: home(arbiter.claim(*arguments)))
        self.made_norms = traced(lambda: home(arbiter.made_norms()))
        self.load = traced(lambda: [home(server.load()) for server in servers])
        self.store = traced(store_all)
        self.rates = traced(lambda: [home(server.learning_rates()) for server in servers])

    def fetch_rates(self) -> Array:
        """Return the learning rate of each optimizer on the servers; NaN for a schedule. float64[optimizers]."""
        # It is NaN also on a server on which the optimizer trains nothing.
        found: Array = np.fmax.reduce(self._client.call(self.rates))
        return found

    def load_dense(self, step: int) -> list[Array] | None:
        """Return the servers' dense parameters; None unless they are those of this step."""
        found = self._client.call(self.load)
        if any(DenseAge.unpack(age) != DenseAge(step, behind=0) for age, _ in found):
            return None
        return [value for _, values in found for value in values]

    def _emit_compute(self, batch: Batch, place: Tensor) -> LocalGradient:
        """Compute a gradient, or nothing for the step NEVER."""
        nothing = tf.equal(RoundPlace.unpack(place).step, NEVER)
        gradient: LocalGradient = tf.cond(nothing, self._computer.zeros, lambda: self._computer.emit(batch))
        return gradient

    def _emit_look(self, who: Tensor) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
        """Return every server's `HybridLookReply` and every standby's `StandbyState`, packed."""
        standbys = [standby.state() for own in self._standbys for standby in own]
        return [self._home(server.look(who)) for server in self.servers], self._home(standbys)

    def _emit_push(
        self, session: Tensor, who: Tensor, place: Tensor, progress: Tensor, stats: Tensor, rows: Rows
    ) -> Tensor:
        def emit(number: int, arbiters: Tensor) -> Tensor:
            server, gradient = self.servers[number], ShardGradient(stats, [], rows[number])
            go = server.verdict(arbiters)
            return server.push(session, who, place, progress, tf.constant(0, tf.int64), go, gradient)

        return self._stacked(arbiter_first(self.servers, emit))

    def _emit_apply(self, session: Tensor, who: Tensor, place: Tensor, dense: Tensor | None = None) -> Tensor:
        """Apply the step if no input is missing.

        Args:
            session: term and generation. int64[2].
            who: worker and incarnation. int64[2].
            place: step and attempt. int64[2].
            dense: see `DenseState.squares`; None if norms are not shared. float64[1 + length].

        Returns:
            The `FollowReply`. int64[2].
        """
        request = session, who, place
        votes = decided(self.servers, self._standbys, request, dense)
        return self._emit_follow(*request, self.servers[0].unanimous(votes))

    def _emit_follow(self, session: Tensor, who: Tensor, place: Tensor, go: Tensor | None = None) -> Tensor:
        """Apply the step on the arbiter if `go` is 1 and the arbiter may, and then on the other servers.

        Returns:
            The `FollowReply`. int64[2].
        """
        followed: list[Tensor] = []

        def emit(number: int, arbiters: Tensor) -> Tensor:
            server = self.servers[number]
            for standby in self._standbys[number] if number else ():
                followed.append(standby.apply(session, who, place, standby.verdict(arbiters), tf.constant(0, tf.int64)))
            return server.apply(session, who, place, server.verdict(arbiters), tf.constant(0, tf.int64))

        heads = self._home(arbiter_first(self.servers, emit, tf.constant(0, tf.int64) if go is None else go))
        with tf.device(self._local):
            replies = [ApplyReply.read(reply) for reply in (*heads, *self._home(followed))]
            everywhere = tf.reduce_min(tf.stack([reply.applied for reply in replies]))
            return FollowReply(everywhere, made_in=replies[0].last_round).pack()

    def _stacked(self, replies: Sequence[Tensor]) -> Tensor:
        with tf.device(self._local):
            return tf.stack([self._home(reply) for reply in replies])
