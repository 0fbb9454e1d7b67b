"""Norms of a round's mean gradient, and of pieces of tensors, agreed on before the step is decided.

First every server computes the sums of squares of its part. The arbiter stores their totals, and then every other
server stores the arbiter's. Only then may the step be decided. A server that applies it later therefore clips by the
same norms, and scales by the same trust ratios, whichever process requests it. Norms belong to one attempt at one step,
whose gradients no longer change: the first totals remain, and a repeated or late call changes nothing. Standbys receive
the clipped mean, and the totals with it.
"""

from collections.abc import Sequence

import tensorflow as tf

from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.critical_section import applied, not_applied, with_dependencies
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.ps.tensors import field
from pstraining.runtime.updates.synchronous.fetch import FetchOps
from pstraining.runtime.updates.synchronous.messages import RoundPlace


class NormOps(FetchOps):
    """Emits a server's part in the agreement; only for optimizers that need norms."""

    @property
    def has_norms(self) -> bool:
        """Whether the round's step needs norms."""
        return self._state.norms is not None

    def squares(self, session: Tensor, place: Tensor, go: Tensor) -> Tensor:
        """Return the sums of squares of this server's part, if `go` is 1 and the round is this server's.

        Args:
            session: term and generation. int64[2].
            place: step and attempt. int64[2].
            go: 1 if every gradient is on every server. int64[].

        Returns:
            1 if the sums are valid, and the sums. float64[1 + length].
        """

        def body(session: Tensor, place: Tensor, go: Tensor) -> Tensor:
            valid = tf.equal(go, 1) & self._is_at(session, place)
            if self._arbiter:
                valid &= tf.equal(self._state.closed.read_value(), 1)
            nothing = tf.zeros([self._state.norms_or_raise().length], tf.float64)
            sums = tf.cond(valid, self._state.squares, lambda: nothing)
            return tf.concat([[tf.cast(valid, tf.float64)], sums], 0)

        found: Tensor = self._critical([session, place, go], body)
        return found

    def settle(self, session: Tensor, place: Tensor, totals: Tensor) -> Tensor:
        """Store the totals of all servers' sums if they are valid, and the attempt has none yet.

        Args:
            session: term and generation. int64[2].
            place: step and attempt. int64[2].
            totals: 1 if they are valid, and the totals. float64[1 + length].

        Returns:
            1 if the attempt has totals here, and those. float64[1 + length].
        """
        norms = self._state.norms_or_raise()

        def body(session: Tensor, place: Tensor, totals: Tensor) -> Tensor:
            known = self._is_settled(RoundPlace.unpack(place))

            def store() -> Tensor:
                written = [
                    norms.totals.assign(totals[1:], read_value=False),
                    norms.place.assign(place, read_value=False),
                ]
                return with_dependencies(written, applied())

            allowed = tf.equal(totals[0], 1) & self._is_at(session, place) & tf.logical_not(known)
            stored = tf.cond(allowed, store, not_applied)
            with tf.control_dependencies([stored]):
                here = tf.maximum(tf.cast(known, tf.int64), stored)
                return tf.concat([[tf.cast(here, tf.float64)], norms.totals.read_value()], 0)

        found: Tensor = self._critical([session, place, totals], body)
        return found

    def _is_at(self, session: Tensor, place: Tensor) -> Tensor:
        """Whether the sums on this server are those of the attempt. bool[]."""
        record, round_ = self._shard.record.read_value(), RoundPlace.unpack(place)
        same = tf.equal(field(record, RecordField.STEP), round_.step)
        same &= tf.equal(self._state.attempt.read_value(), round_.attempt)
        return self._shard.in_session(record, session) & same

    def _is_settled(self, place: RoundPlace) -> Tensor:
        """Whether the norms of the attempt are known here. bool[]."""
        known = RoundPlace.unpack(self._state.norms_or_raise().place.read_value())
        return tf.equal(known.step, place.step) & tf.equal(known.attempt, place.attempt)


def settled(
    servers: Sequence[NormOps], session: Tensor, place: Tensor, go: Tensor, dense: Tensor | None = None
) -> list[Tensor]:
    """Emit the agreement of all primaries; return whether each has the totals, int64[] each; none without norms.

    Args:
        servers: the primaries' operations, the arbiter's first.
        session: term and generation. int64[2].
        place: step and attempt. int64[2].
        go: 1 if every gradient is on every server. int64[].
        dense: 1 if they are valid, and the sums of squares of tensors that servers do not sum up; None if there are
            none. float64[1 + length].
    """
    arbiter, *others = servers
    if not arbiter.has_norms:
        return []
    found = [server.squares(session, place, go) for server in servers]
    with tf.device(arbiter.device):
        every = tf.stack(found if dense is None else [*found, dense])
        totals = tf.concat([[tf.reduce_min(every[:, 0])], tf.reduce_sum(every[:, 1:], 0)], 0)
    agreed = arbiter.settle(session, place, totals)
    replies = [(arbiter, agreed), *((server, server.settle(session, place, agreed)) for server in others)]
    return [_verdict(server, reply) for server, reply in replies]


def _verdict(server: NormOps, reply: Tensor) -> Tensor:
    with tf.device(server.device):
        return tf.cast(reply[0], tf.int64)
