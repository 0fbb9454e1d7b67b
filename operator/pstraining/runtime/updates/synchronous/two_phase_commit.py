"""One step on all members of a shard: the primary stages the step's input on its standbys, and all apply it.

Before a round's step is decided, every standby has staged the input of its shard's step. The decision is that the
arbiter's standby applies the step. Before it, no member has applied the step; after it, any remaining members can apply
the step, whichever servers are lost. The other members follow in any order, the arbiter included, and workers continue
when all have. That is two-phase commit (Gray, Notes on Data Base Operating Systems, 1978) with a decision that is never
on one process alone. All members compute with the same arithmetic, so they stay equal bit for bit.
"""

import math
from collections.abc import Sequence
from typing import Final

import tensorflow as tf

from pstraining.runtime.model.optimizers.learning_rates import adopted
from pstraining.runtime.model.tensor import DType, Operation, Shape, Tensor, Variable
from pstraining.runtime.ps.critical_section import applied, not_applied, sent_to, with_dependencies
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.tensors import WORKER_SLOTS, bits, field, from_bits
from pstraining.runtime.updates.synchronous.accumulators import Accumulators, RoundConfig, RoundResult
from pstraining.runtime.updates.synchronous.messages import RoundPlace, StagedStats
from pstraining.runtime.updates.synchronous.norms import settled
from pstraining.runtime.updates.synchronous.server import RoundOps

PREPARED: Final = 1
"""A primary's vote: the round is prepared, and the input of its step is attached."""
COMMITTED: Final = 2
"""A primary's vote: it has already applied the step."""


