"""Synchronous updates: one step is the mean of one gradient of every worker, all computed on the same parameters.

The result equals one process that trains on all workers' batches together. Workers run the rounds themselves
(`updates.synchronous.protocol`): the first worker that sees a complete round applies it, so no other process can delay
a step.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import tensorflow as tf

from pstraining.runtime.compression.push import Parts, PushCompressor, Residual
from pstraining.runtime.compression.wire_format import FormatSelector, WireFormat
from pstraining.runtime.model.tensor import Batch, Tensor, TracedFunction
from pstraining.runtime.ps.data_ledger import SplitPosition
from pstraining.runtime.ps.member import LockstepRounds
from pstraining.runtime.ps.record import Session, ShardRecord
from pstraining.runtime.ps.shard import ServerHooks, Shard
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.updates.base import BoundUpdates, Identity, StepResult, as_tensor
from pstraining.runtime.updates.gradients import NEVER, GradientComputer, Rows
from pstraining.runtime.updates.messages import GradientStats
from pstraining.runtime.updates.synchronous import protocol as sync_protocol
from pstraining.runtime.updates.synchronous.accumulators import Accumulators, RoundConfig
from pstraining.runtime.updates.synchronous.client import SyncOperations
from pstraining.runtime.updates.synchronous.messages import (
    FetchReply,
    LookReply,
    PullHeader,
    PushReply,
    RoundPlace,
    StepRequest,
    push_observation,
)
from pstraining.runtime.updates.synchronous.protocol import PushStatus, RoundAction
from pstraining.runtime.updates.synchronous.server import round_hooks
from pstraining.runtime.updates.synchronous.two_phase_commit import (
    PrimaryRoundOps,
    ReplicatedAccumulators,
    StandbyRoundOps,
    primary_round_ops,
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
    """Return the servers' hooks of synchronous updates.

    Args:
        name: a text that must be equal on all tasks of the job.
        config: configuration of the rounds.
        paired: whether standbys apply the same steps.
    """

    def member_round_ops(shard: Shard, is_standby: bool) -> LockstepRounds:
        return (StandbyRoundOps if is_standby else PrimaryRoundOps)(shard, config)

    return replace(
        round_hooks(
            f"{name} of {config.workers}" if config.ordered else name,
            primary=lambda shard: primary_round_ops(shard, config),
            member=member_round_ops if paired else None,
        ),
        fused=not config.ordered,  # one order of arithmetic on any number of servers
        make_mode_state=lambda shard: ReplicatedAccumulators(shard, config) if paired else Accumulators(shard, config),
        lockstep_workers=config.workers if config.ordered else 0,
        agrees_on_norms=not config.moves,  # each worker's optimizer makes its own steps
    )


@dataclass
class SyncProgress:
    """The progress of a worker in mode Sync; it outlives a failover."""

    usual_wait: float = 0.0
    """Seconds that this worker usually waits for the other workers after its push."""
    tried: tuple[Sequence[Batch], int] | None = None
    """The last batches, and the global step that their gradient was computed on."""
    loss: float = math.nan
    """Mean loss of the last batches."""
    residual: Residual | None = None
    """The residual of the last batches, which counts once the servers have applied their gradient; None if there is
    none to count."""
    scale: float = 0.0
    """The loss scale before the step of the last batches; 0 without one."""
    generation: int = 0
    """The set of parameters that the progress belongs to."""
    held: int | None = None
    """The global step of the local parameters; None if unknown."""


class SyncWorker:
    """A worker's state in mode Sync, independent of the members that it trains with.

    Args:
        store: the model and the servers.
        identity: the worker.
        formats: the wire formats to choose from.
    """

    def __init__(self, store: ParameterStore, identity: Identity, formats: Sequence[WireFormat]) -> None:
        self.number, self.formats = identity.worker, range(len(formats))
        self.selector, self.progress = FormatSelector(formats, identity.worker), SyncProgress()
        with tf.device(store.client.local):
            self.identity, self.no_data_progress = identity.tensor(), as_tensor(None)


class SyncUpdates(BoundUpdates):
    """A worker's steps in mode Sync on one assignment of members.

    Args:
        worker: the worker's state.
        store: the model and the servers.
        computer: computes gradients.
        compressor: encodes gradients, and keeps the residual.
        config: configuration of the rounds.
    """

    def __init__(
        self,
        worker: SyncWorker,
        store: ParameterStore,
        computer: GradientComputer,
        compressor: PushCompressor,
        *,
        config: RoundConfig,
    ) -> None:
        super().__init__(store, computer)
        self._shared, self._config, self._worker, self._identity = worker, config, worker.number, worker.identity
        self._compressor, self._selector = compressor, worker.selector
        self._numbers = worker.formats
        self._worker_progress, self._progress = worker.progress, worker.no_data_progress
        self._asks = config.backups > 0
        self._has_state = len(store.model.variables) > len(store.model.trainable)
        self._step: int | None = None
        self._attempt = self._format = self._served = 0
        self.is_idempotent = store.updates.paired
        """See `Updates`: the outcome of a step is stored on several servers."""
        round_ops = [primary_round_ops(shard, config) for shard in store.shards]
        standbys = [[StandbyRoundOps(standby, config) for standby in own] for own in store.standbys_of]
        self._ops = SyncOperations(store, round_ops, computer, self._compressor, len(self._numbers), standbys)
        # A local optimizer moves the local parameters, and a shadow always continues from the local parameters.
        self._may_hold = not config.moves and not self._ops.is_shadowed and len(self._numbers) == 1

    def bind(self, store: ParameterStore) -> "SyncUpdates":
        """See `BoundUpdates`."""
        compressor, computer = self._compressor.on(store), self._computer.bind(store)
        return SyncUpdates(self._shared, store, computer, compressor, config=self._config)

    def warm_up(self, batches: Sequence[Batch]) -> None:
        """Trace every function of a step, in a session that never exists, which the servers reject."""
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

    def _usual_step_functions(self, batches: Sequence[Batch]) -> Iterator[tuple[TracedFunction, tuple[object, ...]]]:
        """See `BoundUpdates`."""
        ops, request = self._ops, self._empty_request()
        yield ops.look, (self._identity,)
        yield ops.pull, (request.place,)
        for fmt in self._numbers:
            if self._is_one_call(batches, fmt):
                yield ops.compute_and_push[fmt], (batches[0], request)
            else:
                zeros = self._computer.zeros()
                parts, _ = self._compressor.encode(zeros.vectors, fmt)
                yield ops.push[fmt], (zeros.stats, parts, zeros.rows, request)
            yield ops.apply[fmt], (request,)
            yield ops.fetch[fmt], (request,)

    def on_idle(self, shards: Sequence[ShardRecord]) -> None:
        """Do nothing: the servers have the complete state."""

    def start_session(self, session: Session) -> None:
        """Start a session; the parameters are fetched again unless they belong to the servers' step."""
        self._compressor.take_over()
        self._token, self._step = session, None
        if session.generation and session.generation != self._worker_progress.generation:
            self._worker_progress.generation, self._worker_progress.tried = session.generation, None
            self._worker_progress.held = None
            self._compressor.forget()
        self._session = self._session_tensor(session)

    def step(self, batches: Sequence[Batch], progress: SplitPosition | None = None) -> StepResult:
        """Compute the gradient, push it into the round, and return when the round is over."""
        step = self._fetch() if self._step is None else self._step
        if isinstance(step, StepResult):
            return step
        if self._step is None and self._was_applied(batches):
            self._commit_residual()
            self._step = step
            return StepResult(True, True, False, step, self._worker_progress.loss)
        self._step = step
        self._worker_progress.tried = batches, step
        self._worker_progress.held = None  # until the result of the step is known
        with tf.device(self._client.local):
            self._progress = as_tensor(progress)
        started, fmt, self._worker_progress.scale = time.perf_counter(), self._format, self._scale()
        encoded, reply = self._compute(batches, step)
        stats = GradientStats.unpack(encoded.stats)
        self._worker_progress.loss = loss = stats.loss
        self._worker_progress.residual = encoded.residual if stats.finite and not stats.overflowed else None
        result = self._run_round(step, encoded, reply, loss)
        if result.applied:
            self._commit_residual()
        if result.applied and self._step is not None:  # a worker that missed a step measures no format
            self._selector.note(fmt, time.perf_counter() - started, step=result.step)
        return replace(result, finite=bool(stats.finite))

    def _commit_residual(self) -> None:
        """Send the residual of the last batches with the next gradient, because the step of this one is over.

        A step after which the scale is smaller has applied no gradient, because that of some worker has overflowed.
        """
        own = self._worker_progress
        if own.residual is not None and self._scale() >= own.scale:
            self._compressor.commit_residual(own.residual)
        own.residual = None

    def _scale(self) -> float:
        """Return the loss scale on which the rounds have agreed, if gradients are encoded; 0 without one."""
        scale = None if self._config.moves else self._store.model.loss_scale
        return float(scale.scale.numpy()) if scale and self._compressor.encodes else 0.0

    def _was_applied(self, batches: Sequence[Batch]) -> bool:
        """Return whether these batches are part of the step that they were computed for before the session changed."""
        tried = self._worker_progress.tried
        return tried is not None and tried[0] is batches and self._served == tried[1] + 1

    def _fetch(self) -> int | StepResult:
        """Fetch the newest step that every server has applied, and return it; a result if the session is over."""
        while True:
            observation, over = self._look(0.0)
            if over:
                return over
            if self._may_hold and set(observation.steps) == {self._worker_progress.held}:
                self._format = 0
                return observation.arbiter.step
            self._worker_progress.held = None
            if min(observation.steps) != max(observation.steps):
                self._client.call(self._ops.apply[self._format], self._request(min(observation.steps)))
                continue
            headers = self._client.call(self._ops.pull, self._request(min(observation.steps)).place)
            first, *others = [PullHeader.unpack(header) for header in headers]
            if all(other.step == first.step for other in others):  # else a step was applied between two servers' reads
                self._worker_progress.held, self._format = first.step, first.format
                return first.step

    def _is_one_call(self, batches: Sequence[Batch], fmt: int) -> bool:
        """Return whether one call can compute a gradient and push it."""
        return self._computer.is_one_pass(batches) and self._compressor.is_plain(fmt) and not self._asks

    def _compute(self, batches: Sequence[Batch], step: int) -> tuple[EncodedGradient, PushReply | None]:
        """Return the gradient, and the servers' reply if the same call pushes it."""
        if self._is_one_call(batches, self._format):
            compute_and_push, request = self._ops.compute_and_push[self._format], self._request(step)
            gradient, answer = self._client.run(compute_and_push, batches[0], request)
            reply = PushReply(*(part.numpy() for part in answer))
        else:
            gradient, reply = self._computer.compute(batches), None
        parts, residual = self._compressor.encode(gradient.vectors, self._format)
        return EncodedGradient(gradient.stats, parts, gradient.rows, residual), reply

    def _run_round(self, step: int, encoded: EncodedGradient, reply: PushReply | None, loss: float) -> StepResult:
        """Participate in the round of this worker's step until it is over, and fetch the result."""
        action, since, made = RoundAction.WAIT if reply else RoundAction.PUSH, time.perf_counter(), step
        while True:
            if action is RoundAction.PUSH:
                reply, since = self._push(encoded, step), time.perf_counter()
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
                continue  # other workers have yet to push
            observation, over = self._look(loss)
            if over:
                # The forward pass has changed state such as moving averages; no call has moved the parameters.
                self._worker_progress.held = None if self._has_state else step
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

    def _push(self, encoded: EncodedGradient, step: int) -> PushReply | None:
        """Push the gradient, and apply the step if it completes the round; return None if the round is full."""
        request = self._request(step)
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
            place = RoundPlace.pack(NEVER, 0)
            return StepRequest(tf.zeros([2], tf.int64), self._identity, place, as_tensor(None), tf.zeros([], tf.int64))

    def _request(self, step: int) -> StepRequest:
        with tf.device(self._client.local):
            place = RoundPlace.pack(step, self._attempt)
            proposed = tf.constant(self._selector.propose_next(self._format), tf.int64)
        return StepRequest(self._session, self._identity, place, self._progress, proposed)
