"""A worker's copy of all dense state in hybrid updates: the parameters, and the user's optimizers on them.

Its layout is that of the parameter servers, segment by segment: the arithmetic is the servers', and pushes and pulls
are lists of the same vectors. All workers of a job apply equal sums to equal bits.
"""

import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import tensorflow as tf

from pstraining.runtime.model.optimizers.clipping import MeanClipping, added, are_usable
from pstraining.runtime.model.optimizers.learning_rates import adopted, rate_variables
from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.segment_optimizer import SegmentOptimizer
from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.critical_section import unless, with_dependencies
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.updates.gradients import LocalGradient
from pstraining.runtime.updates.messages import GradientStats

_RATES: Final = 3
"""Index of the first learning rate in the numbers of a sum, behind its weight, its loss and whether it overflowed."""


class DenseState:
    """The dense state of every server, on the computing device; `step` is its step, None before the first."""

    def __init__(self, store: ParameterStore) -> None:
        self._store = store
        self.step: int | None = None
        with tf.device(store.client.compute):
            self._parts = [
                SegmentOptimizer.of(store.model, store.layout, shard.number, fused=store.updates.fused)
                for shard in store.shards
            ]
        dtypes = [segment.dtype for shard in store.shards for segment in shard.segments]
        kinds = [_carried_as(dtype) for dtype in dtypes]
        sizes = [segment.size for shard in store.shards for segment in shard.segments]
        # Vectors of one dtype lie end to end.
        self._places: list[tuple[str, int, int]] = []
        ends: dict[str, int] = {}
        for kind, size in zip(kinds, sizes, strict=True):
            begin = ends.get(kind, 0)
            self._places.append((kind, begin, begin + size))
            ends[kind] = begin + size
        self._sums = {kind: np.zeros([end], kind) for kind, end in ends.items()}
        self._stats = np.zeros([_RATES + len(store.model.optimizers)], np.float64)
        norms = store.shards[0].norms
        self._clipping = [MeanClipping(norms, shard.segments) for shard in store.shards] if norms else []
        self.shares_norms = bool(self._clipping and store.model.tables)
        """Whether norms are of dense parameters and of rows on the servers, which decide them."""
        self._squares = tf.function(self._emit_squares, autograph=False)
        self._move = tf.function(self._emit_move, autograph=False)
        self._show = tf.function(self._emit_show, autograph=False)

    def warm_up(self) -> None:
        """Trace the functions of a step."""
        with tf.device(self._store.client.compute):
            totals = [tf.TensorSpec([self._clipping[0].length], tf.float64)] if self.shares_norms else []
            self._move.get_concrete_function(*self._sum_specs(), *totals)
            if self.shares_norms:
                self._squares.get_concrete_function(*self._sum_specs())
            self._show.get_concrete_function()

    def load(self, gradient: LocalGradient, rates: Array | None) -> list[Array]:
        """Copy a gradient, times its weight, into the buffers of the ring's sum, and return the buffers.

        Args:
            gradient: the worker's gradient.
            rates: the learning rate of each optimizer in the step, NaN for a schedule; None: another member gives them.
        """
        stats = GradientStats.unpack(gradient.stats)
        weight = stats.samples * stats.finite
        self._stats[:_RATES] = (weight, weight * stats.loss if weight else 0.0, stats.overflowed)
        self._stats[_RATES:] = 0.0 if rates is None else rates
        vectors = [vector for row in gradient.vectors for vector in row]
        for (kind, begin, end), vector in zip(self._places, vectors, strict=True):
            target = self._sums[kind][begin:end]
            if weight:
                np.multiply(np.asarray(vector), weight, out=target, casting="unsafe")
            else:
                target[:] = 0
        return [*self._sums.values(), self._stats]

    def squares(self, *, valid: bool) -> Array:
        """Return the sums of squares of the loaded sums' mean; only if norms are shared.

        Args:
            valid: whether the loaded sums are those of the step.

        Returns:
            1 if they are valid, and the sums. float64[1 + length].
        """
        if not valid:
            return np.zeros([1 + self._clipping[0].length])
        with tf.device(self._store.client.compute):
            return np.concatenate([[1.0], self._squares(*self._loaded()).numpy()])

    def settle(self, totals: Array | None = None) -> int:
        """Apply the loaded sums as one step; return the step of the parameters afterwards.

        Args:
            totals: sums of squares by which the step is clipped, if norms are shared. float64[length].

        Raises:
            RuntimeError: this worker has no dense parameters.
        """
        if self.step is None:
            raise RuntimeError("a worker without dense parameters has no step to apply")
        total = float(self._stats[0])
        with tf.device(self._store.client.compute):
            if total:
                self._move(*self._loaded(), *([] if totals is None else [tf.constant(totals)]))
            else:
                self._show()
        self.step += 1
        return self.step

    def show(self) -> None:
        """Assign the parameters to the model's variables."""
        with tf.device(self._store.client.compute):
            self._show()

    def read(self) -> list[Array]:
        """Return copies of all state, server by server, each in the order of `Shard.dense`."""
        return [np.array(variable.numpy(), ndmin=0) for part in self._parts for variable in part.state]

    def write(self, values: Sequence[Array], step: int) -> None:
        """Replace all state by the state of a step."""
        with tf.device(self._store.client.compute):
            for variable, value in zip((v for part in self._parts for v in part.state), values, strict=True):
                variable.assign(np.reshape(value, variable.shape))
            self._show()
        self.step = step

    def per_server(self, values: Sequence[Array]) -> list[list[Array]]:
        """Split state from `read` by server."""
        found = iter(values)
        return [[next(found) for _ in part.state] for part in self._parts]

    def checksum(self) -> int:
        """Return the CRC-32 of the parameters."""
        found = 0
        for part in self._parts:
            for vector in part.vectors:
                found = zlib.crc32(vector.numpy().tobytes(), found)
        return found

    @property
    def bytes(self) -> int:
        """Return the size of one sum around the ring, in bytes."""
        return sum(values.nbytes for values in self._sums.values())

    def _loaded(self) -> list[Tensor]:
        """Return the numbers and the sums as tensors."""
        return [tf.constant(self._stats), *(tf.constant(values) for values in self._sums.values())]

    def _sum_specs(self) -> "list[tf.TensorSpec]":
        specs = [tf.TensorSpec(values.shape, values.dtype) for values in self._sums.values()]
        return [tf.TensorSpec(self._stats.shape, tf.float64), *specs]

    def _emit_move(self, stats: Tensor, *sums_and_totals: Tensor) -> Tensor:
        sums, shared = sums_and_totals[: len(self._sums)], sums_and_totals[len(self._sums) :]
        overflows, vectors, skipped = stats[2], self._emit_means(stats, sums), None
        if self._clipping:
            totals = shared[0] if shared else self._emit_sums_of_squares(vectors)
            pairs = zip(self._clipping, vectors, strict=True)
            vectors = [clipping.vectors(own, totals) for clipping, own in pairs]
            skipped = tf.logical_not(are_usable(totals, overflows))
        trust = self._emit_trust(vectors)

        def step() -> None:
            for part, own in zip(self._parts, vectors, strict=True):
                with tf.control_dependencies(adopted(rate_variables(part.clones.items()), stats[_RATES:])):
                    _step(part, own, tf.greater(overflows, 0), trust)

        unless(skipped, step)
        return self._emit_show()

    def _emit_squares(self, stats: Tensor, *sums: Tensor) -> Tensor:
        return self._emit_sums_of_squares(self._emit_means(stats, sums))

    def _emit_sums_of_squares(self, vectors: Sequence[Sequence[Tensor]]) -> Tensor:
        pairs = zip(self._clipping, vectors, strict=True)
        return added([clipping.squares(own) for clipping, own in pairs])

    def _emit_trust(self, vectors: Sequence[Sequence[Tensor]]) -> Tensor | None:
        """Emit the totals by which updates of pieces are scaled; None if no tensor needs them."""
        if not self._parts[0].trust.length:
            return None
        return added([part.trust_squares(own) for part, own in zip(self._parts, vectors, strict=True)])

    def _emit_means(self, stats: Tensor, sums: Sequence[Tensor]) -> list[list[Tensor]]:
        """Emit the mean gradient, for every server one vector per segment."""
        by_kind, total = dict(zip(self._sums, sums, strict=True)), stats[0]
        means = iter(
            [by_kind[kind][begin:end] / tf.cast(total, by_kind[kind].dtype) for kind, begin, end in self._places]
        )
        return [[tf.cast(next(means), segment.dtype) for segment in shard.segments] for shard in self._store.shards]

    def _emit_show(self) -> Tensor:
        values = self._store.unpack([[vector.read_value() for vector in part.vectors] for part in self._parts])
        pairs = zip(self._store.model.variables, values, strict=True)
        shown = [variable.value.assign(value, read_value=False) for variable, value in pairs]
        held, scale = self._store.model.loss_scale, self._parts[0].loss_scale
        if held and scale:
            shown.append(held.hold(scale.bits()))
        return with_dependencies(shown, tf.constant(0))


def _step(part: SegmentOptimizer, vectors: Sequence[Tensor], overflowed: Tensor, trust: Tensor | None) -> None:
    """Emit a step as `Shard.apply` does, with the vectors alone."""
    scale = part.loss_scale
    unless(overflowed if scale else None, lambda: part.train(vectors, trust))
    part.add(vectors)
    if scale:
        scale.skip(overflowed)
        scale.advance(overflowed)


def _carried_as(dtype: str) -> str:
    """Return the dtype of a sum: half precision would overflow."""
    return "float32" if dtype == "float16" else dtype
