"""The same step on both members of a shard: what a primary sends its standby, and what that makes of it.

Before a round's step is decided, every standby holds what its shard's step is made of. The decision is the arbiter's
standby making it: whoever is lost then, what is left of each shard can make the step, and before it nobody has made
one. Everybody else follows it, the arbiter as well, in any order, and workers go on when all have. That is two-phase
commit (Gray, Notes on Data Base Operating Systems, 1978) whose decision is never on one process alone. The arithmetic
is the same on both members, so they stay equal bit for bit.
"""

from collections.abc import Sequence
from typing import Any, Final

import tensorflow as tf

from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.critical_section import after, one, told, zero
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.tensors import WORKER_SLOTS, bits, from_bits
from pstraining.runtime.updates.synchronous.accumulators import Gathering, Outcome, Sums
from pstraining.runtime.updates.synchronous.server import ShardRounds

HOLDS: Final = 1
"""A primary's word: what the step is made of comes with it."""
MADE: Final = 2
"""It has made the step."""


class PairedSums(Sums):
    """The variables of rounds on a server that is a primary or a standby."""

    def __init__(self, shard: Shard, gathering: Gathering) -> None:
        super().__init__(shard, gathering)
        self.sealed = tf.Variable(tf.zeros([], tf.int64))
        """1 once the arbiter's standby may have made the step: the attempt cannot be given up any more."""
        # The standby's: what the next step is made of.
        self.place = tf.Variable(tf.fill([2], tf.constant(-1, tf.int64)))
        """Step and attempt that it is of; -1: of none."""
        segments = shard.segments if gathering.dense else ()
        load = [tf.zeros([4], tf.float64), *(_empty([None], segment.dtype) for segment in segments)]
        for table in shard.tables:
            load += [_empty([None], tf.int64), _empty([None, table.pieces[0].width], table.dtype)]
        if shard.number == 0:
            load.append(tf.zeros([WORKER_SLOTS // 64], tf.int64))
        if shard.ledger:
            load += [_empty([None, 2], tf.int64), _empty([None], tf.int64), _empty([None], tf.int64)]
        self.load = [tf.Variable(value, shape=_any_length(value)) for value in load]
        self._segments, self._tables = len(segments), len(shard.tables)

    @property
    def passing(self) -> list[Any]:
        """What is of the round under way."""
        rows = [v for table in self.rows for v in (table.indices, table.workers, table.gradients)]
        own = [self.delivered, self.weights, self.losses, *self.vectors, *rows]
        return [*own, self.sealed, self.place, *self.load]

    def clear(self) -> list[Any]:
        """Emits beginning a round anew; the operations to wait for."""
        return [*super().clear(), self.sealed.assign(zero(), read_value=False)]

    def void(self, attempt: Tensor) -> list[Any]:
        """Emits starting over under another view, with this attempt; the operations to wait for."""
        nothing = self.place.assign(tf.fill([2], tf.constant(-1, tf.int64)), read_value=False)
        return [self.attempt.assign(attempt, read_value=False), nothing, *self.clear()]

    def sent(self, news: Sequence[Tensor]) -> list[Tensor]:
        """Emits what the round has come to, as it is sent: in the order of `load`.

        Args:
            news: of the ledger, where there is one.
        """
        found = self.outcome()
        amounts = [[found.weight], found.losses, [tf.cast(self.wished(), tf.float64)]]
        flat = [tf.concat(amounts, 0), *(found.mean() if self._segments else [])]
        for indices, gradients in found.touched():
            flat += [indices, gradients]
        if len(self.load) > len(flat):
            packed = tf.reshape(bits(found.admitted[tf.newaxis]), [-1, 8])
            flat.append(tf.bitcast(packed, tf.int64))
        return [*flat, *news]

    def received(self) -> tuple[Outcome, list[Tensor]]:
        """Emits the same on the standby again, and the ledger's news."""
        amounts, *rest = [variable.read_value() for variable in self.load]
        vectors, rest = rest[: self._segments], rest[self._segments :]
        rows, rest = rest[: 2 * self._tables], rest[2 * self._tables :]
        packed = tf.reshape(tf.bitcast(rest[0], tf.uint8), [-1]) if rest else None
        admitted = tf.zeros([WORKER_SLOTS], tf.int64) if packed is None else from_bits(packed)
        found = Outcome(
            amounts[0],
            amounts[1:3],
            lambda: vectors,
            lambda: list(zip(rows[::2], rows[1::2], strict=True)),
            admitted,
        )
        return found, rest[1:]


class MemberRounds(ShardRounds):
    """Emits what a primary and a standby have in common."""

    def __init__(self, shard: Shard, gathering: Gathering) -> None:
        super().__init__(shard, gathering)
        assert isinstance(shard.extra, PairedSums)  # noqa: S101 - `UpdateState.make_extra` has made it
        self._pair = shard.extra

    def start(self, session: Tensor, attempt: Tensor) -> Tensor:
        """Under a new view: what was gathered, or held, for a step that is not decided is void; 1 if done. int64[].

        Args:
            session: term and generation. int64[2].
            attempt: of the round that begins; greater than any that was. int64[].
        """

        def body(session: Tensor, attempt: Tensor) -> Tensor:
            open_ = self._shard.in_session(self._shard.record.read_value(), session)
            return tf.cond(open_, lambda: after(self._pair.void(attempt), one()), zero)

        return self._critical([session, attempt], body)


class PrimaryRounds(MemberRounds):
    """Emits a primary's part in rounds whose steps its standby makes, too."""

    def prepare(self, session: Tensor, place: Tensor, go: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Seal the round, if `go` is 1 and every gradient is there, and hand out what its step is made of.

        Args:
            session: term and generation. int64[2].
            place: step and attempt. int64[2].
            go: whether everything is on every server. int64[].

        Returns:
            0, HOLDS or MADE, int64[]; and for the standby what `PairedSums.load` holds, empty unless it is HOLDS.
        """

        def body(session: Tensor, place: Tensor, go: Tensor) -> tuple[Tensor, list[Tensor]]:
            record = self._shard.record.read_value()
            open_ = self._shard.in_session(record, session) & tf.equal(go, 1)
            same = tf.equal(self._pair.attempt.read_value(), place[1])
            ready = open_ & same & tf.equal(record[RecordField.STEP], place[0])
            if self._arbiter:
                ready &= self._may_apply(place)
            made = open_ & (record[RecordField.STEP] > place[0])

            def seal() -> list[Tensor]:
                ledger = self._shard.ledger
                news = ledger.news(self._pair.admitted.read_value()) if ledger else []
                with tf.control_dependencies([self._pair.sealed.assign(one(), read_value=False)]):
                    return [tf.identity(value) for value in self._pair.sent(news)]

            def nothing() -> list[Tensor]:
                return [_empty(variable.shape, variable.dtype) for variable in self._pair.load]

            load = tf.cond(ready, seal, nothing)
            word = tf.cast(ready, tf.int64) * HOLDS + tf.cast(made, tf.int64) * MADE
            return word, load

        found: tuple[Tensor, list[Tensor]] = self._critical([session, place, go], body)
        return found

    def _has_step_after(self, step: Tensor) -> Tensor:
        if not self._arbiter:
            return super()._has_step_after(step)
        return tf.equal(self._pair.sealed.read_value(), 1)  # its standby may have made it, of a sealed round

    def _may_renew(self) -> Tensor:
        return tf.equal(self._pair.sealed.read_value(), 0)


class StandbyRounds(MemberRounds):
    """Emits a standby's part: the step is made of what its primary has sent."""

    def hold(self, session: Tensor, place: Tensor, word: Tensor, load: Sequence[Tensor]) -> Tensor:
        """Keep what the next step is made of, unless it is of a later attempt; 1 if it is here, or the step is made.
        int64[].

        Args:
            session: term and generation. int64[2].
            place: step and attempt. int64[2].
            word: the primary's. int64[].
            load: what came with it.
        """

        def body(session: Tensor, place: Tensor, word: Tensor, *load: Tensor) -> Tensor:
            record = self._shard.record.read_value()
            open_ = self._shard.in_session(record, session)
            here = tf.equal(record[RecordField.STEP], place[0])
            fits = here & (place[1] >= self._pair.place.read_value()[1])  # a call that stood still may come late

            def keep() -> Tensor:
                targets = zip([self._pair.place, *self._pair.load], [place, *load], strict=True)
                return after([variable.assign(value, read_value=False) for variable, value in targets], one())

            kept = tf.cond(open_ & fits & tf.equal(word, HOLDS), keep, zero)
            with tf.control_dependencies([kept]):
                held = here & self._may_follow(place)
            made = record[RecordField.STEP] > place[0]
            return tf.cast(open_ & (word > 0) & (held | made), tf.int64)

        return self._critical([session, place, word, *load], body)

    def _has_step_after(self, step: Tensor) -> Tensor:
        return tf.equal(self._pair.place.read_value()[0], step)

    def _apply(self) -> Tensor:
        outcome, news = self._pair.received()
        with tf.control_dependencies([self._step(outcome)]):
            noted = self._note(outcome.admitted)
            if self._shard.ledger:
                noted += self._shard.ledger.merge(news)
            with tf.control_dependencies(noted):
                return after([*self._pair.clear()], one())

    def _wished(self) -> Tensor:
        return tf.cast(self._pair.load[0].read_value()[-1], tf.int64)

    def _may_apply(self, place: Tensor) -> Tensor:
        return tf.reduce_all(tf.equal(self._pair.place.read_value(), place))

    def _may_follow(self, place: Tensor) -> Tensor:
        return self._has_step_after(place[0])


def decided(
    servers: Sequence[ShardRounds], standbys: Sequence[Sequence[StandbyRounds]], who: tuple[Tensor, Tensor, Tensor]
) -> list[Tensor]:
    """Emits letting all standbys hold what the step is made of, and then the arbiter's make it.

    Args:
        servers: the primaries' parts in the round, the arbiter's first.
        standbys: each one's standbys'.
        who: session, identity and place.

    Returns:
        What the arbiter's standbys answer, see `ShardRounds.apply`; without any, of everybody whether it holds. The
        others may make the step if all begin with a 1.
    """
    session, identity, place = who
    held = [one()]
    for server, own in zip(servers, standbys, strict=True):
        for member in (server, *own):
            told(member.device, who)  # for all that this call has to say
        if own:
            assert isinstance(server, PrimaryRounds)  # noqa: S101 - it has standbys
            word, load = server.prepare(session, place, one())
            held += [standby.hold(session, place, word, load) for standby in own]
    return [standby.apply(session, identity, place, standby.least(held), zero()) for standby in standbys[0]] or held


def _empty(shape: Any, dtype: Any) -> Tensor:
    return tf.zeros([length or 0 for length in tf.TensorShape(shape).as_list()], dtype)


def _any_length(value: Tensor) -> Any:
    """The shape of a variable for something of any length, where it is empty at first."""
    return value.shape if value.shape[0] else tf.TensorShape([None, *value.shape[1:]])
