"""Asynchronous updates whose communication overlaps with computation.

While an update travels to the servers and new parameters come back, the worker computes its next gradient on the
parameters that it holds (pipelined SGD of width 2: Li et al., Pipe-SGD, NeurIPS 2018). A step takes the longer of both
times instead of their sum. Each gradient misses the worker's own last update, and its staleness counts it.

    step n        push the update of step n ─► pull ─────────► hold the parameters
                  compute the gradient of step n+1 on the parameters held before ─► copy it to the CPU
    step n+1      push the update of step n+1 ─► pull ...

One call pushes and pulls: each server sends its parameters as soon as it has applied the update.

The batches of the next step are drawn before the step. Without them, as before a new split of the data, the gradient is
computed in its own step, on the newest parameters.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from pstraining.runtime.compression.push import Parts, PushCompressor, Residual
from pstraining.runtime.model.errors import ModelError
from pstraining.runtime.model.tensor import Batch, Tensor, TracedFunction
from pstraining.runtime.ps.data_ledger import SplitPosition
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.updates.asynchronous.messages import PushResult
from pstraining.runtime.updates.asynchronous.progress import ComputedAhead, SentUpdate
from pstraining.runtime.updates.asynchronous.state import StateBlend
from pstraining.runtime.updates.asynchronous.updates import AsyncUpdates, AsyncWorker
from pstraining.runtime.updates.gradients import GradientComputer, LocalGradient, Rows

_BESIDE = ThreadPoolExecutor(1, thread_name_prefix="pstraining-exchange")
"""The thread that waits for the servers while the worker's own thread computes."""


class Exchanged(NamedTuple):
    """The reply to an update, and the parameters that were read after it."""

    result: PushResult[float]
    vectors: list[list[Tensor]]
    """One vector per segment of every server, on the device that computes."""


class OverlappedUpdates(AsyncUpdates):
    """A worker's steps in mode Async; communication overlaps with computation. See `AsyncUpdates` for the arguments.

    Raises:
        ModelError: the model has state that each step receives from the one before.
    """

    looks_ahead = True

    def __init__(
        self,
        worker: AsyncWorker,
        store: ParameterStore,
        computer: GradientComputer,
        compressor: PushCompressor,
        *,
        bound: int | None = None,
        blend: StateBlend | None = None,
    ) -> None:
        if store.model.carried:
            raise ModelError(
                "spec.training.overlapCommunication: an RNN with stateful=True hands its state from batch to batch, "
                "which a gradient that is computed ahead would mix up; leave overlapCommunication out"
            )
        super().__init__(worker, store, computer, compressor, bound=bound, blend=blend)
        numbers = range(len(self._formats))
        self._push_and_pull: list[TracedFunction] = [
            tf.function(partial(self._emit_push_and_pull, fmt), autograph=False, reduce_retracing=True)
            for fmt in numbers
        ]
        self._to_cpu = tf.function(store.client.to_local, autograph=False, reduce_retracing=True)
        self._hold = tf.function(store.emit_hold, autograph=False)

    def bind(self, store: ParameterStore) -> "OverlappedUpdates":
        """See `BoundUpdates`."""
        computer, compressor = self._computer.bind(store), self._compressor.on(store)
        return OverlappedUpdates(self._shared, store, computer, compressor, bound=self._bound, blend=self._blend)

    def expect(self, batches: Sequence[Batch] | None) -> None:
        """See `Updates`."""
        self._worker_progress.upcoming = batches

    def _sends(self, fmt: int) -> TracedFunction:
        """See `AsyncUpdates`; the function pulls as well."""
        return self._push_and_pull[fmt]

    def _is_one_call(self, batches: Sequence[Batch], fmt: int) -> bool:
        """Return False: pushing and computing are calls of two threads."""
        return False

    def _push_or_resend(
        self, batches: Sequence[Batch], fmt: int, progress: SplitPosition | None
    ) -> tuple[PushResult[float], Residual, int]:
        """Push these batches' gradient, or resend it; compute the next one meanwhile."""
        own = self._worker_progress
        sent, upcoming, own.upcoming = self._encoded(batches, fmt), own.upcoming, None
        exchange = _BESIDE.submit(self._exchange, sent, progress)
        try:
            if upcoming is not None and own.held is not None and not self._is_computed(upcoming):
                own.computed = ComputedAhead(upcoming, self._compute(upcoming), own.held)
        finally:
            exchange.exception()  # no exchange continues in the next step, even if the computation raises
        result, vectors = exchange.result()
        if result.accepted:
            self._client.call(self._hold, vectors)
            own.held = int(result.step)
        return result, sent.residual, sent.fmt

    def _is_computed(self, batches: Sequence[Batch]) -> bool:
        computed = self._worker_progress.computed
        return computed is not None and computed.batches is batches

    def _gradient(self, batches: Sequence[Batch], fmt: int) -> tuple[LocalGradient, int]:
        """See `AsyncUpdates`; the gradient may already be computed, and the parameters may already be held."""
        own = self._worker_progress
        computed, own.computed = own.computed, None
        if computed is not None and computed.batches is batches:
            return computed.gradient, computed.version
        if own.held is None:
            own.held = int(self._client.call(self._pull[fmt]))
        return self._compute(batches), own.held

    def _compute(self, batches: Sequence[Batch]) -> LocalGradient:
        """Return a gradient, on the CPU if the current format sends it as it is."""
        plain = self._compressor.is_plain(self._selector.current)
        return self._computer.compute_to_cpu(batches) if plain else self._computer.compute(batches)

    def _encode(self, gradient: LocalGradient, fmt: int, version: int) -> SentUpdate:
        """See `AsyncUpdates`; encoded tensors are copied to the CPU before the next gradient is computed."""
        plain, sent = self._compressor.is_plain(fmt), super()._encode(gradient, fmt, version)
        if plain:
            return sent
        stats, parts, rows = self._client.run(self._to_cpu, (gradient.stats, sent.parts, gradient.rows), on_cpu=True)
        return sent._replace(gradient=LocalGradient(stats, [], rows), parts=parts)

    def _exchange(self, sent: SentUpdate, progress: SplitPosition | None) -> Exchanged:
        """Push an update, and pull after it."""
        reply, vectors = self._client.run(self._sends(sent.fmt), *self._request(sent, progress))
        return Exchanged(PushResult.unpack(reply.numpy())._replace(version=sent.version), vectors)

    def _emit_push_and_pull(
        self, fmt: int, stats: Tensor, parts: Parts, rows: Rows, session: Tensor, identity: Tensor, what: Tensor
    ) -> tuple[Tensor, list[list[Tensor]]]:
        """Push the gradient, and read each server's parameters after it; see `_emit_updates`.

        Returns:
            The `PushResult`, float64[9], and one vector per segment of every server, on the device that computes. They
            contain the updates up to the result's step, and perhaps later ones of other workers.
        """
        replies, standbys = self._emit_updates(fmt, stats, parts, rows, (session, identity, what))
        vectors = self._store.emit_fetch(self._formats[fmt].fetched_as, replies)
        return self._emit_result(stats, [*replies, *standbys]), self._client.to_compute(vectors)
