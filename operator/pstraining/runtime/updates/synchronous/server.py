"""A round of synchronous updates on one parameter server, as operations to emit inside a traced function.

`updates.synchronous.protocol` defines a round; this module has its compare-and-sets. Sums hold gradients in units of
the first weight, and each of n workers sends the n-th part: equal batches need no multiplication and no division. With
ordered sums each worker has a row, and rows are added in the order of the workers. Runs are then repeatable bit for
bit, at the cost of one copy of the parameters per worker.
"""

from collections.abc import Callable

import tensorflow as tf

from pstraining.runtime.model.tensor import Operation, Tensor
from pstraining.runtime.ps.critical_section import applied, is_ahead, not_applied, with_dependencies
from pstraining.runtime.ps.member import LockstepRounds
from pstraining.runtime.ps.messages import Sender
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.ps.shard import ServerHooks, Shard
from pstraining.runtime.ps.tensors import at, field, put
from pstraining.runtime.updates.gradients import ShardGradient
from pstraining.runtime.updates.synchronous.accumulators import RoundResult
from pstraining.runtime.updates.synchronous.messages import ApplyReply, LookReply, RoundPlace, ShardPushReply
from pstraining.runtime.updates.synchronous.norms import NormOps


class RoundOps(NormOps):
    """Emits the operations of rounds on one server."""

    def admit(self, session: Tensor, identity: Tensor, place: Tensor) -> Tensor:
        """Request admission to the round from the arbiter, before a push; 1 if the worker is admitted. int64[].

        Args:
            session: term and generation. int64[2].
            identity: worker and incarnation. int64[2].
            place: step and attempt. int64[2].
        """

        def body(session: Tensor, identity: Tensor, place: Tensor) -> Tensor:
            sender = Sender.unpack(identity)
            valid = self._is_valid(self._shard.record.read_value(), session, sender, RoundPlace.unpack(place))
            valid &= self._is_open(sender.worker)
            return tf.cond(valid, lambda: with_dependencies(self._enter(sender.worker), applied()), not_applied)

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
        """Add a worker's gradient to this server's sum once; the arbiter thereby admits the worker.

        Args:
            session: term and generation. int64[2].
            identity: worker and incarnation. int64[2].
            place: step and attempt. int64[2].
            progress: the worker's progress in its data after the step. int64[3].
            proposed: number of the format that this worker proposes for the next round. int64[].
            go: 1 on the arbiter; on other servers, the arbiter's verdict. int64[].
            gradient: this server's part; a gradient that is not finite counts as pushed, and is skipped.

        Returns:
            The `ShardPushReply`. int64[8].
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
            sender, round_ = Sender.unpack(identity), RoundPlace.unpack(place)
            state, worker = self._state, sender.worker
            record = self._shard.record.read_value()
            ledger = self._shard.ledger
            owed = ledger.is_expected(worker, progress) if ledger else tf.constant(True)
            valid = self._is_valid(record, session, sender, round_) & tf.equal(go, 1)
            void, valid = valid & tf.logical_not(owed), valid & owed
            same = tf.equal(state.attempt.read_value(), round_.attempt)
            there = same & tf.equal(at(state.pushed, worker), 1)
            wanted = self._is_open(worker) if self._arbiter else tf.constant(True)

            def add() -> Tensor:
                written = self._state.add(worker, round_.attempt, same, stats, gradients, touched)
                with tf.control_dependencies(written):
                    entered = [*self._enter(worker), *state.propose_format(worker, proposed)] if self._arbiter else []
                    if ledger:
                        entered.append(ledger.stage(worker, progress))
                return with_dependencies([*written, *entered], applied())

            taken = tf.cond(valid & wanted & tf.logical_not(there), add, not_applied)
            with tf.control_dependencies([taken]):
                return ShardPushReply(
                    in_sum=tf.maximum(taken, tf.cast(valid & there, tf.int64)),
                    done=field(record, RecordField.DONE),
                    step=field(record, RecordField.STEP),
                    attempt=state.attempt.read_value(),
                    closed=state.closed.read_value(),
                    admitted=tf.reduce_sum(state.admitted.read_value()),
                    pushed=tf.reduce_sum(state.pushed.read_value()),
                    void=void,
                ).pack()

        return self._critical(
            [session, identity, place, progress, proposed, go, gradient.stats, *tf.nest.flatten(load)], body
        )

    def look(self, identity: Tensor) -> tuple[Tensor, Tensor]:
        """Return this server's state of the round; the arbiter closes the round if enough workers are admitted.

        Returns:
            The packed `LookReply`. int64[8], uint8[1 or 3, WORKER_SLOTS / 8].
        """

        def body(identity: Tensor) -> tuple[Tensor, Tensor]:
            state, registry, sender = self._state, self._shard.registry, Sender.unpack(identity)
            record = self._shard.record.read_value()
            changed: list[Operation] = []
            sets = [state.pushed.read_value()]
            if self._arbiter:
                current = registry.is_current(*sender)
                heard = tf.cond(
                    current, lambda: with_dependencies([registry.touch(sender.worker)], applied()), not_applied
                )
                with tf.control_dependencies([heard]):
                    alive = registry.alive()
                    admitted = state.admitted.read_value()
                    changed = [self._close(admitted, alive)]
                sets += [admitted, tf.cast(alive, tf.int64)]
            with tf.control_dependencies(changed):
                return LookReply.pack(
                    record, state.attempt.read_value(), state.closed.read_value(), self._last_round(sender), sets
                )

        found: tuple[Tensor, Tensor] = self._critical([identity], body)
        return found

    def apply(self, session: Tensor, identity: Tensor, place: Tensor, go: Tensor, fmt: Tensor) -> Tensor:
        """Apply the round's step: on the arbiter by compare-and-set, then on the other servers if `go` is 1.

        Args:
            session: term and generation. int64[2].
            identity: worker and incarnation. int64[2].
            place: step and attempt. int64[2].
            go: 1 on the arbiter; on other servers, whether the arbiter has applied the step. int64[].
            fmt: on other servers, the arbiter's format for the next round. int64[].

        Returns:
            The `ApplyReply`. int64[3].
        """

        return self._critical([session, identity, place, go, fmt], self._make)

    def apply_and_fetch(
        self, fmt: int, session: Tensor, identity: Tensor, place: Tensor, go: Tensor, following: Tensor
    ) -> tuple[Tensor, list[list[Tensor]]]:
        """Apply the round's step, and return the tensors with which a worker reaches the step after its own.

        For a segment with a shadow, the tensors are the encoded move; for other segments, the parameters.

        Args:
            fmt: number of the worker's format.
            session: term and generation. int64[2].
            identity: worker and incarnation. int64[2].
            place: the worker's step, and an attempt. int64[2].
            go: see `apply`. int64[].
            following: the arbiter's format for the next round. int64[].

        Returns:
            The `FetchReply`, int64[5]; and the tensors, which are empty if the step cannot be fetched.
        """

        def body(
            session: Tensor, identity: Tensor, place: Tensor, go: Tensor, following: Tensor
        ) -> tuple[Tensor, list[list[Tensor]]]:
            with tf.control_dependencies([self._make(session, identity, place, go, following)]):
                return self._read_update(fmt, Sender.unpack(identity), RoundPlace.unpack(place))

        found: tuple[Tensor, list[list[Tensor]]] = self._critical([session, identity, place, go, following], body)
        return found

    def _make(self, session: Tensor, identity: Tensor, place: Tensor, go: Tensor, following: Tensor) -> Tensor:
        record, round_ = self._shard.record.read_value(), RoundPlace.unpack(place)
        same = tf.equal(field(record, RecordField.STEP), round_.step)
        allowed = self._shard.in_session(record, session) & same & tf.equal(go, 1)
        allowed &= self._may_apply(round_) if self._arbiter else self._may_follow(round_)
        made = tf.cond(allowed, self._apply, not_applied)
        with tf.control_dependencies([made]):
            return ApplyReply(
                applied=tf.equal(field(record, RecordField.STEP) + made, round_.step + 1),
                last_round=self._last_round(Sender.unpack(identity)),
                format=self._begin_next(made, following),
            ).pack()

    def follow(self, session: Tensor, step: Tensor) -> Tensor:
        """Apply the step after `step`, which the arbiter has applied; 1 if this call did. int64[].

        Training may be over: it ends once the arbiter has the last step.
        """

        def body(session: Tensor, step: Tensor) -> Tensor:
            record = self._shard.record.read_value()
            behind = tf.equal(field(record, RecordField.STEP), step) & self._has_step_after(step)
            return tf.cond(self._shard.is_session(record, session) & behind, self._apply, not_applied)

        return self._critical([session, step], body)

    def _has_step_after(self, step: Tensor) -> Tensor:
        """Return whether this server has the gradients of a step that the arbiter has applied; False on the arbiter."""
        del step
        return tf.constant(False) if self._arbiter else tf.reduce_sum(self._state.pushed.read_value()) > 0

    def give_up(self, session: Tensor, place: Tensor) -> Tensor:
        """Begin another attempt at the round, by compare-and-set on the arbiter; 1 if this call did. int64[]."""

        def body(session: Tensor, place: Tensor) -> Tensor:
            record, round_ = self._shard.record.read_value(), RoundPlace.unpack(place)
            same = tf.equal(field(record, RecordField.STEP), round_.step)
            same &= tf.equal(self._state.attempt.read_value(), round_.attempt)
            allowed = self._shard.in_session(record, session) & same & self._may_renew()
            return tf.cond(allowed, lambda: with_dependencies(self._renew(), applied()), not_applied)

        return self._critical([session, place], body)

    def forget(self, worker: Tensor, newcomer: Tensor) -> list[Operation]:
        """Give up the attempt with the gradient of a worker's former process; called in the critical section."""
        if not self._arbiter:
            return []
        held = newcomer & tf.equal(at(self._state.admitted, worker), 1) & self._may_renew()
        return [tf.cond(held, lambda: with_dependencies(self._renew(), applied()), not_applied)]

    def _is_valid(self, record: Tensor, session: Tensor, sender: Sender, place: RoundPlace) -> Tensor:
        """Return whether a gradient is of the arbiter's attempt; on other servers, of that or a later attempt."""
        attempt = self._state.attempt.read_value()
        current = self._shard.registry.is_current(*sender)
        now = tf.equal(attempt, place.attempt) if self._arbiter else place.attempt >= attempt
        return (
            self._shard.in_session(record, session)
            & current
            & tf.equal(field(record, RecordField.STEP), place.step)
            & now
        )

    def _is_open(self, worker: Tensor) -> Tensor:
        return tf.equal(self._state.closed.read_value(), 0) | tf.equal(at(self._state.admitted, worker), 1)

    def _enter(self, worker: Tensor) -> list[Operation]:
        state, registry = self._state, self._shard.registry
        entered = [put(state.admitted, worker, tf.constant(1, tf.int64)), registry.touch(worker)]
        with tf.control_dependencies(entered):
            return [*entered, self._close(state.admitted.read_value(), registry.alive())]

    def _close(self, admitted: Tensor, alive: Tensor) -> Operation:
        """Close the round if `updates.synchronous.protocol.quorum` is reached; a closed round remains closed."""
        waits = is_ahead(self._state.wait_until.read_value())
        present, expected = tf.math.count_nonzero(alive), self._all_workers()
        if self._shard.ledger:  # the other workers have nothing to train
            expected = self._shard.ledger.active_workers(self._config.workers, expected)
        wanted = tf.where(waits, tf.maximum(present, expected), present) - self._config.backups
        reached = tf.reduce_sum(admitted) >= tf.maximum(wanted, 1)
        closed = tf.maximum(self._state.closed.read_value(), tf.cast(reached, tf.int64))
        return self._state.closed.assign(closed, read_value=False)

    def _apply(self) -> Tensor:
        """Apply the accumulated gradients as one step. 1."""
        result, ledger = self._state.result(), self._shard.ledger
        with tf.control_dependencies([self._step(result)]):
            noted = self._note(result.admitted)
            if ledger:
                noted.append(ledger.advance_all(result.admitted))
            with tf.control_dependencies(noted):
                return with_dependencies(self._state.clear(), applied())

    def _step(self, result: RoundResult) -> Tensor:
        """Apply the result to the parameters and to the shadow. 1."""
        shadow, fmt = self._state.shadow, self._format()
        with tf.control_dependencies(shadow.begin(fmt) if shadow else []):
            # A round whose gradients were all skipped is a step without a change; workers fetch it like any other.
            moved = tf.cond(
                result.weight > 0,
                lambda: with_dependencies([*self._move(result), *self._scale_loss(result)], applied()),
                lambda: with_dependencies(self._shard.count_step(result.losses), applied()),
            )
        with tf.control_dependencies([moved]):
            followed = shadow.follow(fmt) if shadow else []
        with tf.control_dependencies([moved, *followed]):
            return applied()

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

    def _move(self, result: RoundResult) -> list[Operation]:
        """Apply the mean to the parameters; return the operations to wait for."""
        return self._shard.apply(
            result.mean(),
            result.touched(),
            result.losses,
            moves=self._config.moves,
            overflowed=self._overflowed(result),
            trust=result.trust,
        )

    def _overflowed(self, result: RoundResult) -> Tensor | None:
        """Return whether the mean is not finite, bool[]; None if rounds do not scale the loss."""
        return tf.greater(result.overflowed, 0) if self.loss_scale else None

    def _scale_loss(self, result: RoundResult) -> list[Operation]:
        """Decide the loss scale of the next round; return the operations to wait for."""
        return self.loss_scale.advance(self._overflowed(result)) if self.loss_scale else []

    def _note(self, admitted: Tensor) -> list[Operation]:
        """Record the workers whose gradients are part of the step."""
        state, made = self._state, field(self._shard.record.read_value(), RecordField.STEP)
        served = tf.where(tf.equal(admitted, 1), made, state.served.read_value())
        noted = [state.served.assign(served, read_value=False)]
        if self._arbiter and not self._config.ordered:
            noted.append(self._wait_no_longer(admitted))
        return noted

    def _may_apply(self, place: RoundPlace) -> Tensor:
        """Return whether the arbiter may apply the step. bool[]."""
        state = self._state
        complete = tf.equal(state.attempt.read_value(), place.attempt) & tf.equal(state.closed.read_value(), 1)
        return complete & self._is_settled(place) if self.has_norms else complete

    def _may_follow(self, place: RoundPlace) -> Tensor:
        """Return whether another server may apply the step that the arbiter has applied. bool[]."""
        del place
        return tf.constant(True)

    def _may_renew(self) -> Tensor:
        """Return whether the arbiter may give up the attempt. bool[]."""
        return tf.constant(True)

    def _wait_no_longer(self, admitted: Tensor) -> Operation:
        """End the wait for workers that have not registered, once all have: a missing worker then counts as lost."""
        state = self._state
        all_came = tf.reduce_sum(admitted) >= self._all_workers() - self._config.backups
        until = state.wait_until.read_value()
        return state.wait_until.assign(tf.where(all_came, tf.zeros_like(until), until), read_value=False)

    def _all_workers(self) -> Tensor:
        """Return the job's number of workers, without those that left when it was scaled down. int64[]."""
        workers, known = tf.constant(self._config.workers, tf.int64), self._shard.registry.workers.read_value()
        return workers if self._config.ordered else tf.where(known > 0, tf.minimum(known, workers), workers)

    def _renew(self) -> list[Operation]:
        return [self._state.attempt.assign_add(tf.constant(1, tf.int64), read_value=False), *self._state.clear()]


def round_hooks(
    name: str,
    primary: Callable[[Shard], RoundOps],
    member: Callable[[Shard, bool], LockstepRounds] | None,
) -> ServerHooks:
    """Return the servers' hooks that all modes with rounds share.

    Args:
        name: a text that must be equal on all tasks of the job.
        primary: returns a primary's operations.
        member: returns the operations of a member of a shard with standbys, as a standby if its second argument is
            True; None if standbys do not apply the same steps.
    """

    def on_newcomer(shard: Shard, worker: Tensor, newcomer: Tensor) -> list[Operation]:
        return primary(shard).forget(worker, newcomer)

    def follow(shard: Shard, session: Tensor, step: Tensor) -> Tensor:
        return primary(shard).follow(session, step)

    return ServerHooks(
        name=name,
        on_newcomer=on_newcomer,
        follow=follow,
        paired=member is not None,
        agrees_on_norms=True,
        member_round_ops=member,
    )
