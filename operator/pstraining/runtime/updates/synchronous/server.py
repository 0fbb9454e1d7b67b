"""A round of synchronous updates on one parameter server, as operations to emit inside a traced function.

`updates.synchronous.protocol` defines a round; this module has its compare-and-sets. Sums hold gradients in units of
the first weight, and each of n workers sends the n-th part: equal batches need no multiplication and no division. With
ordered sums each worker has a row, and rows are added in the order of the workers. Runs are then repeatable bit for
bit, at the cost of one copy of the parameters per worker.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.critical_section import applied, clock, critical, not_applied, with_dependencies
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.tensors import at, bits, put
from pstraining.runtime.updates.gradients import ShardGradient
from pstraining.runtime.updates.synchronous.accumulators import Accumulators, RoundConfig, RoundResult


class RoundOps:
    """Emits the operations of rounds on one server. The first server is the arbiter."""

    def __init__(self, shard: Shard, config: RoundConfig) -> None:
        assert isinstance(shard.mode_state, Accumulators)  # noqa: S101 - `ServerHooks.make_mode_state` has made it
        self._shard, self._config, self._arbiter = shard, config, shard.number == 0
        self._state, self.device = shard.mode_state, shard.device

    def admit(self, session: Tensor, identity: Tensor, place: Tensor) -> Tensor:
        """Ask the arbiter for a part in the round, before anything is sent to the others; 1 if it has one. int64[].

        Args:
            session: term and generation. int64[2].
            identity: worker and incarnation. int64[2].
            place: step and attempt. int64[2].
        """

        def body(session: Tensor, identity: Tensor, place: Tensor) -> Tensor:
            valid = self._is_valid(self._shard.record.read_value(), session, identity, place)
            valid &= self._is_open(identity[0])
            return tf.cond(valid, lambda: with_dependencies(self._enter(identity[0]), applied()), not_applied)

        return self._critical([session, identity, place], body)

    def push(
        self,
        session: Tensor,
        identity: Tensor,
        place: Tensor,
        progress: Tensor,
        proposed: Tensor,
        go: Tensor,
        gradient: ShardGradient,
    ) -> Tensor:
        """Add a worker's gradient to this server's sum, once; the arbiter admits the worker by it.

        Args:
            session: term and generation. int64[2].
            identity: worker and incarnation. int64[2].
            place: step and attempt. int64[2].
            progress: where the worker will be in its data. int64[3].
            proposed: the format that the next round is to have, if it is for this worker to say. int64[].
            go: 1 on the arbiter; elsewhere what the arbiter said. int64[].
            gradient: this server's part; one that is not finite counts as pushed, and is skipped.

        Returns:
            Whether it is in the sum, done, step, attempt, closed, how many are admitted and delivered, and whether it
            is void: of batches that are not the worker's to train. int64[8].
        """

        load = [list(gradient.vectors), list(gradient.rows)]

        def body(
            session: Tensor,
            identity: Tensor,
            place: Tensor,
            progress: Tensor,
            proposed: Tensor,
            go: Tensor,
            stats: Tensor,
            *arrived: Tensor,
        ) -> Tensor:
            gradients, touched = tf.nest.pack_sequence_as(load, arrived)
            state, worker = self._state, identity[0]
            record = self._shard.record.read_value()
            ledger = self._shard.ledger
            owed = ledger.is_expected(worker, progress) if ledger else tf.constant(True)
            valid = self._is_valid(record, session, identity, place) & tf.equal(go, 1)
            void, valid = valid & tf.logical_not(owed), valid & owed
            same = tf.equal(state.attempt.read_value(), place[1])
            there = same & tf.equal(at(state.pushed, worker), 1)
            wanted = self._is_open(worker) if self._arbiter else tf.constant(True)

            def add() -> Tensor:
                written = self._state.add(worker, place[1], same, stats, gradients, touched)
                with tf.control_dependencies(written):
                    entered = [*self._enter(worker), *state.propose_format(worker, proposed)] if self._arbiter else []
                    if ledger:
                        entered.append(ledger.stage(worker, progress))
                return with_dependencies([*written, *entered], applied())

            taken = tf.cond(valid & wanted & tf.logical_not(there), add, not_applied)
            with tf.control_dependencies([taken]):
                inside = tf.maximum(taken, tf.cast(valid & there, tf.int64))
                head = tf.stack([inside, record[RecordField.DONE], record[RecordField.STEP]])
                return tf.concat([head, self._counts(), [tf.cast(void, tf.int64)]], 0)

        return self._critical(
            [session, identity, place, progress, proposed, go, gradient.stats, *tf.nest.flatten(load)], body
        )

    def look(self, identity: Tensor) -> tuple[Tensor, Tensor]:
        """What this server knows of the round; the arbiter closes it if enough are admitted meanwhile.

        Returns:
            The record, attempt, closed, the step that the worker was last part of: int64[8]; and who delivered, and on
            the arbiter who is admitted and alive, a bit a worker: uint8[1 or 3, WORKER_SLOTS / 8].
        """

        def body(identity: Tensor) -> tuple[Tensor, Tensor]:
            state, registry, worker = self._state, self._shard.registry, identity[0]
            record = self._shard.record.read_value()
            changed: list[Any] = []
            sets = [state.pushed.read_value()]
            if self._arbiter:
                current = registry.is_current(identity[0], identity[1])
                heard = tf.cond(current, lambda: with_dependencies([registry.touch(worker)], applied()), not_applied)
                with tf.control_dependencies([heard]):
                    alive = registry.alive()
                    admitted = state.admitted.read_value()
                    changed = [self._close(admitted, alive)]
                sets += [admitted, tf.cast(alive, tf.int64)]
            with tf.control_dependencies(changed):
                rest = [state.attempt.read_value(), state.closed.read_value(), self._last_round(identity)]
                return tf.concat([record, tf.stack(rest)], 0), bits(tf.stack(sets))

        found: tuple[Tensor, Tensor] = self._critical([identity], body)
        return found

    def apply(self, session: Tensor, identity: Tensor, place: Tensor, go: Tensor, fmt: Tensor) -> Tensor:
        """Make the round's step of the sum: the arbiter first, by compare-and-set; the others follow when `go` is 1.

        Args:
            session: term and generation. int64[2].
            identity: worker and incarnation. int64[2].
            place: step and attempt. int64[2].
            go: 1 on the arbiter; elsewhere whether the arbiter has made the step. int64[].
            fmt: elsewhere than on the arbiter, the one that the arbiter gives the next round. int64[].

        Returns:
            Whether this server has applied the step, the last step that the worker was part of, and the format of the
            current round. int64[3].
        """

        return self._critical([session, identity, place, go, fmt], self._make)

    def apply_and_fetch(
        self, fmt: int, session: Tensor, identity: Tensor, place: Tensor, go: Tensor, following: Tensor
    ) -> tuple[Tensor, list[list[Tensor]]]:
        """The same; and for every segment what brings a worker from its step to the next one, if that is just made.

        That is the move, encoded, for a segment with a shadow; else the parameters themselves.

        Args:
            fmt: that the worker has it in.
            session: term and generation. int64[2].
            identity: worker and incarnation. int64[2].
            place: the worker's step, and an attempt. int64[2].
            go: as above. int64[].
            following: the format of the next round, as above. int64[].

        Returns:
            Whether this server has applied the step, the last step that the worker was part of, the format of the
            current round, and whether the step can be fetched in this format: int64[4]. And the tensors; if not, empty.
        """

        def body(*told: Tensor) -> tuple[Tensor, list[list[Tensor]]]:
            _, identity, place, *_ = told
            with tf.control_dependencies([self._make(*told)]):
                return self._read_update(fmt, identity, place)

        found: tuple[Tensor, list[list[Tensor]]] = self._critical([session, identity, place, go, following], body)
        return found

    def _make(self, session: Tensor, identity: Tensor, place: Tensor, go: Tensor, following: Tensor) -> Tensor:
        record = self._shard.record.read_value()
        same = tf.equal(record[RecordField.STEP], place[0])
        allowed = self._shard.in_session(record, session) & same & tf.equal(go, 1)
        allowed &= self._may_apply(place) if self._arbiter else self._may_follow(place)
        made = tf.cond(allowed, self._apply, not_applied)
        with tf.control_dependencies([made]):
            there = tf.cast(tf.equal(record[RecordField.STEP] + made, place[0] + 1), tf.int64)
            return tf.stack([there, self._last_round(identity), self._begin_next(made, following)])

    def _read_update(self, fmt: int, identity: Tensor, place: Tensor) -> tuple[Tensor, list[list[Tensor]]]:
        moved, shadow = self.moved(fmt), self._state.shadow
        sources = [
            shadow.moves[number] if shadow and number in moved else [vector]
            for number, vector in enumerate(self._shard.vectors)
        ]
        flat = tf.nest.flatten(sources)
        made = tf.equal(self._shard.record.read_value()[RecordField.STEP], place[0] + 1)
        fits = tf.equal(shadow.is_held(), bool(moved)) if shadow and shadow.numbers else tf.constant(True)
        parts = tf.cond(
            made & fits,
            lambda: [source.read_value() for source in flat],
            lambda: [tf.zeros([0] * len(source.shape), source.dtype) for source in flat],
        )
        answers = [made, self._last_round(identity), self._format(), made & fits]
        head = tf.stack([tf.cast(answer, tf.int64) for answer in answers])
        return head, tf.nest.pack_sequence_as(sources, tf.nest.flatten(parts))

    def pull(self) -> tuple[Tensor, list[Tensor]]:
        """Return this server's step and the current round's format, int64[2], and every segment as workers hold it."""

        def body() -> tuple[Tensor, list[Tensor]]:
            shadow = self._state.shadow
            vectors = [
                shadow.as_workers_hold(number) if shadow and number in shadow.moves else vector.read_value()
                for number, vector in enumerate(self._shard.vectors)
            ]
            return tf.stack([self._shard.record.read_value()[RecordField.STEP], self._format()]), vectors

        found: tuple[Tensor, list[Tensor]] = self._critical([], body)
        return found

    def moved(self, fmt: int) -> list[int]:
        """Numbers of the segments that are fetched as moves in this format."""
        shadow = self._state.shadow
        return shadow.numbers if shadow and self._config.pulls[fmt] is not None else []

    def unshadowed(self, fmt: int, parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Emits, on the worker: a vector per segment from what was fetched, a move where there is a shadow."""
        shadow, moved = self._state.shadow, self.moved(fmt)
        return [
            shadow.decode(number, sent) if shadow and number in moved else sent[0] for number, sent in enumerate(parts)
        ]

    def follow(self, session: Tensor, step: Tensor) -> Tensor:
        """Make the step after `step` of the sum, which the arbiter has made; 1 if this call did. int64[]."""

        def body(session: Tensor, step: Tensor) -> Tensor:
            record = self._shard.record.read_value()
            behind = tf.equal(record[RecordField.STEP], step) & self._has_step_after(step)
            return tf.cond(self._shard.in_session(record, session) & behind, self._apply, not_applied)

        return self._critical([session, step], body)

    def _has_step_after(self, step: Tensor) -> Tensor:
        """Whether what a step that others have made is made of is here; never on the arbiter, which makes it first."""
        del step
        return tf.constant(False) if self._arbiter else tf.reduce_sum(self._state.pushed.read_value()) > 0

    def give_up(self, session: Tensor, place: Tensor) -> Tensor:
        """Begin another attempt at the round, by compare-and-set on the arbiter; 1 if this call did. int64[]."""

        def body(session: Tensor, place: Tensor) -> Tensor:
            record = self._shard.record.read_value()
            same = tf.equal(record[RecordField.STEP], place[0]) & tf.equal(self._state.attempt.read_value(), place[1])
            allowed = self._shard.in_session(record, session) & same & self._may_renew()
            return tf.cond(allowed, lambda: with_dependencies(self._renew(), applied()), not_applied)

        return self._critical([session, place], body)

    def forget(self, worker: Tensor, newcomer: Tensor) -> list[Any]:
        """In the critical section: what a worker's former process has delivered does not count for its newcomer."""
        if not self._arbiter:
            return []
        held = newcomer & tf.equal(at(self._state.admitted, worker), 1) & self._may_renew()
        return [tf.cond(held, lambda: with_dependencies(self._renew(), applied()), not_applied)]

    def word(self, answer: Tensor, number: int = 0) -> Tensor:
        """One of the words of another server's answer, read here, so that the answer comes by no detour. int64[]."""
        with tf.device(self.device):
            return tf.reshape(answer, [-1])[number]

    def least(self, answers: Sequence[Tensor]) -> Tensor:
        """Whether all of other servers' answers begin with a yes. int64[]."""
        with tf.device(self.device):
            return tf.reduce_min(tf.stack([self.word(answer) for answer in answers]))

    def _critical(self, inputs: Sequence[Tensor], body: Any) -> Any:
        return critical(self.device, self._shard.container, inputs, body)

    def _is_valid(self, record: Tensor, session: Tensor, identity: Tensor, place: Tensor) -> Tensor:
        """Whether a gradient is of this round: of the arbiter's attempt, or elsewhere of that or a later one."""
        attempt = self._state.attempt.read_value()
        current = self._shard.registry.is_current(identity[0], identity[1])
        now = tf.equal(attempt, place[1]) if self._arbiter else place[1] >= attempt
        return self._shard.in_session(record, session) & current & tf.equal(record[RecordField.STEP], place[0]) & now

    def _is_open(self, worker: Tensor) -> Tensor:
        return tf.equal(self._state.closed.read_value(), 0) | tf.equal(at(self._state.admitted, worker), 1)

    def _enter(self, worker: Tensor) -> list[Any]:
        state, registry = self._state, self._shard.registry
        entered = [put(state.admitted, worker, tf.constant(1, tf.int64)), registry.touch(worker)]
        with tf.control_dependencies(entered):
            return [*entered, self._close(state.admitted.read_value(), registry.alive())]

    def _close(self, admitted: Tensor, alive: Tensor) -> Any:
        """Close the round if `updates.synchronous.protocol.quorum` is reached; a closed one stays so."""
        waits = clock() < self._state.wait_until.read_value()
        present, expected = tf.math.count_nonzero(alive), tf.constant(self._config.workers, tf.int64)
        if self._shard.ledger:
            expected = self._shard.ledger.active_workers(self._config.workers)  # the others have nothing to train
        wanted = tf.where(waits, tf.maximum(present, expected), present) - self._config.backups
        reached = tf.reduce_sum(admitted) >= tf.maximum(wanted, 1)
        closed = tf.maximum(self._state.closed.read_value(), tf.cast(reached, tf.int64))
        return self._state.closed.assign(closed, read_value=False)

    def _counts(self) -> Tensor:
        state = self._state
        admitted, pushed = (tf.reduce_sum(found.read_value()) for found in (state.admitted, state.pushed))
        return tf.stack([state.attempt.read_value(), state.closed.read_value(), admitted, pushed])

    def _apply(self) -> Tensor:
        """Make the step of what is in the sums. 1."""
        result, ledger = self._state.result(), self._shard.ledger
        with tf.control_dependencies([self._step(result)]):
            noted = self._note(result.admitted)
            if ledger:
                noted.append(ledger.advance_all(result.admitted))
            with tf.control_dependencies(noted):
                return with_dependencies(self._state.clear(), applied())

    def _step(self, result: RoundResult) -> Tensor:
        """Move the parameters, and what workers hold of them. 1."""
        shadow, fmt = self._state.shadow, self._format()
        with tf.control_dependencies(shadow.begin(fmt) if shadow else []):
            # A round in which every gradient was left out is a step that changes nothing; it is fetched all the same.
            moved = tf.cond(
                result.weight > 0,
                lambda: with_dependencies(self._move(result), applied()),
                lambda: with_dependencies(self._shard.count_step(result.losses), applied()),
            )
        with tf.control_dependencies([moved]):
            followed = shadow.follow(fmt) if shadow else []
        with tf.control_dependencies([moved, *followed]):
            return applied()

    def _format(self) -> Tensor:
        """The format of the round under way. int64[]."""
        return tf.constant(0, tf.int64) if self._state.format is None else self._state.format.read_value()

    def _begin_next(self, made: Tensor, following: Tensor) -> Tensor:
        """Start the next round in its format if this call applied the step; return the format. int64[]."""
        state = self._state
        if state.format is None:
            return tf.constant(0, tf.int64)
        wanted = self._next_format() if self._arbiter else following
        fmt = tf.where(tf.equal(made, 1), wanted, state.format.read_value())
        return with_dependencies([state.format.assign(fmt, read_value=False)], fmt)

    def _next_format(self) -> Tensor:
        """Return the format that the arbiter chose for the next round. int64[]."""
        return self._state.next_format()

    def _move(self, result: RoundResult) -> list[Any]:
        """Move the parameters by the mean; the operations that are yet to be waited for."""
        return self._shard.apply(result.mean(), result.touched(), result.losses, moves=self._config.moves)

    def _note(self, admitted: Tensor) -> list[Any]:
        """Remember of whose gradients the step was made."""
        state, made = self._state, self._shard.record.read_value()[RecordField.STEP]
        served = tf.where(tf.equal(admitted, 1), made, state.served.read_value())
        noted = [state.served.assign(served, read_value=False)]
        if self._arbiter and not self._config.ordered:
            noted.append(self._wait_no_longer(admitted))
        return noted

    def _last_round(self, identity: Tensor) -> Tensor:
        """Return the last step that the worker's gradient is part of. int64[]."""
        return at(self._state.served, identity[0])

    def _may_apply(self, place: Tensor) -> Tensor:
        """Whether the arbiter may make the step. bool[]."""
        state = self._state
        return tf.equal(state.attempt.read_value(), place[1]) & tf.equal(state.closed.read_value(), 1)

    def _may_follow(self, place: Tensor) -> Tensor:
        """Whether another server may make the step that the arbiter has made. bool[]."""
        del place
        return tf.constant(True)

    def _may_renew(self) -> Tensor:
        """Whether the arbiter may give the attempt up. bool[]."""
        return tf.constant(True)

    def _wait_no_longer(self, admitted: Tensor) -> Any:
        """Once all have come, a worker that is gone is not waited for as one that has yet to come."""
        state = self._state
        all_came = tf.reduce_sum(admitted) >= self._config.workers - self._config.backups
        until = state.wait_until.read_value()
        return state.wait_until.assign(tf.where(all_came, tf.zeros_like(until), until), read_value=False)

    def _renew(self) -> list[Any]:
        return [self._state.attempt.assign_add(tf.constant(1, tf.int64), read_value=False), *self._state.clear()]