class ReplicatedAccumulators(Accumulators):
    """The variables of rounds on a server that is a primary or a standby."""

    def __init__(self, shard: Shard, config: RoundConfig) -> None:
        super().__init__(shard, config)
        self.prepared = tf.Variable(tf.zeros([], tf.int64))
        """1 once the arbiter's standby may have applied the step. The attempt cannot be given up any more."""
        self.rates = tf.Variable(tf.fill([shard.program], tf.constant(math.nan, tf.float64)))
        """The learning rates of steps that are not prepared yet; NaN: that of the optimizer. float64[optimizers]."""
        # The standby's: the input of the next step.
        self.place = tf.Variable(tf.fill([2], tf.constant(-1, tf.int64)))
        """Step and attempt of the staged input; -1 for none."""
        segments = shard.segments if config.dense else ()
        self._shard = shard
        numbers = 5 + shard.program + (self.norms.length if self.norms else 0)
        staged = [tf.zeros([numbers], tf.float64), *(_empty([None], segment.dtype) for segment in segments)]
        for table in shard.tables:
            staged += [_empty([None], tf.int64), _empty([None, table.slices[0].width], table.dtype)]
        if shard.number == 0:
            staged.append(tf.zeros([WORKER_SLOTS // 64], tf.int64))
        if shard.ledger:
            staged += [_empty([None, 2], tf.int64), _empty([None], tf.int64), _empty([None], tf.int64)]
        self.staged = [tf.Variable(value, shape=_any_length(value)) for value in staged]
        self._segments, self._tables = len(segments), len(shard.tables)

    @property
    def transient(self) -> list[Variable]:
        """Return the variables of the current round."""
        return [*super().transient, self.prepared, self.place, *self.staged]

    def clear(self) -> list[Operation]:
        """Emit the reset of the round; return the operations to wait for."""
        return [*super().clear(), self.prepared.assign(tf.constant(0, tf.int64), read_value=False)]

    def void(self, attempt: Tensor) -> list[Operation]:
        """Emit the reset under a new view, with this attempt; return the operations to wait for."""
        nothing = self.place.assign(tf.fill([2], tf.constant(-1, tf.int64)), read_value=False)
        return [self.attempt.assign(attempt, read_value=False), nothing, *self.clear()]

    def to_staged(self, news: Sequence[Tensor]) -> list[Tensor]:
        """Emit the round's result as it is sent, in the order of `staged`.

        Args:
            news: the ledger's changes; empty without a ledger.
        """
        found = self.result()
        fmt = tf.cast(self.next_format(), tf.float64)
        norms = self.norms.totals.read_value() if self.norms else tf.zeros([0], tf.float64)
        stats = StagedStats(found.weight, found.losses, fmt, found.overflowed, self._shard.learning_rates(), norms)
        flat = [stats.pack(), *(found.mean() if self._segments else [])]
        for indices, gradients in found.touched():
            flat += [indices, gradients]
        if len(self.staged) > len(flat):
            packed = tf.reshape(bits(found.admitted[tf.newaxis]), [-1, 8])
            flat.append(tf.bitcast(packed, tf.int64))
        return [*flat, *news]

    def staged_stats(self) -> StagedStats:
        """Emit the numbers that are staged on the standby."""
        return StagedStats.unpack(self.staged[0].read_value(), self._shard.program)

    def adopt(self, rates: Tensor) -> list[Operation]:
        """Emit setting the optimizers' learning rates where they are numbers; return the operations to wait for."""
        return adopted(self._shard.rates, rates)

    def adopt_unless_prepared(self) -> Tensor:
        """Emit setting the learning rates for the coming step, unless its input may be staged already. int64[]."""
        return tf.cond(
            tf.equal(self.prepared.read_value(), 0),
            lambda: with_dependencies(self.adopt(self.rates.read_value()), applied()),
            not_applied,
        )

    def from_staged(self) -> tuple[RoundResult, list[Tensor]]:
        """Emit the staged result on the standby, and the ledger's changes."""
        stats, rest = self.staged_stats(), [variable.read_value() for variable in self.staged[1:]]
        vectors, rest = rest[: self._segments], rest[self._segments :]
        rows, rest = rest[: 2 * self._tables], rest[2 * self._tables :]
        packed = tf.reshape(tf.bitcast(rest[0], tf.uint8), [-1]) if rest else None
        admitted = tf.zeros([WORKER_SLOTS], tf.int64) if packed is None else from_bits(packed)
        found = RoundResult(
            stats.weight,
            stats.losses,
            lambda: vectors,
            lambda: list(zip(rows[::2], rows[1::2], strict=True)),
            admitted,
            stats.overflowed,
            trust=self.norms.trust_of(stats.norms) if self.norms else None,
        )
        return found, rest[1:]


class MemberRoundOps(RoundOps):
    """Emits the operations that a primary and a standby share."""

    def __init__(self, shard: Shard, config: RoundConfig) -> None:
        super().__init__(shard, config)
        self._replicated = ReplicatedAccumulators.of(shard)

    def start(self, session: Tensor, attempt: Tensor) -> Tensor:
        """Discard the gradients and the staged input of an undecided step, under a new view; 1 if done. int64[].

        Args:
            session: term and generation. int64[2].
            attempt: attempt of the new round, greater than any before. int64[].
        """

        def body(session: Tensor, attempt: Tensor) -> Tensor:
            open_ = self._shard.in_session(self._shard.record.read_value(), session)
            return tf.cond(open_, lambda: with_dependencies(self._replicated.void(attempt), applied()), not_applied)

        return self._critical([session, attempt], body)

    def set_learning_rates(self, fence: Tensor, rates: Tensor) -> Tensor:
        """See `LockstepRounds`: the primary adopts the rates when it prepares a step, and its standbys with the step.

        Args:
            fence: the chief's fence. int64[].
            rates: see `Shard.set_learning_rates`. float64[optimizers].
        """

        def body(fence: Tensor, rates: Tensor) -> Tensor:
            def write() -> Tensor:
                return with_dependencies([self._replicated.rates.assign(rates, read_value=False)], applied())

            under = tf.equal(field(self._shard.record.read_value(), RecordField.FENCE), fence)
            return tf.cond(under, write, not_applied)

        return self._critical([fence, rates], body)

    def learning_rates(self) -> Tensor:
        """See `LockstepRounds`; outside the section. float64[optimizers]."""
        with tf.device(self.device):
            coming = self._replicated.rates.read_value()
            return tf.where(tf.math.is_finite(coming), coming, self._shard.learning_rates())


class PrimaryRoundOps(MemberRoundOps):
    """Emits a primary's operations in rounds that its standbys apply as well."""

    def prepare(self, session: Tensor, place: Tensor, go: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Prepare the round if `go` is 1 and every gradient is present; return the input of its step.

        Args:
            session: term and generation. int64[2].
            place: step and attempt. int64[2].
            go: 1 if every gradient is on every server. int64[].

        Returns:
            0, PREPARED or COMMITTED, int64[]; and the values for the standby, see `ReplicatedAccumulators.staged`. They
            are empty unless the vote is PREPARED.
        """

        def body(session: Tensor, place: Tensor, go: Tensor) -> tuple[Tensor, list[Tensor]]:
            record, round_ = self._shard.record.read_value(), RoundPlace.unpack(place)
            open_ = self._shard.in_session(record, session) & tf.equal(go, 1)
            same = tf.equal(self._replicated.attempt.read_value(), round_.attempt)
            ready = open_ & same & tf.equal(field(record, RecordField.STEP), round_.step)
            if self._arbiter:
                ready &= self._may_apply(round_)
            elif self.has_norms:
                ready &= self._is_settled(round_)
            made = open_ & (field(record, RecordField.STEP) > round_.step)

            def prepared_parts() -> list[Tensor]:
                ledger = self._shard.ledger
                news = ledger.news(self._replicated.admitted.read_value()) if ledger else []
                with tf.control_dependencies([self._replicated.adopt_unless_prepared()]):
                    prepared = self._replicated.prepared.assign(tf.constant(1, tf.int64), read_value=False)
                with tf.control_dependencies([prepared]):
                    return [tf.identity(value) for value in self._replicated.to_staged(news)]

            def nothing() -> list[Tensor]:
                return [_empty(variable.shape, variable.dtype) for variable in self._replicated.staged]

            load = tf.cond(ready, prepared_parts, nothing)
            word = tf.cast(ready, tf.int64) * PREPARED + tf.cast(made, tf.int64) * COMMITTED
            return word, load

        found: tuple[Tensor, list[Tensor]] = self._critical([session, place, go], body)
        return found

    def _apply(self) -> Tensor:
        with tf.control_dependencies([self._replicated.adopt_unless_prepared()]):  # it may have no standby
            return super()._apply()

    def _has_step_after(self, step: Tensor) -> Tensor:
        if not self._arbiter:
            return super()._has_step_after(step)
        return tf.equal(
            self._replicated.prepared.read_value(), 1
        )  # its standby may have applied the step of a prepared round

    def _may_renew(self) -> Tensor:
        return tf.equal(self._replicated.prepared.read_value(), 0)


class StandbyRoundOps(MemberRoundOps):
    """Emits a standby's operations: it applies the step that its primary has sent."""

    def stage(self, session: Tensor, place: Tensor, word: Tensor, load: Sequence[Tensor]) -> Tensor:
        """Stage the input of the next step, unless a later attempt is staged. int64[].

        Returns 1 if the input is staged here, or the step is already applied.

        Args:
            session: term and generation. int64[2].
            place: step and attempt. int64[2].
            word: the primary's vote. int64[].
            load: the values that came with the vote.
        """

        def body(session: Tensor, place: Tensor, word: Tensor, *load: Tensor) -> Tensor:
            record, round_ = self._shard.record.read_value(), RoundPlace.unpack(place)
            open_ = self._shard.in_session(record, session)
            here = tf.equal(field(record, RecordField.STEP), round_.step)
            fits = here & (round_.attempt >= self._staged_place().attempt)  # a delayed call may arrive late

            def keep() -> Tensor:
                targets = zip([self._replicated.place, *self._replicated.staged], [place, *load], strict=True)
                return with_dependencies(
                    [variable.assign(value, read_value=False) for variable, value in targets], applied()
                )

            kept = tf.cond(open_ & fits & tf.equal(word, PREPARED), keep, not_applied)
            with tf.control_dependencies([kept]):
                held = here & self._may_follow(round_)
            made = field(record, RecordField.STEP) > round_.step
            return tf.cast(open_ & (word > 0) & (held | made), tf.int64)

        return self._critical([session, place, word, *load], body)

    def _staged_place(self) -> RoundPlace:
        """Emit the round whose input is staged here; -1 for none."""
        return RoundPlace.unpack(self._replicated.place.read_value())

    def _has_step_after(self, step: Tensor) -> Tensor:
        return tf.equal(self._staged_place().step, step)

    def _apply(self) -> Tensor:
        result, news = self._replicated.from_staged()
        with tf.control_dependencies(self._replicated.adopt(self._replicated.staged_stats().rates)):
            moved = self._step(result)
        with tf.control_dependencies([moved]):
            noted = self._note(result.admitted)
            if self._shard.ledger:
                noted += self._shard.ledger.merge(news)
            with tf.control_dependencies(noted):
                return with_dependencies([*self._replicated.clear()], applied())

    def _next_format(self) -> Tensor:
        return tf.cast(self._replicated.staged_stats().format, tf.int64)

    def _may_apply(self, place: RoundPlace) -> Tensor:
        staged = self._staged_place()
        return tf.equal(staged.step, place.step) & tf.equal(staged.attempt, place.attempt)

    def _may_follow(self, place: RoundPlace) -> Tensor:
        return self._has_step_after(place.step)


def decided(
    servers: Sequence[RoundOps],
    standbys: Sequence[Sequence[StandbyRoundOps]],
    who: tuple[Tensor, Tensor, Tensor],
    dense: Tensor | None = None,
) -> list[Tensor]:
    """Emit the agreement on norms and both phases: standbys stage the step, and then the arbiter's standbys apply it.

    Args:
        servers: the primaries' operations, the arbiter's first.
        standbys: the operations of each primary's standbys.
        who: session, identity and place.
        dense: see `norms.settled`.

    Returns:
        The replies of the arbiter's standbys, see `RoundOps.apply`; without any, every standby's reply to `stage`, and
        whether each primary has the norms. The other members may apply the step if the verdict of all is yes.
    """
    session, identity, place = who
    norms = settled(servers, session, place, tf.constant(1, tf.int64), dense)
    held = [tf.constant(1, tf.int64)]
    for server, own in zip(servers, standbys, strict=True):
        for member in (server, *own):
            sent_to(member.device, who)  # one transfer of the request for both phases
        if own:
            word, load = _as_primary(server).prepare(session, place, tf.constant(1, tf.int64))
            held += [standby.stage(session, place, word, load) for standby in own]
    return [
        standby.apply(session, identity, place, standby.unanimous(held), tf.constant(0, tf.int64))
        for standby in standbys[0]
    ] or [*held, *norms]  # with standbys, a primary prepares the step only if it has the norms


def _as_primary(server: RoundOps) -> PrimaryRoundOps:
    if not isinstance(server, PrimaryRoundOps):
        raise TypeError("a server with standbys needs the operations of a primary")
    return server


def _empty(shape: Shape, dtype: DType) -> Tensor:
    return tf.zeros([length or 0 for length in tf.TensorShape(shape).as_list()], dtype)


def _any_length(value: Tensor) -> Shape:
    """Return the shape of a variable for such values; an empty first dimension may have any length."""
    return value.shape if value.shape[0] else tf.TensorShape([None, *value.shape[1:]])


def primary_round_ops(shard: Shard, config: RoundConfig) -> RoundOps:
    """Return the round operations of a primary."""
    return (PrimaryRoundOps if isinstance(shard.mode_state, ReplicatedAccumulators) else RoundOps)(shard, config)
