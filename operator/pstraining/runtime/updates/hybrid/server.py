"""Rounds of hybrid updates on one parameter server, as operations to emit inside a traced function.

`updates.hybrid.protocol` defines them. They add to synchronous rounds the members of each attempt's ring, the members'
addresses, and the age of the server's dense parameters: workers have newer ones, and push them when the chief saves.
"""

from collections.abc import Sequence
from typing import Final

import tensorflow as tf

from pstraining.runtime.allreduce.topology import PEER_SIZE
from pstraining.runtime.model.tensor import Operation, Tensor
from pstraining.runtime.ps.critical_section import applied, clock, is_ahead, not_applied, with_dependencies
from pstraining.runtime.ps.messages import Sender, SessionToken
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.tensors import WORKER_SLOTS, at, field, put
from pstraining.runtime.ps.variables import PSVariable
from pstraining.runtime.ps.worker_registry import LAPSE_SECONDS
from pstraining.runtime.updates.hybrid.messages import ArbiterState, DenseAge, HybridLookReply, RingMembers
from pstraining.runtime.updates.synchronous.accumulators import Accumulators, RoundConfig, RoundResult
from pstraining.runtime.updates.synchronous.messages import RoundPlace
from pstraining.runtime.updates.synchronous.server import RoundOps

BARRED_SECONDS: Final = LAPSE_SECONDS
"""Seconds for which rings omit a suspected worker; afterwards the arbiter itself detects missing heartbeats."""
CLAIM_SECONDS: Final = 10.0
"""Seconds that a worker has to push its dense parameters before another worker may."""


class HybridAccumulators(Accumulators):
    """The variables of hybrid rounds on one server; create it inside `variables_on` for that server."""

    def __init__(self, shard: Shard, config: RoundConfig) -> None:
        super().__init__(shard, config)
        self.behind = tf.Variable(tf.zeros([], tf.int64))
        """Steps applied since this server's dense parameters were written."""
        self.made_norms = tf.Variable(tf.zeros([self.norms.length], tf.float64)) if self.norms else None
        """The sums of squares by which the last step was clipped; None if it is not clipped by norm together with rows
        of tables."""
        # The arbiter's.
        self.members = tf.Variable(tf.zeros([WORKER_SLOTS], tf.int64))
        """1 for every worker in the ring of this attempt."""
        self.made_in = tf.Variable(tf.zeros([], tf.int64))
        """The attempt in which the last step was applied."""
        self.peers = tf.Variable(tf.zeros([WORKER_SLOTS, PEER_SIZE], tf.int64))
        """Addresses of workers, see `allreduce.topology.Peer`; the first number is the incarnation."""
        self.barred_until = tf.Variable(tf.zeros([WORKER_SLOTS], tf.float64))
        self.paused_until = tf.Variable(tf.zeros([], tf.float64))
        """Time until which no step is applied, because the chief saves; seconds since 1970."""
        self.claim = tf.Variable(tf.zeros([3], tf.int64))
        """The worker that pushes its dense parameters, its incarnation, and their global step."""
        self.claimed_until = tf.Variable(tf.zeros([], tf.float64))

    @property
    def carried(self) -> list[PSVariable]:
        """See `Accumulators`; also the workers' addresses, and the attempt that is the outcome of the last step."""
        return [*super().carried, self.made_in, self.peers]


