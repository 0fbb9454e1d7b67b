"""Asynchronous updates: every worker pulls, computes and pushes on its own.

A server applies a gradient on arrival, to parameters that other workers may have changed meanwhile. The reply contains
this staleness, which can be bounded (`staleness`).

With standbys, a server forwards every update, and each member applies it in its own order: concurrent updates of two
workers may be applied in different orders. A worker continues when all members have applied its update. No acknowledged
update is therefore lost with a server. A worker resends an unacknowledged update; members that have its number ignore
it.
"""

import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import tensorflow as tf

from pstraining.runtime.compression.push import Parts, PushCompressor, Residual
from pstraining.runtime.compression.wire_format import FormatSelector, WireFormat
from pstraining.runtime.model.tensor import Batch, Operation, Tensor, TracedFunction
from pstraining.runtime.ps.critical_section import critical, not_applied
from pstraining.runtime.ps.data_ledger import SplitPosition
from pstraining.runtime.ps.member import UpdatePause
from pstraining.runtime.ps.messages import Sender, SessionToken
from pstraining.runtime.ps.record import RecordField, Session, ShardRecord
from pstraining.runtime.ps.shard import ServerHooks
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.ps.tensors import field
from pstraining.runtime.updates.asynchronous import pause, server
from pstraining.runtime.updates.asynchronous.messages import PushResult, UpdateHeader, UpdateReply
from pstraining.runtime.updates.asynchronous.pause import PAUSED
from pstraining.runtime.updates.asynchronous.progress import AsyncProgress, SentUpdate
from pstraining.runtime.updates.asynchronous.staleness import Clocks, ask, pause_of
from pstraining.runtime.updates.asynchronous.state import StateBlend
from pstraining.runtime.updates.base import BoundUpdates, Identity, StepResult, as_numbers
from pstraining.runtime.updates.gradients import GradientComputer, LocalGradient, Rows, ShardGradient

FIRST_PAUSE: Final = 0.001
LONGEST_PAUSE: Final = 0.05
"""Longest pause in seconds between queries while this worker waits for a slower one; pauses double up to it."""


NO_SESSION: Final = Session(0, 0)
"""A session that never exists: servers reject its requests."""


def hooks(name: str, *, with_ledger: bool, bound: int | None, paired: bool = False) -> ServerHooks:
    """Return the hooks of asynchronous updates for the servers.

    Args:
        name: a text that must be equal on all tasks of the job.
        with_ledger: whether the first server assigns splits of the data.
        bound: maximum number of updates by which workers may differ; None for no limit.
        paired: whether standbys apply the same updates.
    """
    return ServerHooks(
        name=name,
        with_ledger=with_ledger,
        paired=paired,
        make_mode_state=lambda shard: Clocks(shard.registry, bound=bound, pauses=paired and shard.number == 0),
        on_newcomer=lambda shard, worker, newcomer: Clocks.of(shard).begin(worker, newcomer),
        pause=UpdatePause(
            begin=lambda shard, fence, seconds: pause.begin(shard, pause_of(shard), fence, seconds),
            not_waiting=lambda shard: pause.not_waiting(shard, pause_of(shard)),
            applied=lambda shard: Clocks.of(shard).made.read_value(),
        ),
    )


class AsyncWorker:
    """A worker's state in mode Async, independent of the members that it trains with.

    Args:
        store: the model and the servers.
        identity: the worker.
        formats: the wire formats to choose from.
    """

    def __init__(self, store: ParameterStore, identity: Identity, formats: Sequence[WireFormat]) -> None:
        self.formats = formats
        self.selector, self.progress = FormatSelector(formats, identity.worker), AsyncProgress()
        with tf.device(store.client.local):
            self.identity = identity.tensor()


