"""Applies a worker's asynchronous update on a server."""

from collections.abc import Callable
from functools import partial

import tensorflow as tf

from pstraining.runtime.model.partition import Segment
from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.critical_section import applied, critical, not_applied, with_dependencies
from pstraining.runtime.ps.messages import Sender
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.tensors import field
from pstraining.runtime.updates.asynchronous.messages import UpdateHeader, UpdateReply
from pstraining.runtime.updates.asynchronous.staleness import Clocks
from pstraining.runtime.updates.gradients import ShardGradient
from pstraining.runtime.updates.messages import GradientStats


def push(
    shard: Shard,
    session: Tensor,
    identity: Tensor,
    what: Tensor,
    gradient: ShardGradient,
    *,
    moves: bool,
    state_weight: Callable[[Tensor, Tensor, Segment], Tensor] | None,
) -> Tensor:
    """Emit applying one worker's gradient on one server, unless it is not finite or of another session.

    Args:
        shard: the server.
        session: term and generation. int64[2].
        identity: worker and incarnation. int64[2].
        what: see `UpdateHeader`. int64[6].
        gradient: the server's part.
        moves: whether its vectors are moves.
        state_weight: see `StateBlend.weight`; None if vectors of state are changes.

    Returns:
        The `UpdateReply`. int64[5].
    """

    load = [list(gradient.vectors), list(gradient.rows)]

    def body(session: Tensor, identity: Tensor, what: Tensor, stats: Tensor, *arrived: Tensor) -> Tensor:
        gradients, touched = tf.nest.pack_sequence_as(load, arrived)
        record, clocks, ledger = shard.record.read_value(), Clocks.of(shard), shard.ledger
        sender, header, numbers = Sender.unpack(identity), UpdateHeader.unpack(what), GradientStats.read(stats)
        worker, progress, number = sender.worker, header.progress, header.number
        is_new = clocks.is_new(worker, number)
        allowed = shard.in_session(record, session) & shard.registry.is_current(*sender)
        if ledger:
            allowed &= ledger.is_expected(worker, progress) | ~is_new

        skips = tf.greater(numbers.overflowed, 0) if shard.loss_scale and not moves else None

        def apply() -> Tensor:
            losses = tf.stack([numbers.loss * numbers.samples, numbers.samples])
            weight = partial(state_weight, header.batches, header.workers) if state_weight else None
            done = shard.apply(gradients, touched, losses, moves=moves, state_weight=weight, overflowed=skips)
            return with_dependencies([*done, shard.registry.touch(worker)], applied())

        def move_on() -> Tensor:
            advanced = [ledger.advance(worker, progress)] if ledger else []
            with tf.control_dependencies([*advanced, *clocks.note(worker, number)]):
                return clocks.ahead_or_paused(worker, field(record, RecordField.FENCE))

        added = tf.cond(allowed & is_new & tf.equal(numbers.finite, 1), apply, not_applied)
        with tf.control_dependencies([added]):
            ahead = tf.cond(allowed, move_on, not_applied)
            return UpdateReply(
                allowed, field(record, RecordField.DONE), field(record, RecordField.STEP) + added, ahead, is_new
            ).pack()

    return critical(
        shard.device, shard.container, [session, identity, what, gradient.stats, *tf.nest.flatten(load)], body
    )
