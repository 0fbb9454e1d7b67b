"""The traced functions of a worker's synchronous steps."""

from collections.abc import Callable, Sequence
from functools import partial

import tensorflow as tf

from pstraining.runtime.compression.push import Parts, PushCompressor, as_parts
from pstraining.runtime.model.tensor import Batch, Operation, Tensor, TracedFunction
from pstraining.runtime.ps.critical_section import (
    applied,
    arbiter_first,
    not_applied,
    with_dependencies,
)
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.updates.gradients import NEVER, GradientComputer, LocalGradient, Rows, ShardGradient
from pstraining.runtime.updates.synchronous.messages import (
    ApplyReply,
    FetchReply,
    PullHeader,
    PushReply,
    RoundPlace,
    ShardPushReply,
    StepRequest,
)
from pstraining.runtime.updates.synchronous.norms import settled
from pstraining.runtime.updates.synchronous.server import RoundOps
from pstraining.runtime.updates.synchronous.two_phase_commit import StandbyRoundOps, decided


class SyncOperations:
    """Traced functions of a step; each returns when every server that it calls has replied.

    Args:
        store: the model and the servers.
        servers: the primaries' operations, the arbiter's first.
        computer: computes gradients.
        compressor: encodes gradients.
        formats: number of wire formats.
        standbys: the operations of each server's standbys, which apply the same steps.
    """

    def __init__(
        self,
        store: ParameterStore,
        servers: Sequence[RoundOps],
        computer: GradientComputer,
        compressor: PushCompressor,
        formats: int,
        standbys: Sequence[Sequence[StandbyRoundOps]],
    ) -> None:
        client = store.client
        self._store, self._local, self._home = store, client.local, client.to_local
        self._compute, self._to_compute = client.compute, client.to_compute
        self._servers, self._computer, self._compressor, self._standbys = servers, computer, compressor, standbys
        self._shadowed = [_shadowed(servers, store, fmt) for fmt in range(formats)]

        self.is_shadowed = any(map(any, self._shadowed))
        """Whether a variable is fetched as a move of the local value."""

        def traced(emit: Callable[..., Tensor], **options: bool) -> TracedFunction:
            function: TracedFunction = tf.function(emit, autograph=False, **options)
            return function

        def by_format(emit: Callable[..., Tensor], **options: bool) -> list[TracedFunction]:
            return [traced(partial(emit, fmt), **options) for fmt in range(formats)]

        self.pull = traced(self._emit_pull)
        self.look = traced(self._emit_look)
        self.admit = traced(lambda request: self._home(servers[0].admit(*request[:3])))
        self.give_up = traced(lambda request: self._home(servers[0].give_up(request.session, request.place)))
        compute_and_push = self._emit_compute_or_nothing if store.updates.paired else self._emit_compute_and_push
        self.compute_and_push = by_format(compute_and_push, reduce_retracing=True)
        self.push = by_format(self._emit_push, reduce_retracing=True)
        self.apply, self.fetch = by_format(self._emit_apply), by_format(self._emit_fetch)
        """`apply` applies the step; `fetch` checks whether another worker has applied it."""

    def _emit_pull(self, place: Tensor) -> Tensor:
        """Pull the parameters; return each server's `PullHeader`. int64[servers, 3]."""
        heads, parts = zip(*(server.pull() for server in self._servers), strict=True)
        heads, vectors = self._home(heads), self._to_compute(parts)

        def assign() -> Tensor:
            held = [self._store.emit_hold(vectors)]
            return with_dependencies([*held, *self._hold_scale(PullHeader.read(heads[0]).scale)], applied())

        with tf.device(self._local):
            held = tf.cond(tf.equal(RoundPlace.unpack(place).step, NEVER), not_applied, assign)
            return with_dependencies([held], tf.stack(heads))

    def _emit_compute_and_push(self, fmt: int, batch: Batch, request: StepRequest) -> tuple[LocalGradient, PushReply]:
        """Compute a gradient and push it. The gradient remains on the device that computes."""
        with tf.device(self._local):
            gradient = self._computer.emit(batch)
            parts = as_parts(gradient.vectors)
            return gradient, self._emit_push(fmt, gradient.stats, parts, gradient.rows, request)

    def _emit_compute_or_nothing(self, fmt: int, batch: Batch, request: StepRequest) -> tuple[LocalGradient, PushReply]:
        """Compute and push a gradient, or nothing for the step NEVER."""
        nothing = tf.equal(RoundPlace.unpack(request.place).step, NEVER)
        found: tuple[LocalGradient, PushReply] = tf.cond(
            nothing, self._nothing, lambda: self._emit_compute_and_push(fmt, batch, request)
        )
        return found

    def _nothing(self) -> tuple[LocalGradient, PushReply]:
        """Return zeros in the shape of a batch's result."""
        with tf.device(self._local):
            return self._computer.zeros(), PushReply.empty(len(self._store.shards))

    def _emit_push(self, fmt: int, stats: Tensor, parts: Parts, rows: Rows, request: StepRequest) -> PushReply:
        """Push the gradient; if every server then has all gradients, apply the step and fetch the result.

        With standbys the last worker applies the step with another call. Otherwise all workers but one would make every
        server and standby check for a step that is not due yet.
        """

        def emit(number: int, arbiters: Tensor) -> Tensor:
            vectors = self._compressor.decode(self._store.shards[number], parts[number], fmt)
            server = self._servers[number]
            return server.push(*request, server.verdict(arbiters), ShardGradient(stats, vectors, rows[number]))

        answers = arbiter_first(self._servers, emit)
        home = self._home(answers)
        with tf.device(self._local):
            replies = tf.stack(home)
            if self._store.standbys:
                return PushReply.empty(len(self._store.shards))._replace(replies=replies)
        with tf.device(self._store.shards[0].device):
            everyone = ShardPushReply.read_all(tf.stack(answers))
            closed, admitted = everyone.closed[0], everyone.admitted[0]  # the arbiter's
            everywhere = tf.reduce_all(tf.equal(everyone.in_sum, 1) & tf.equal(everyone.pushed, admitted))
            go = tf.cast(everywhere & tf.equal(closed, 1), tf.int64)
        votes = [go, *settled(self._servers, request.session, request.place, go)]
        return PushReply(replies, self._emit_follow(fmt, request, votes))

    def _emit_look(self, identity: Tensor) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
        """Return every server's `LookReply`, packed, and the records of the standbys."""
        standbys = [shard.read() for shard in self._store.standbys]
        return [self._home(server.look(identity)) for server in self._servers], self._home(standbys)

    def _emit_apply(self, fmt: int, request: StepRequest) -> Tensor:
        """Apply the step if no input is missing, and fetch the result if it was applied. `FetchReply`, int64[5]."""
        votes = decided(self._servers, self._standbys, request[:3])
        return self._emit_follow(fmt, request, votes, is_decided=bool(self._standbys[0]))

    def _emit_fetch(self, fmt: int, request: StepRequest) -> Tensor:
        """Fetch the next step if the arbiter has applied exactly that one. `FetchReply`, int64[5].

        The other servers apply it first if necessary; otherwise the arbiter's part would be sent in vain.
        """
        return self._emit_follow(fmt, request, [tf.constant(0, tf.int64)])

    def _emit_follow(
        self, fmt: int, request: StepRequest, votes: Sequence[Tensor], *, is_decided: bool = False
    ) -> Tensor:
        """Apply the step on the arbiter if the verdict of all `votes` is yes, then on the other servers; fetch it.

        If standbys of the arbiter have decided, the votes are theirs, and other servers do not wait for the arbiter.
        Returns the `FetchReply`, int64[5].
        """
        session, identity, place, *_ = request
        heads, fetched, followed = [], [], []
        for number, (server, standbys) in enumerate(zip(self._servers, self._standbys, strict=True)):
            # The arbiter chooses the next format.
            following = server.chosen_format(votes[0]) if number else tf.constant(0, tf.int64)
            head, parts = server.apply_and_fetch(fmt, session, identity, place, server.unanimous(votes), following)
            heads.append(self._home(head))
            fetched.append(self._to_compute(parts))
            for standby in standbys if number else ():
                go, following = standby.unanimous(votes), standby.chosen_format(votes[0])
                followed.append(standby.apply(session, identity, place, go, following))
            if not number and not is_decided:
                votes = [head]
        return self._emit_move(fmt, heads, fetched, self._home(followed))

    def _emit_move(
        self,
        fmt: int,
        heads: Sequence[Tensor],
        fetched: Sequence[Sequence[Sequence[Tensor]]],
        followed: Sequence[Tensor],
    ) -> Tensor:
        with tf.device(self._local):
            replies = [FetchReply.read(head) for head in heads]
            on_primaries = [reply.fetched for reply in replies]
            there = tf.reduce_min(tf.stack([*on_primaries, *(ApplyReply.read(reply).applied for reply in followed)]))

            def move() -> Tensor:
                servers = zip(self._servers, fetched, strict=True)
                with tf.device(self._compute):
                    values = self._store.unpack([server.unshadowed(fmt, parts) for server, parts in servers])
                variables = zip(self._store.model.variables, values, self._shadowed[fmt], strict=True)
                done = [
                    (variable.value.assign_add if shadowed else variable.value.assign)(value, read_value=False)
                    for variable, value, shadowed in variables
                ]
                return with_dependencies([*done, *self._hold_scale(replies[0].scale)], applied())

            moved = tf.cond(tf.equal(there, 1), move, not_applied)
            return replies[0]._replace(fetched=moved).pack()

    def _hold_scale(self, bits: Tensor) -> list[Operation]:
        """Emit adopting the arbiter's loss scale, if rounds decide one; return the operations to wait for."""
        scale = self._store.model.loss_scale if self._servers[0].loss_scale else None
        return [scale.hold(bits)] if scale else []


def _shadowed(servers: Sequence[RoundOps], store: ParameterStore, fmt: int) -> list[bool]:
    """Return whether each variable of the model is fetched as a move of its shadow."""
    moved = [
        shard.segments[number]
        for server, shard in zip(servers, store.shards, strict=True)
        for number in server.moved(fmt)
    ]
    found = {slice_.tensor for segment in moved for slice_ in segment.slices}
    return [index in found for index in range(len(store.model.tensors))]