class AsyncUpdates(BoundUpdates):
    """A worker's steps in mode Async on one assignment of members.

    Args:
        worker: the worker's state.
        store: the model and the servers.
        computer: computes gradients.
        compressor: encodes gradients, and keeps the residual.
        moves: whether gradients are moves of the parameters.
        bound: maximum number of updates by which the worker may be ahead of the slowest live worker; None for no limit.
        blend: blends the workers' state; None if there is one worker.
    """

    is_idempotent = True

    def __init__(
        self,
        worker: AsyncWorker,
        store: ParameterStore,
        computer: GradientComputer,
        compressor: PushCompressor,
        *,
        moves: bool = False,
        bound: int | None = None,
        blend: StateBlend | None = None,
    ) -> None:
        super().__init__(store, computer)
        self._shared, self._moves, self._bound, self._blend = worker, moves, bound, blend
        self._scale = store.model.loss_scale  # this worker's own: no other worker computes on the same parameters
        self._identity, self._worker_progress = worker.identity, worker.progress
        self._formats, self._selector, self._compressor = worker.formats, worker.selector, compressor
        numbers = range(len(self._formats))
        in_one = self._emit_compute_or_nothing if self._store.updates.paired else self._emit_compute_and_push
        self._compute_and_push = [
            tf.function(partial(in_one, fmt), autograph=False, reduce_retracing=True) for fmt in numbers
        ]
        self._pull = [tf.function(partial(self._emit_fetch, fmt), autograph=False) for fmt in numbers]
        self._push: list[TracedFunction] = [
            tf.function(partial(self._emit_push, fmt), autograph=False, reduce_retracing=True) for fmt in numbers
        ]
        self._ask = tf.function(self._emit_ask, autograph=False)

    def bind(self, store: ParameterStore) -> "AsyncUpdates":
        """See `BoundUpdates`."""
        computer, compressor = self._computer.bind(store), self._compressor.on(store)
        return AsyncUpdates(
            self._shared, store, computer, compressor, moves=self._moves, bound=self._bound, blend=self._blend
        )

    def warm_up(self, batches: Sequence[Batch]) -> None:
        """Trace the functions of all formats, in a session that never exists; not needed if one call is a step."""
        if len(self._formats) == 1 and self._is_one_call(batches, 0):
            return
        with self._worker_progress.unchanged():  # servers may have applied its update, whose reply was lost
            self.start_session(NO_SESSION)
            gradient = self._computer.compute(batches)
            self._compressor.warm_up(gradient.vectors)
            for fmt in range(len(self._formats)):
                self._worker_progress.encoded = None
                self._push_or_resend(batches, fmt, None)

    def trace(self, batches: Sequence[Batch]) -> None:
        """See `BoundUpdates`; includes functions that cannot be run without an effect."""
        for fmt, function in enumerate(self._pull):
            if not self._is_one_call(batches, fmt):
                function.get_concrete_function()
        super().trace(batches)

    def _usual_step_functions(self, batches: Sequence[Batch]) -> Iterator[tuple[TracedFunction, tuple[object, ...]]]:
        """See `BoundUpdates`; only functions that can be run without an effect."""
        none = self._session_tensor(NO_SESSION)
        who = (none, self._identity, self._numbered(None))
        yield self._ask, who[:2]
        for fmt, function in enumerate(self._compute_and_push):
            if self._is_one_call(batches, fmt):
                yield function, (batches[0], *who)
                continue
            zeros = self._computer.zeros()
            parts, _ = self._compressor.encode(zeros.vectors, fmt)
            yield self._sends(fmt), (zeros.stats, parts, zeros.rows, *who)

    def _sends(self, fmt: int) -> TracedFunction:
        """Return the function that sends an update that is computed."""
        return self._push[fmt]

    def on_idle(self, shards: Sequence[ShardRecord]) -> None:
        """Do nothing: the servers have the complete state."""

    def start_session(self, session: Session) -> None:
        """See `Updates`."""
        self._compressor.take_over()
        worker_progress = self._worker_progress
        worker_progress.held = None
        belongs_to = session.generation, self._store.fingerprint
        if session.generation and session.generation != worker_progress.belongs_to[0]:
            self._compressor.forget()
        if belongs_to != worker_progress.belongs_to:  # vectors that were sent in another layout have other borders
            worker_progress.former = worker_progress.former or worker_progress.encoded
            worker_progress.belongs_to, worker_progress.encoded = belongs_to, None
            worker_progress.computed = None
        self._session = self._session_tensor(session)

    def step(self, batches: Sequence[Batch], progress: SplitPosition | None = None) -> StepResult:
        """Compute the gradient on the newest parameters and push it, in one call if possible."""
        worker_progress = self._worker_progress
        if batches is not worker_progress.sent:  # else the reply was lost, and some servers may have applied it
            if over := self._wait_for_permission():
                return over
            worker_progress.number, worker_progress.sent = worker_progress.number + 1, batches
            worker_progress.encoded = worker_progress.former = None
        started = time.perf_counter()
        result, residual, fmt = self._push_or_resend(batches, self._selector.current, progress)
        if result.accepted:
            self._commit_residual(result, residual)
        if result.accepted and self._scale and not self._moves:
            self._scale.advance(tf.constant(bool(result.overflowed)))
        if result.accepted:
            worker_progress.encoded = None
            self._selector.note(fmt, time.perf_counter() - started, step=int(result.step))
        self._note_ahead(int(result.ahead))
        return StepResult(
            session_valid=bool(result.accepted),
            applied=bool(result.accepted),
            done=bool(result.done),
            step=int(result.step),
            loss=result.loss,
            finite=bool(result.finite),
            staleness=max(0, int(result.step - result.version) - 1),
            ahead=worker_progress.ahead,
        )

    def _commit_residual(self, result: PushResult[float], residual: Residual) -> None:
        """Commit the residual of an accepted update, as the servers have applied it: maybe in a former layout."""
        former, self._worker_progress.former = self._worker_progress.former, None
        if former is not None and not result.is_new:
            residual, is_applied = former.residual, former.is_applied
        else:
            is_applied = bool(result.finite) and not result.overflowed
        if is_applied:
            self._compressor.commit_residual(residual)

    def _push_or_resend(
        self, batches: Sequence[Batch], fmt: int, progress: SplitPosition | None
    ) -> tuple[PushResult[float], Residual, int]:
        """Pull, compute and push in this format, or resend; return the result, the residual and the format."""
        if self._worker_progress.encoded is None and self._is_one_call(batches, fmt):
            who = (self._session, self._identity, self._numbered(progress))
            reply = self._client.call(self._compute_and_push[fmt], batches[0], *who)
            return PushResult.unpack(reply), Residual([], has_residual=False), fmt
        sent = self._encoded(batches, fmt)
        return self._sent(sent, progress), sent.residual, sent.fmt

    def _encoded(self, batches: Sequence[Batch], fmt: int) -> SentUpdate:
        """Return the update of these batches, with the same bytes until every server has accepted it."""
        if self._worker_progress.encoded is None:
            gradient, version = self._gradient(batches, fmt)
            self._worker_progress.encoded = self._encode(gradient, fmt, version)
        return self._worker_progress.encoded

    def _encode(self, gradient: LocalGradient, fmt: int, version: int) -> SentUpdate:
        return SentUpdate(gradient, *self._compressor.encode(gradient.vectors, fmt), fmt, version)

    def _gradient(self, batches: Sequence[Batch], fmt: int) -> tuple[LocalGradient, int]:
        """Return the gradient of these batches, and the version of the parameters that it is computed on."""
        version = int(self._client.call(self._pull[fmt]))
        return self._computer.compute(batches), version

    def _sent(self, sent: SentUpdate, progress: SplitPosition | None) -> PushResult[float]:
        """Push an update; return the servers' reply."""
        reply = self._client.call(self._sends(sent.fmt), *self._request(sent, progress))
        return PushResult.unpack(reply)._replace(version=sent.version)

    def _request(self, sent: SentUpdate, progress: SplitPosition | None) -> tuple[object, ...]:
        """Return the arguments of a call that pushes an update."""
        load = (sent.gradient.stats, sent.parts, sent.gradient.rows)
        return *load, self._session, self._identity, self._numbered(progress)

    def _is_one_call(self, batches: Sequence[Batch], fmt: int) -> bool:
        """Return whether one call can compute a gradient and push it."""
        return self._computer.is_one_pass(batches) and self._compressor.is_plain(fmt)

    def _numbered(self, progress: SplitPosition | None) -> Tensor:
        """Return the `UpdateHeader` of the current update. int64[6]."""
        own, workers = self._worker_progress, self._blend.workers() if self._blend else 1
        with tf.device(self._client.local):
            return UpdateHeader.pack(as_numbers(progress), own.number, len(own.sent or ()), workers)

    def _wait_for_permission(self) -> StepResult | None:
        """Wait until this worker is within its bound, and updates are not paused; return a result if its session ends.

        The first query follows at once: the chief waits for the worker's reply in a pause.
        """
        seconds = FIRST_PAUSE
        while not self._may_send():
            reply = UpdateReply.unpack(self._client.call(self._ask, self._session, self._identity))
            if reply.done or not reply.accepted:
                return StepResult(False, False, bool(reply.done), reply.step, math.nan)
            self._note_ahead(reply.ahead)
            if not self._may_send():
                time.sleep(seconds)
                seconds = min(2 * seconds, LONGEST_PAUSE)
        return None

    def _may_send(self) -> bool:
        """Return whether this worker may send a new update, by the last reply."""
        own = self._worker_progress
        return not own.is_paused and (self._bound is None or own.ahead < self._bound)

    def _note_ahead(self, ahead: int) -> None:
        """Note by how many updates this worker is ahead, or that updates are paused."""
        self._worker_progress.is_paused = ahead >= PAUSED
        self._worker_progress.ahead = 0 if ahead >= PAUSED else ahead

    def _emit_fetch(self, fmt: int) -> Tensor:
        """Fetch the parameters; return the first server's step before the read. int64[]."""
        version, held = self._emit_pull(fmt)
        with tf.control_dependencies([held]):
            return self._client.to_local(version)

    def _emit_pull(self, fmt: int) -> tuple[Tensor, Operation]:
        """Emit a pull; return the first server's step on that server, and the operation that completes the pull."""
        first = self._store.shards[0]
        with tf.device(first.device):
            version = field(first.record.read_value(), RecordField.STEP)
        others = [tf.constant(0)] * (len(self._store.shards) - 1)
        vectors = self._store.emit_fetch(self._formats[fmt].fetched_as, [version, *others])
        return version, self._store.emit_hold(self._client.to_compute(vectors))

    def _emit_ask(self, session: Tensor, identity: Tensor) -> Tensor:
        """Emit an `UpdateReply` without an update. int64[5]."""
        first = self._store.shards[0]

        def body(session: Tensor, identity: Tensor) -> Tensor:
            record, sender = first.record.read_value(), Sender.unpack(identity)
            allowed = first.in_session(record, session) & first.registry.is_current(*sender)
            fence = field(record, RecordField.FENCE)
            ahead = tf.cond(allowed, lambda: ask(Clocks.of(first), sender.worker, fence), not_applied)
            done, step = field(record, RecordField.DONE), field(record, RecordField.STEP)
            return UpdateReply(allowed, done, step, ahead, not_applied()).pack()

        return self._client.to_local(critical(first.device, first.container, [session, identity], body))

    def _emit_compute_or_nothing(
        self, fmt: int, batch: Batch, session: Tensor, identity: Tensor, what: Tensor
    ) -> Tensor:
        """Compute and push, or do nothing under the session (0, 0)."""
        nothing = tf.equal(SessionToken.unpack(session).fence, 0)
        return tf.cond(nothing, self._nothing, lambda: self._emit_compute_and_push(fmt, batch, session, identity, what))

    def _nothing(self) -> Tensor:
        """Emit zeros in the shape of a result."""
        with tf.device(self._client.local):
            return PushResult.empty()

    def _emit_compute_and_push(self, fmt: int, batch: Batch, session: Tensor, identity: Tensor, what: Tensor) -> Tensor:
        version, held = self._emit_pull(fmt)
        with tf.control_dependencies([held]), tf.device(self._client.compute):
            stats, vectors, rows = self._computer.emit(batch)
        parts = [[[vector] for vector in row] for row in vectors]
        return self._emit_push(fmt, stats, parts, rows, session, identity, what, version)

    def _emit_push(
        self,
        fmt: int,
        stats: Tensor,
        parts: Parts,
        rows: Rows,
        session: Tensor,
        identity: Tensor,
        what: Tensor,
        version: Tensor | None = None,
    ) -> Tensor:
        """Push the gradient to every server and standby; return the `PushResult`. float64[9]."""
        replies, standbys = self._emit_updates(fmt, stats, parts, rows, (session, identity, what))
        return self._emit_result(stats, [*replies, *standbys], version)

    def _emit_result(self, stats: Tensor, replies: Sequence[Tensor], version: Tensor | None = None) -> Tensor:
        """Return the `PushResult` of all replies, the first server's first. float64[9]."""
        first, size = replies[0], len(UpdateReply._fields)
        if version is not None:  # it travels with the reply: every tensor that crosses is a round trip
            with tf.device(self._store.shards[0].device):
                first = tf.concat([first, tf.reshape(version, [1])], 0)
        with tf.device(self._client.local):
            first, *others = [tf.identity(reply) for reply in (first, *replies[1:])]
            everyone = [UpdateReply.read(reply) for reply in (first[:size], *others)]
            return PushResult.pack(everyone, stats, None if version is None else first[size])

    def _emit_updates(
        self, fmt: int, stats: Tensor, parts: Parts, rows: Rows, who: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Push the gradient; return the `UpdateReply` of every server, and those of the standbys. int64[5] each.

        Args:
            fmt: the wire format.
            stats: see `GradientStats`. float64[5].
            parts: the encoded vectors.
            rows: the touched rows.
            who: session, identity and `UpdateHeader`.
        """
        push = partial(server.push, moves=self._moves, state_weight=self._blend.weight if self._blend else None)
        replies, standbys = [], []
        for number, shard in enumerate(self._store.shards):
            vectors = self._compressor.decode(shard, parts[number], fmt)
            replies.append(push(shard, *who, ShardGradient(stats, vectors, rows[number])))
            for standby in self._store.standbys_of[number]:
                with tf.device(shard.device):  # the worker sends it once, and the server forwards it
                    handed, touched = tf.nest.map_structure(tf.identity, (parts[number], rows[number]))
                vectors = self._compressor.decode(standby, handed, fmt)
                standbys.append(push(standby, *who, ShardGradient(stats, vectors, touched)))
        return replies, standbys
