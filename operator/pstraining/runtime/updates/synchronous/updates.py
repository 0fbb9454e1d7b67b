"""Synchronous updates: one step is the mean of one gradient of every worker, all computed on the same parameters.

Equal to one process that trains on all workers' batches together. Workers run the rounds themselves
(`updates.synchronous.protocol`): whoever sees that everything is there applies it, so no other process is in the path
and none can stop it.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import tensorflow as tf

from pstraining.runtime.compression.push import Parts, PushCompressor, Residual
from pstraining.runtime.compression.wire_format import FormatSelector, WireFormat
from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.data_ledger import Progress
from pstraining.runtime.ps.record import Session, ShardRecord
from pstraining.runtime.ps.shard import ServerHooks, Shard
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.updates.base import Identity, OnAnyMembers, StepResult, as_tensor
from pstraining.runtime.updates.gradients import NEVER, GradientComputer, Rows
from pstraining.runtime.updates.messages import GradientStats
from pstraining.runtime.updates.synchronous import protocol as sync_protocol
from pstraining.runtime.updates.synchronous.accumulators import Accumulators, RoundConfig
from pstraining.runtime.updates.synchronous.client import SyncOperations
from pstraining.runtime.updates.synchronous.messages import (
    FetchReply,
    LookReply,
    Place,
    PullHeader,
    PushReply,
    StepRequest,
    push_observation,
)
from pstraining.runtime.updates.synchronous.protocol import PushStatus, RoundAction
from pstraining.runtime.updates.synchronous.server import RoundOps
from pstraining.runtime.updates.synchronous.two_phase_commit import (
    PrimaryRoundOps,
    ReplicatedAccumulators,
    StandbyRoundOps,
)

STRAGGLER_FACTOR: Final = 2.0
"""Multiple of the usual wait after which a waiting worker queries the servers for the missing workers."""


class EncodedGradient(NamedTuple):
    """A gradient as it is sent."""

    stats: Tensor
    parts: Parts
    rows: Rows
    residual: Residual


def hooks(name: str, config: RoundConfig, *, paired: bool = False) -> ServerHooks:
    """Return the hooks of synchronous updates for the servers.

    Args:
        name: theirs.
        config: configuration of the rounds.
        paired: standbys make the same steps.
    """

    def on_newcomer(shard: Shard, worker: Tensor, newcomer: Tensor) -> list[Any]:
        return primary_round_ops(shard, config).forget(worker, newcomer)

    def follow(shard: Shard, session: Tensor, step: Tensor) -> Tensor:
        return primary_round_ops(shard, config).follow(session, step)

    return ServerHooks(
        name=f"{name} of {config.workers}" if config.ordered else name,
        fused=not config.ordered,  # one order of arithmetic on any number of servers
        make_mode_state=lambda shard: ReplicatedAccumulators(shard, config) if paired else Accumulators(shard, config),
        on_newcomer=on_newcomer,
        follow=follow,
        lockstep_workers=config.workers if config.ordered else 0,
        paired=paired,
        member_round_ops=(lambda shard, standby: (StandbyRoundOps if standby else PrimaryRoundOps)(shard, config))
        if paired
        else None,
    )


def primary_round_ops(shard: Shard, config: RoundConfig) -> RoundOps:
    """Return the round operations of a primary."""
    return (PrimaryRoundOps if isinstance(shard.mode_state, ReplicatedAccumulators) else RoundOps)(shard, config)


@dataclass
class WorkerProgress:
    """The progress of a worker that outlives a failover."""

    usual_wait: float = 0.0
    """Seconds that the others usually take after this worker."""
    tried: tuple[Sequence[Any], int] | None = None
    """The last batches, and the step that their gradient was brought into."""
    loss: float = math.nan
    """Theirs, if it was told."""
    generation: int = 0
    """The set of parameters that all this is of."""
    held: int | None = None
    """The step of it whose parameters are here; None: it is not known."""


class SyncUpdates(OnAnyMembers):
    """A worker's steps in the mode Sync."""

    def __init__(
        self,
        store: ParameterStore,
        identity: Identity,
        config: RoundConfig,
        formats: Sequence[WireFormat],
        computer: GradientComputer,
        compressor: PushCompressor,
    ) -> None:
        self._store, self._client, self._worker = store, store.client, identity.worker
        self._computer, self._compressor, self._config = computer, compressor, config
        self._numbers, self._selector = range(len(formats)), FormatSelector(formats, identity.worker)
        self._asks = config.backups > 0
        with tf.device(self._client.local):
            self._identity, self._progress = identity.tensor(), as_tensor(None)
        self._step: int | None = None
        self._attempt = self._format = self._served = 0
        self._worker_progress = WorkerProgress()
        self.is_idempotent = store.updates.paired
        """See `Updates`: what came of a step that was tried is kept on several servers."""
        self._trace()

    def _trace(self) -> None:
        store, config = self._store, self._config
        round_ops = [primary_round_ops(shard, config) for shard in store.shards]
        standbys = [[StandbyRoundOps(standby, config) for standby in found] for found in store.standbys_of]
        self._ops = SyncOperations(store, round_ops, self._computer, self._compressor, len(self._numbers), standbys)
        # Optimizers of the worker's own move what is here; a shadow goes on from what is here for ever.
        self._may_hold = not config.moves and not self._ops.is_shadowed and len(self._numbers) == 1

    def warm_up(self, batches: Sequence[Any]) -> None:
        """Trace every function that a step needs, with the token of no session, which the servers refuse."""
        self.start_session(Session(0, 0))
        self._worker_progress.held = None
        gradient = self._computer.compute(batches)
        self._compressor.warm_up(gradient.vectors)
        call, ops, request = self._client.call, self._ops, self._request(0)
        call(ops.look, self._identity)
        if self._asks:
            call(ops.admit, request)
        for fmt in self._numbers:
            if self._is_one_call(batches, fmt):
                self._client.run(ops.compute_and_push[fmt], batches[0], request)
            parts, _ = self._compressor.encode(gradient.vectors, fmt)
            call(ops.push[fmt], gradient.stats, parts, gradient.rows, request)
            call(ops.apply[fmt], request)
            call(ops.fetch[fmt], request)
        call(ops.pull, request.place)

    def _usual_step_functions(self, batches: Sequence[Any]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        """Its functions, each with what makes it do nothing."""
        ops, request = self._ops, self._empty_request()
        yield ops.look, (self._identity,)
        yield ops.pull, (request.place,)
        for fmt in self._numbers:
            if self._is_one_call(batches, fmt):
                yield ops.compute_and_push[fmt], (batches[0], request)
            yield ops.apply[fmt], (request,)
            yield ops.fetch[fmt], (request,)

    def on_idle(self, shards: Sequence[ShardRecord]) -> None:
        """Nothing: the servers have all there is."""

    def start_session(self, session: Session) -> None:
        """Start a session; the parameters are fetched again unless they belong to the servers' step."""
        self._token, self._step = session, None
        if session.generation and session.generation != self._worker_progress.generation:
            self._worker_progress.generation, self._worker_progress.tried = session.generation, None
            self._worker_progress.held = None
        self._session = self._session_tensor(session)

    def step(self, batches: Sequence[Any], progress: Progress | None = None) -> StepResult:
        """Compute the gradient, push it into the round, and return when the round is over."""
        if self._step is None and (over := self._fetch() or self._applied_before(batches)):
            return over
        assert self._step is not None  # noqa: S101 - it is fetched
        self._worker_progress.tried = batches, self._step
        self._worker_progress.held = None  # until the result of the step is known
        with tf.device(self._client.local):
            self._progress = as_tensor(progress)
        started, fmt = time.perf_counter(), self._format
        encoded, reply = self._compute(batches)
        stats = GradientStats.unpack(encoded.stats)
        self._worker_progress.loss = loss = stats.loss
        result = self._run_round(encoded, reply, loss)
        if result.applied and stats.finite:
            self._compressor.commit_residual(encoded.residual)
        if result.applied and self._step is not None:  # one that missed a step says nothing about the format
            self._selector.note(fmt, time.perf_counter() - started, step=result.step)
        return replace(result, finite=bool(stats.finite))

    def _applied_before(self, batches: Sequence[Any]) -> StepResult | None:
        """A reply if these batches are part of the step that they were tried for before the session changed."""
        tried, step = self._worker_progress.tried, self._step
        if tried is None or step is None or tried[0] is not batches or self._served != tried[1] + 1:
            return None
        return StepResult(True, True, False, step, self._worker_progress.loss)

    def _fetch(self) -> StepResult | None:
        """The parameters of the newest step that every server has made; a reply when the session is over."""
        while True:
            observation, over = self._look(0.0)
            if over:
                return over
            if self._may_hold and set(observation.steps) == {self._worker_progress.held}:
                self._step, self._format = self._worker_progress.held, 0
                return None
            self._worker_progress.held = None
            if min(observation.steps) != max(observation.steps):
                self._client.call(self._ops.apply[self._format], self._request(min(observation.steps)))
                continue
            headers = self._client.call(self._ops.pull, self._request(min(observation.steps)).place)
            first, *others = [PullHeader.unpack(header) for header in headers]
            if all(other.step == first.step for other in others):  # else a step was applied between two servers' reads
                self._step, self._format = first
                self._worker_progress.held = self._step
                return None

    def _is_one_call(self, batches: Sequence[Any], fmt: int) -> bool:
        """Whether nothing stands between computing a gradient and bringing it in."""
        return self._computer.is_one_pass(batches) and self._compressor.is_plain(fmt) and not self._asks

    def _compute(self, batches: Sequence[Any]) -> tuple[EncodedGradient, PushReply | None]:
        """The gradient, and what the servers say if it is brought in with the same call."""
        assert self._step is not None  # noqa: S101 - `step` has fetched it
        if self._is_one_call(batches, self._format):
            compute_and_push, request = self._ops.compute_and_push[self._format], self._request(self._step)
            gradient, answer = self._client.run(compute_and_push, batches[0], request)
            reply = PushReply(*(part.numpy() for part in answer))
        else:
            gradient, reply = self._computer.compute(batches), None
        parts, residual = self._compressor.encode(gradient.vectors, self._format)
        return EncodedGradient(gradient.stats, parts, gradient.rows, residual), reply

    def _run_round(self, encoded: EncodedGradient, reply: PushReply | None, loss: float) -> StepResult:
        """Take part in the round of this worker's step until it is over, and fetch its result."""
        assert self._step is not None  # noqa: S101 - `step` has fetched it
        step, action, since = self._step, RoundAction.WAIT if reply else RoundAction.PUSH, time.perf_counter()
        made = step
        while True:
            if action is RoundAction.PUSH:
                reply, since = self._push(encoded), time.perf_counter()
            if reply:
                status: PushStatus | None = sync_protocol.push_status(push_observation(reply.replies))
                fetched: FetchReply[int] | None = FetchReply.unpack(reply.fetched)
                if status is PushStatus.VOID:
                    return StepResult(False, False, False, step, loss)
            else:
                status = None
                fetched = self._perform(action, step, since)
            if fetched is not None and fetched.fetched:
                self._worker_progress.usual_wait = (self._worker_progress.usual_wait + time.perf_counter() - since) / 2
                self._step, self._format = step + 1, fetched.format
                self._worker_progress.held = self._step
                return StepResult(True, fetched.last_round == step + 1, False, step + 1, loss)
            if action is RoundAction.PULL:  # this worker is more than one step behind, or the format changed
                self._step = None
                return StepResult(True, self._served == step + 1, False, made, loss)
            usual_wait = self._worker_progress.usual_wait
            early = action is RoundAction.WAIT and time.perf_counter() - since < STRAGGLER_FACTOR * usual_wait
            reply, action = None, RoundAction.WAIT
            if status is PushStatus.COMPLETE:
                action = RoundAction.APPLY
                continue
            if status is PushStatus.INCOMPLETE or early:
                continue  # the others have yet to deliver
            observation, over = self._look(loss)
            if over:
                self._worker_progress.held = step  # no call has moved them
                return over
            action = sync_protocol.next_action(observation, worker=self._worker, step=step)
            made = observation.arbiter.step

    def _perform(self, action: RoundAction, step: int, since: float) -> FetchReply[int] | None:
        """Perform an action; return the fetched result if it was requested."""
        if action is RoundAction.GIVE_UP:
            self._client.call(self._ops.give_up, self._request(step))
            return None
        if action is RoundAction.WAIT:
            time.sleep(sync_protocol.pause(time.perf_counter() - since, usual=self._worker_progress.usual_wait))
        operation = self._ops.apply if action is RoundAction.APPLY else self._ops.fetch
        return FetchReply.unpack(self._client.call(operation[self._format], self._request(step)))

    def _push(self, encoded: EncodedGradient) -> PushReply | None:
        """Push the gradient, and apply the step if it completes the round; return None if the round is full."""
        assert self._step is not None  # noqa: S101 - `step` has fetched it
        request = self._request(self._step)
        if self._asks and not self._client.call(self._ops.admit, request):
            return None
        return PushReply(
            *self._client.call(self._ops.push[self._format], encoded.stats, encoded.parts, encoded.rows, request)
        )

    def _look(self, loss: float) -> tuple[sync_protocol.RoundObservation, StepResult | None]:
        """Return the servers' state, and a result if this worker's session is over."""
        answers, standbys = self._client.call(self._ops.look, self._identity)
        replies = [LookReply.unpack(*answer) for answer in answers]
        arbiter = replies[0]
        self._attempt, self._served = arbiter.attempt, arbiter.last_round
        observation = sync_protocol.RoundObservation(
            tuple(sync_protocol.ShardRound(reply.record.step, reply.attempt, reply.pushed) for reply in replies),
            admitted=arbiter.admitted,
            closed=arbiter.closed,
            alive=arbiter.alive,
            standbys=tuple(ShardRecord.from_vector(record).step for record in standbys),
        )
        records = [reply.record for reply in replies]
        done = any(record.done for record in records)
        mine = all(Session(record.fence, record.generation) == self._token for record in records)
        if done or not mine:
            return observation, StepResult(False, False, done, observation.arbiter.step, loss)
        return observation, None

    def _empty_request(self) -> StepRequest:
        """Return a request without a session and a step."""
        with tf.device(self._client.local):
            place = Place.pack(NEVER, 0)
            return StepRequest(tf.zeros([2], tf.int64), self._identity, place, as_tensor(None), tf.zeros([], tf.int64))

    def _request(self, step: int) -> StepRequest:
        with tf.device(self._client.local):
            place = Place.pack(step, self._attempt)
            proposed = tf.constant(self._selector.propose_next(self._format), tf.int64)
        return StepRequest(self._session, self._identity, place, self._progress, proposed)