class HybridRoundOps(RoundOps):
    """Emits a server's part in hybrid rounds. The first server is the arbiter."""

    def __init__(self, shard: Shard, config: RoundConfig) -> None:
        super().__init__(shard, config)
        self._hybrid = HybridAccumulators.of(shard)

    def register_peer(self, session: Tensor, identity: Tensor, peer: Tensor) -> Tensor:
        """Store a worker's address on the arbiter; 1 if the process has its index. int64[].

        Args:
            session: term and generation. int64[2].
            identity: worker and incarnation. int64[2].
            peer: see `allreduce.topology.Peer`. int64[PEER_SIZE].
        """

        def body(session: Tensor, identity: Tensor, peer: Tensor) -> Tensor:
            sender = Sender.unpack(identity)
            current = self._shard.registry.is_current(*sender)
            allowed = self._shard.in_session(self._shard.record.read_value(), session) & current
            return tf.cond(
                allowed,
                lambda: with_dependencies([put(self._hybrid.peers, sender.worker, peer)], applied()),
                not_applied,
            )

        return self._critical([session, identity, peer], body)

    def look(self, identity: Tensor) -> tuple[Tensor, Tensor]:
        """Return this server's state of the round.

        Returns:
            The packed `HybridLookReply`. int64[13], uint8[1 or 4, WORKER_SLOTS / 8].
        """

        def body(identity: Tensor) -> tuple[Tensor, Tensor]:
            own, registry = self._hybrid, self._shard.registry
            sender, no = Sender.unpack(identity), tf.constant(False)
            state = [variable.read_value() for variable in (own.attempt, own.closed, own.made_in, own.behind)]
            sets, arbiter = [own.pushed.read_value()], ArbiterState(no, no, no, no)
            if self._arbiter:
                current = registry.is_current(*sender)
                heard = tf.cond(
                    current, lambda: with_dependencies([registry.touch(sender.worker)], applied()), not_applied
                )
                with tf.control_dependencies([heard]):
                    ready = self._ready()
                    paused = is_ahead(own.paused_until.read_value())
                    prepared = tf.logical_not(self._may_renew())
                    arbiter = ArbiterState(self._waits(ready), paused, current, prepared)
                    sets += [own.admitted.read_value(), own.members.read_value(), ready]
            with tf.control_dependencies([*state, *arbiter, *sets]):
                return HybridLookReply.pack(self._shard.record.read_value(), state, arbiter, sets)

        found: tuple[Tensor, Tensor] = self._critical([identity], body)
        return found

    def form_ring(self, session: Tensor, place: Tensor, suspects: Tensor) -> Tensor:
        """Start another attempt with all ready workers, by compare-and-set on the arbiter; 1 if this call did. int64[].

        Args:
            session: term and generation. int64[2].
            place: step and attempt. int64[2].
            suspects: workers and incarnations that are left out for a while, -1 for none. int64[2, 2].
        """

        def body(session: Tensor, place: Tensor, suspects: Tensor) -> Tensor:
            record, own, round_ = self._shard.record.read_value(), self._hybrid, RoundPlace.unpack(place)
            same = tf.equal(field(record, RecordField.STEP), round_.step)
            same &= tf.equal(own.attempt.read_value(), round_.attempt)

            def bar() -> Tensor:
                found = tf.one_hot(suspects[:, 0], WORKER_SLOTS, dtype=tf.int64) * suspects[:, 1:]
                known = self._shard.registry.incarnations.read_value()
                suspected = tf.reduce_any(tf.equal(found, known) & (found > 0), 0)
                until = tf.where(suspected, clock() + BARRED_SECONDS, own.barred_until.read_value())
                with tf.control_dependencies([own.barred_until.assign(until, read_value=False)]):
                    return with_dependencies(self._renew(), applied())

            allowed = self._shard.in_session(record, session) & same & self._may_renew()
            return tf.cond(allowed, bar, not_applied)

        return self._critical([session, place, suspects], body)

    def members(self) -> Tensor:
        """Return the packed `RingMembers` of the arbiter's attempt. int64[1 + number of members, 1 + PEER_SIZE]."""

        def body() -> Tensor:
            own = self._hybrid
            return RingMembers.pack(own.attempt.read_value(), own.members.read_value(), own.peers.read_value())

        return self._critical([], body)

    def pause_steps(self, seconds: Tensor) -> Tensor:
        """Apply no step on the arbiter for a number of seconds; return the `DenseAge`, int64[2].

        The age includes a step that can no longer be stopped.
        """

        def body(seconds: Tensor) -> Tensor:
            own = self._hybrid
            until = own.paused_until.assign(clock() + seconds, read_value=False)
            with tf.control_dependencies([until]):
                coming = (
                    tf.constant(0, tf.int64)
                    if not self._arbiter
                    else tf.cast(tf.logical_not(self._may_renew()), tf.int64)
                )
                step = field(self._shard.record.read_value(), RecordField.STEP)
                return DenseAge(step, own.behind.read_value() + coming).pack()

        return self._critical([seconds], body)

    def claim(self, session: Tensor, identity: Tensor, step: Tensor, suspects: Tensor) -> Tensor:
        """Claim on the arbiter the push of a step's dense parameters; 1 if this worker is to push them. int64[].

        A claim ends with the next step, after `CLAIM_SECONDS`, or when the claiming worker dies. That worker may have
        written to some of the servers; the next one writes to all of them again.

        Args:
            session: term and generation. int64[2].
            identity: worker and incarnation. int64[2].
            step: global step of the worker's dense parameters. int64[].
            suspects: see `form_ring`; their claims do not count. int64[2, 2].
        """

        def body(session: Tensor, identity: Tensor, step: Tensor, suspects: Tensor) -> Tensor:
            own = self._hybrid
            claim = own.claim.read_value()
            holder = claim[:2]
            worker, incarnation = Sender.unpack(holder)
            lives = tf.equal(self._ready()[worker], 1) & self._shard.registry.is_current(worker, incarnation)
            lives &= ~tf.reduce_any(tf.reduce_all(tf.equal(suspects, holder), 1))
            held = lives & tf.equal(claim[2], step) & is_ahead(own.claimed_until.read_value(), CLAIM_SECONDS)
            free = ~held | tf.reduce_all(tf.equal(holder, identity))
            wanted = is_ahead(own.paused_until.read_value())

            def take() -> Tensor:
                taken = own.claim.assign(tf.concat([identity, [step]], 0), read_value=False)
                until = own.claimed_until.assign(clock() + CLAIM_SECONDS, read_value=False)
                return with_dependencies([taken, until], applied())

            return tf.cond(self._is_of(session, step) & wanted & free, take, not_applied)

        return self._critical([session, identity, step, suspects], body)

    def store(self, session: Tensor, step: Tensor, values: Sequence[Tensor]) -> Tensor:
        """Write the dense state of a step, in the order of `Shard.dense`; 1 if this server is at that step. int64[]."""

        def body(session: Tensor, step: Tensor, *values: Tensor) -> Tensor:
            def write() -> Tensor:
                pairs = zip(self._shard.dense, values, strict=True)
                done = [variable.assign(value, read_value=False) for variable, value in pairs]
                done.append(self._hybrid.behind.assign(tf.constant(0, tf.int64), read_value=False))
                return with_dependencies(done, applied())

            return tf.cond(self._is_of(session, step), write, not_applied)

        return self._critical([session, step, *values], body)

    def load(self) -> tuple[Tensor, list[Tensor]]:
        """Return the `DenseAge`, int64[2], and this server's dense state in the order of `Shard.dense`."""

        def body() -> tuple[Tensor, list[Tensor]]:
            age = DenseAge(field(self._shard.record.read_value(), RecordField.STEP), self._hybrid.behind.read_value())
            return age.pack(), [variable.read_value() for variable in self._shard.dense]

        found: tuple[Tensor, list[Tensor]] = self._critical([], body)
        return found

    def made_norms(self) -> Tensor:
        """Return the step, the attempt in which it was applied, and the norms by which it was clipped.

        Norms are sums of squares. float64[2 + length].
        """

        def body() -> Tensor:
            own, norms = self._hybrid, self._hybrid.made_norms
            if norms is None:
                raise TypeError("the mean is not clipped by norm together with rows of tables")
            numbers = [field(self._shard.record.read_value(), RecordField.STEP), own.made_in.read_value()]
            return tf.concat([tf.cast(tf.stack(numbers), tf.float64), norms.read_value()], 0)

        return self._critical([], body)

    def give_up_state(self, session: Tensor, step: Tensor) -> Tensor:
        """Mark the server's set as incomplete, because no worker has the dense parameters of a step. int64[]."""

        def body(session: Tensor, step: Tensor) -> Tensor:
            record = self._shard.record
            lost = self._shard.in_session(record.read_value(), session) & self._is_of(session, step)
            lost &= self._hybrid.behind.read_value() > 0

            def unset() -> Tensor:
                kept = tf.tensor_scatter_nd_update(
                    record.read_value(), [[RecordField.GENERATION]], [tf.constant(0, tf.int64)]
                )
                return with_dependencies([record.assign(kept, read_value=False)], applied())

            return tf.cond(lost, unset, not_applied)

        return self._critical([session, step], body)

    def forget(self, worker: Tensor, newcomer: Tensor) -> list[Operation]:
        """See `RoundOps.forget`; ends the attempt of a ring with the former process."""
        if not self._arbiter:
            return []
        was = newcomer & tf.equal(at(self._hybrid.members, worker), 1) & self._may_renew()
        return [tf.cond(was, lambda: with_dependencies(self._renew(), applied()), not_applied)]

    def _is_of(self, session: Tensor, step: Tensor) -> Tensor:
        """Return whether this server is at a step of the set, also when training is over or paused. bool[]."""
        record, generation = self._shard.record.read_value(), SessionToken.unpack(session).generation
        return tf.equal(tf.abs(field(record, RecordField.GENERATION)), generation) & tf.equal(
            field(record, RecordField.STEP), step
        )

    def _ready(self) -> Tensor:
        """Return the workers that are alive, reachable and not suspected. int64[WORKER_SLOTS]."""
        own, registry = self._hybrid, self._shard.registry
        reached = tf.equal(own.peers.read_value()[:, 0], registry.incarnations.read_value())
        return tf.cast(registry.alive() & reached & ~is_ahead(own.barred_until.read_value()), tf.int64)

    def _waits(self, ready: Tensor) -> Tensor:
        few = tf.reduce_sum(ready) < self._all_workers()
        return few & is_ahead(self._hybrid.wait_until.read_value())

    def _is_open(self, worker: Tensor) -> Tensor:
        return tf.equal(at(self._hybrid.members, worker), 1)

    def _close(self, admitted: Tensor, alive: Tensor) -> Operation:
        del alive  # a member that died pushes nothing, and the attempt is given up
        members = self._hybrid.members.read_value()
        whole = tf.reduce_all(admitted >= members) & (tf.reduce_sum(members) > 0)
        return self._hybrid.closed.assign(tf.cast(whole, tf.int64), read_value=False)

    def _renew(self) -> list[Operation]:
        ready = self._ready()
        until = self._hybrid.wait_until.read_value()
        came = tf.reduce_sum(ready) >= self._all_workers()
        kept = [
            self._hybrid.members.assign(tf.where(self._waits(ready), tf.zeros_like(ready), ready), read_value=False),
            # Once all workers have registered, a missing worker counts as lost, not as late.
            self._hybrid.wait_until.assign(tf.where(came, tf.zeros_like(until), until), read_value=False),
        ]
        return [*kept, *super()._renew()]

    def _move(self, result: RoundResult) -> list[Operation]:
        return self._shard.apply_rows(result.touched(), result.losses, overflowed=self._overflowed(result))

    def _note(self, admitted: Tensor) -> list[Operation]:
        own = self._hybrid
        made_in = own.made_in.assign(self._attempt(), read_value=False)
        noted = [made_in, own.behind.assign_add(tf.constant(1, tf.int64), read_value=False)]
        if own.made_norms is not None:
            noted.append(own.made_norms.assign(self._totals(), read_value=False))
        return [*noted, self._wait_no_longer(admitted)] if self._arbiter else noted

    def _attempt(self) -> Tensor:
        """Return the attempt in which the step is applied. int64[]."""
        return self._hybrid.attempt.read_value()

    def _totals(self) -> Tensor:
        """Return the sums of squares by which the step is clipped. float64[length]."""
        return self._state.norms_or_raise().totals.read_value()

    def _last_round(self, sender: Sender) -> Tensor:
        del sender
        return self._hybrid.made_in.read_value()

    def _may_apply(self, place: RoundPlace) -> Tensor:
        return super()._may_apply(place) & ~self._is_paused()

    def _is_paused(self) -> Tensor:
        """Return whether no step may be applied now. bool[]."""
        return is_ahead(self._hybrid.paused_until.read_value())
