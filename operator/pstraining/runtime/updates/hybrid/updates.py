"""Hybrid updates: dense gradients around a ring of the workers, rows of tables through the parameter servers.

Every worker holds all dense parameters and applies each step to them; `updates.hybrid.protocol` combines both parts to
one step. Workers push the dense parameters to the servers when the chief saves. Standbys apply the same steps to the
tables, and a worker applies a step to its dense parameters once all members have.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, overload

import tensorflow as tf

from pstraining.runtime.allreduce.topology import RingTopology
from pstraining.runtime.model.tensor import Batch, Tensor, TracedFunction
from pstraining.runtime.ps.data_ledger import SplitPosition
from pstraining.runtime.ps.member import LockstepRounds
from pstraining.runtime.ps.record import Session, ShardRecord
from pstraining.runtime.ps.shard import ServerHooks, Shard
from pstraining.runtime.ps.store import ParameterStore, int64
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.updates.base import FIRST_PAUSE, LONGEST_PAUSE, BoundUpdates, StepResult, as_tensor
from pstraining.runtime.updates.gradients import NEVER, GradientComputer, LocalGradient
from pstraining.runtime.updates.hybrid import protocol as hybrid_protocol
from pstraining.runtime.updates.hybrid.client import HybridOperations
from pstraining.runtime.updates.hybrid.messages import (
    FollowReply,
    HybridLookReply,
    RingMembers,
    StandbyState,
    pack_suspects,
)
from pstraining.runtime.updates.hybrid.protocol import HybridAction
from pstraining.runtime.updates.hybrid.server import HybridAccumulators
from pstraining.runtime.updates.hybrid.two_phase_commit import (
    HybridPrimaryRoundOps,
    HybridStandbyRoundOps,
    ReplicatedHybridAccumulators,
    primary_hybrid_ops,
)
from pstraining.runtime.updates.hybrid.worker import HybridWorker
from pstraining.runtime.updates.messages import GradientStats
from pstraining.runtime.updates.synchronous import protocol as sync_protocol
from pstraining.runtime.updates.synchronous.accumulators import RoundConfig
from pstraining.runtime.updates.synchronous.messages import RoundPlace, push_observation
from pstraining.runtime.updates.synchronous.protocol import PushStatus
from pstraining.runtime.updates.synchronous.server import round_hooks

LOST_SECONDS: Final = 10.0
"""Seconds that workers wait for a worker with the newest dense parameters before they give these up."""


def hooks(name: str, config: RoundConfig, *, paired: bool = False) -> ServerHooks:
    """Return the servers' hooks of hybrid updates.

    Args:
        name: a text that must be equal on all tasks of the job.
        config: configuration of the rounds.
        paired: whether standbys apply the same steps.
    """

    def member_round_ops(shard: Shard, is_standby: bool) -> LockstepRounds:
        return (HybridStandbyRoundOps if is_standby else HybridPrimaryRoundOps)(shard, config)

    return replace(
        round_hooks(
            name,
            primary=lambda shard: primary_hybrid_ops(shard, config),
            member=member_round_ops if paired else None,
        ),
        make_mode_state=lambda shard: (ReplicatedHybridAccumulators if paired else HybridAccumulators)(shard, config),
        pause_steps=lambda shard, seconds: primary_hybrid_ops(shard, config).pause_steps(seconds),
    )


class HybridUpdates(BoundUpdates):
    """A worker's steps in mode Hybrid on one assignment of members.

    Args:
        worker: the worker's state.
        store: the model and the servers.
        computer: computes gradients.
        config: configuration of the rounds.
    """

    def __init__(
        self, worker: HybridWorker, store: ParameterStore, computer: GradientComputer, *, config: RoundConfig
    ) -> None:
        super().__init__(store, computer)
        self._shared, self._config = worker, config
        self._dense, self._member, self._worker_progress = worker.dense, worker.member, worker.progress
        self._progress = worker.no_data_progress
        self._token, self._behind = Session(0, 0), 0
        self._is_current = False  # whether the local parameters are those of the next gradient
        self._alone_since: float | None = None  # since when no worker has the newest dense parameters
        self.is_idempotent = store.updates.paired
        """See `Updates`: the outcome of a step is stored on several servers."""
        servers = [primary_hybrid_ops(shard, config) for shard in store.shards]
        standbys = [[HybridStandbyRoundOps(standby, config) for standby in own] for own in store.standbys_of]
        self._ops = HybridOperations(store, servers, standbys, computer)

    def bind(self, store: ParameterStore) -> "HybridUpdates":
        """See `BoundUpdates`."""
        return HybridUpdates(self._shared.on(store), store, self._computer.bind(store), config=self._config)

    def trace(self, batches: Sequence[Batch]) -> None:
        """See `BoundUpdates`; also trace the functions of the dense parameters: each layout has its own."""
        super().trace(batches)
        self._dense.warm_up()

    def warm_up(self, batches: Sequence[Batch]) -> None:
        """Trace every function of a step, in a session that never exists, which the servers reject."""
        self.start_session(Session(0, 0))
        gradient = self._compute(batches)
        self._dense.warm_up()
        call, ops, place = self._client.call, self._ops, self._place(0)
        request = self._session, self._shared.identity, place
        call(ops.look, self._shared.identity)
        self._register()
        call(ops.form_ring, self._session, place, self._barred())
        call(ops.members)
        call(ops.rates)
        call(ops.push, *request, self._shared.no_data_progress, gradient.stats, gradient.rows)
        call(ops.apply, *request, *self._dense_squares(None, None))
        if self._dense.shares_norms:
            call(ops.made_norms)

    def _usual_step_functions(self, batches: Sequence[Batch]) -> Iterator[tuple[TracedFunction, tuple[object, ...]]]:
        """See `BoundUpdates`."""
        ops, session, place = self._ops, self._session_tensor(Session(0, 0)), self._place(NEVER)
        request = session, self._shared.identity, place
        yield ops.look, (self._shared.identity,)
        yield ops.register_peer, (session, self._shared.identity, self._peer())
        yield ops.form_ring, (session, place, self._barred())
        yield ops.members, ()
        yield ops.rates, ()
        if self._computer.is_one_pass(batches):
            yield ops.compute, (batches[0], place)
        for length in (0, 1):  # two lengths generalize the trace to any length
            stats, rows = self._computer.zero_rows(length)
            yield ops.push, (*request, self._shared.no_data_progress, stats, rows)
        yield ops.apply, (*request, *self._dense_squares(None, None))
        if self._dense.shares_norms:
            yield ops.made_norms, ()

    def start_session(self, session: Session) -> None:
        """Start a session; the local parameters remain if the session has the same set."""
        if session.generation:
            self._shared.take_over()
        self._member.leave()
        worker_progress = self._worker_progress
        if session.generation and session.generation != worker_progress.generation:
            worker_progress.generation, worker_progress.tried, worker_progress.sent = session.generation, None, None
            self._member.forget()
        self._token, self._is_current, self._alone_since = session, False, None
        self._session, self._registered = self._session_tensor(session), False

    def on_idle(self, shards: Sequence[ShardRecord]) -> None:
        """Push the dense parameters to the servers if the chief requests them."""
        if self._dense.step is None or any(abs(s.generation) != self._worker_progress.generation for s in shards):
            return
        observation, _ = self._look(0.0)
        if observation.paused:
            self._push_dense(observation)

    def step(self, batches: Sequence[Batch], progress: SplitPosition | None = None) -> StepResult:
        """Compute the gradient, add it up around the ring, push its rows, and return when the round is over."""
        worker_progress = self._worker_progress
        if not self._is_current:
            again = worker_progress.tried is batches  # the outcome of their step is unknown
            if worker_progress.sent:
                observation, _ = self._look(0.0)
                if worker_progress.is_sent_made(observation) and again:
                    return StepResult(True, True, False, observation.arbiter.step, worker_progress.loss)
            if over := self._run_round(None, worker_progress.loss if again else 0.0, again=again):
                return over
            self._dense.show()
            self._is_current = True
        with tf.device(self._client.local):
            self._progress = as_tensor(progress)
        gradient = self._compute(batches)
        stats = GradientStats.unpack(gradient.stats)
        worker_progress.tried, worker_progress.loss = batches, stats.loss
        result = self._run_round(gradient, stats.loss)
        return replace(result, finite=bool(stats.finite))

    def close(self) -> None:
        """Leave the ring, and close the listening socket."""
        self._member.leave()
        self._member.transport.close()

    def _compute(self, batches: Sequence[Batch]) -> LocalGradient:
        """Return the gradient; with standbys, by a function that another thread can trace in advance."""
        if not self._store.updates.paired or not self._computer.is_one_pass(batches):
            return self._computer.compute(batches)
        return LocalGradient(*self._client.run(self._ops.compute, batches[0], self._place(0)))

    @overload
    def _run_round(self, mine: LocalGradient, loss: float) -> StepResult: ...

    @overload
    def _run_round(self, mine: None, loss: float, *, again: bool = False) -> StepResult | None: ...

    def _run_round(self, mine: LocalGradient | None, loss: float, *, again: bool = False) -> StepResult | None:
        """Participate in the round of this worker's step until the round is over.

        Without a gradient, return None once a gradient of the newest parameters is needed; with `again`, return a
        result if the last gradient turns out to be applied.
        """
        if not self._registered:
            self._register()
        step, member = self._dense.step, self._member
        # With an unbroken ring and a gradient, the sum needs no query before it.
        action, at = HybridAction.SUM if mine and member.is_whole else HybridAction.WAIT, (step, member.held)
        pause = FIRST_PAUSE
        while True:
            if action is HybridAction.SUM and mine is None:
                return None
            if mine and action in (HybridAction.SUM, HybridAction.PUSH):
                status = self._push(action, mine)
                if status is PushStatus.VOID:
                    return self._discard(loss)
                action = HybridAction.APPLY if status is PushStatus.COMPLETE else HybridAction.WAIT
                at = self._dense.step, member.held
            if action is HybridAction.APPLY and self._apply(*at) and mine:
                return self._apply_sum(loss)
            observation, over = self._look(loss)
            me = member.worker_state()
            if not observation.members & me.suspects:
                member.suspects = ()  # the arbiter has left them out
            if hybrid_protocol.is_made(observation, me) and (
                over or hybrid_protocol.next_action(observation, me) is HybridAction.SETTLE
            ):
                result = self._apply_sum(loss, goes_on=over is None)
                if mine or again:
                    return result
                continue
            if over:
                return over
            action = hybrid_protocol.next_action(observation, me)
            at = observation.arbiter.step, observation.arbiter.attempt
            if action is HybridAction.MISSED:
                member.lose()
            if mine and self._dense.step != step:  # the parameters of the gradient are outdated
                self._is_current = False
                return StepResult(True, False, False, observation.arbiter.step, loss)
            pause = self._act(action, observation, pause)

    def _push(self, action: HybridAction, mine: LocalGradient) -> PushStatus:
        """Add up around the ring unless that is done, and push the rows."""
        member = self._member
        if action is HybridAction.SUM and not member.add_up(mine, self._is_ring_current, self._ops.fetch_rates):
            return PushStatus.INCOMPLETE
        place = self._place(self._dense.step, member.held)
        replies = self._client.call(
            self._ops.push, self._session, self._shared.identity, place, self._progress, mine.stats, mine.rows
        )
        return sync_protocol.push_status(push_observation(replies))

    def _discard(self, loss: float) -> StepResult:
        """Discard the gradient, and with it the ring's sum that contains it."""
        self._member.leave()
        self._member.held = None
        return StepResult(False, False, False, self._dense.step or 0, loss)

    def _act(self, action: HybridAction, observation: hybrid_protocol.HybridObservation, pause: float) -> float:
        """Perform an action that needs no gradient; return the next pause in seconds."""
        arbiter, goes_on = observation.arbiter, True
        if action is HybridAction.FOLLOW:
            place = self._place(observation.slowest, arbiter.attempt)
            reply = self._client.call(self._ops.follow, self._session, self._shared.identity, place)
            goes_on = bool(FollowReply.unpack(reply).applied)
        elif action is HybridAction.FORM:
            place = self._place(arbiter.step, arbiter.attempt)
            if goes_on := bool(self._client.call(self._ops.form_ring, self._session, place, self._barred())):
                self._member.suspects = ()  # else another worker was faster, and may not know of them
        elif action is HybridAction.JOIN:
            self._join(observation)
        elif action in (HybridAction.WAIT, HybridAction.GIVE_WAY):
            self._give_up_if_lost(observation)
        # A rejected action may be rejected again for a while.
        if goes_on and action not in (HybridAction.WAIT, HybridAction.GIVE_WAY, HybridAction.PUSH):
            return FIRST_PAUSE
        if observation.paused:
            self._push_dense(observation)
        time.sleep(pause)
        return min(2 * pause, LONGEST_PAUSE)

    def _apply_sum(self, loss: float, *, goes_on: bool = True) -> StepResult:
        """Apply the sum that this worker holds, which is part of the parameters."""
        member, totals = self._member, None
        if self._dense.shares_norms:
            found = self._client.call(self._ops.made_norms)
            step, attempt, totals = int(found[0]), int(found[1]), found[2:]
            if (step - 1, attempt) != (self._dense.step, member.held):  # the others have made more steps since
                self._is_current, self._worker_progress.tried = False, None
                member.lose()
                return StepResult(True, True, False, step, loss)
        self._is_current, self._worker_progress.tried = goes_on, None
        return StepResult(True, True, False, member.settle(totals), loss)

    def _look(self, loss: float) -> tuple[hybrid_protocol.HybridObservation, StepResult | None]:
        """Return the servers' state, and a result if this worker's session is over."""
        answers, standbys = self._client.call(self._ops.look, self._shared.identity)
        replies = [HybridLookReply.unpack(*answer) for answer in answers]
        followers = [StandbyState.unpack(state) for state in standbys]
        arbiter = replies[0]
        observation = hybrid_protocol.HybridObservation(
            tuple(sync_protocol.ShardRound(reply.record.step, reply.attempt, reply.pushed) for reply in replies),
            arbiter.admitted,
            arbiter.closed,
            arbiter.made_in,
            arbiter.members,
            arbiter.ready,
            waits=arbiter.arbiter.waits,
            paused=arbiter.arbiter.paused,
            prepared=arbiter.arbiter.prepared,
            standbys=tuple(follower.record.step for follower in followers),
        )
        self._behind = max([*(reply.behind for reply in replies), *(follower.behind for follower in followers)])
        records = [reply.record for reply in replies]
        done = any(record.done for record in records)
        mine = all(Session(record.fence, record.generation) == self._token for record in records)
        if done or not mine or not arbiter.arbiter.current:
            return observation, StepResult(False, False, done, observation.arbiter.step, loss)
        return observation, None

    def _is_ring_current(self, number: int) -> bool:
        """Return whether a ring is the arbiter's newest, and all its members are alive and registered."""
        observation, over = self._look(0.0)
        return over is None and observation.arbiter.attempt == number and not observation.members & ~observation.ready

    def _join(self, observation: hybrid_protocol.HybridObservation) -> None:
        """Join the newest ring, if this worker is a member."""
        number, peers = RingMembers.unpack(self._client.call(self._ops.members))
        own = (self._member.identity.worker, self._member.identity.incarnation)
        places = [place for place, peer in enumerate(peers) if (peer.worker, peer.incarnation) == own]
        if number != observation.arbiter.attempt or not places:
            return
        topology, step = RingTopology(self._token.generation, number, peers, places[0]), observation.arbiter.step
        self._member.join(topology, step, still=self._is_ring_current, load=lambda: self._ops.load_dense(step))

    def _push_dense(self, observation: hybrid_protocol.HybridObservation) -> None:
        """Push the dense parameters if they are those of the arbiter's step and no other worker pushes them."""
        step = observation.arbiter.step
        if not self._behind or self._dense.step != step:
            return
        session = self._session_tensor(Session(self._token.fence, self._worker_progress.generation))
        if self._client.call(self._ops.claim, session, self._shared.identity, int64(step), self._barred()):
            values = self._dense.per_server(self._dense.read())
            self._client.call(self._ops.store, session, int64(step), values)

    def _give_up_if_lost(self, observation: hybrid_protocol.HybridObservation) -> None:
        """Give up the set, so that the chief restores a checkpoint, if no worker has the newest dense parameters."""
        if not self._member.ring or self._dense.step is not None:
            self._alone_since = None
            return
        now = time.monotonic()
        self._alone_since = self._alone_since or now
        if now - self._alone_since > LOST_SECONDS:
            event("state_lost", worker=self._member.identity.worker, step=observation.arbiter.step)
            self._client.call(self._ops.give_up_state, self._session, int64(observation.arbiter.step))

    def _apply(self, step: int | None, attempt: int | None) -> bool:
        """Apply a step on every server; return whether all servers did, with the sum that this worker holds."""
        place, dense = self._place(step, attempt), self._dense_squares(step, attempt)
        reply = self._client.call(self._ops.apply, self._session, self._shared.identity, place, *dense)
        made, made_in = FollowReply.unpack(reply)
        if not made:
            time.sleep(LONGEST_PAUSE)  # rejected: the obstacle may remain for a while
        return bool(made) and (self._dense.step, self._member.held) == (step, made_in)

    def _dense_squares(self, step: int | None, attempt: int | None) -> list[Tensor]:
        """Return the squares of this worker's sum, if norms are shared. See `DenseState.squares`."""
        held = step is not None and (step, attempt) == (self._dense.step, self._member.held)
        with tf.device(self._client.local):
            return [tf.constant(self._dense.squares(valid=held))] if self._dense.shares_norms else []

    def _register(self) -> None:
        self._client.call(self._ops.register_peer, self._session, self._shared.identity, self._peer())
        self._registered = True

    def _peer(self) -> Tensor:
        """Return this worker's address in the servers' form. int64[PEER_SIZE]."""
        with tf.device(self._client.local):
            peer = self._member.transport.peer(self._member.identity.worker, self._member.identity.incarnation)
            return tf.constant(peer.numbers(), tf.int64)

    def _barred(self) -> Tensor:
        """Return the suspects in the arbiter's form. int64[SUSPECTS_MAX, 2]."""
        with tf.device(self._client.local):
            return pack_suspects(self._member.suspects)

    def _place(self, step: int | None, attempt: int | None = 0) -> Tensor:
        with tf.device(self._client.local):
            return RoundPlace.pack(step, attempt)
