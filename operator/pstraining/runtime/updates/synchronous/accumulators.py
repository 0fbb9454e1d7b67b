"""The state of a synchronous round on a server: accumulated gradients, the workers in them, the arbiter's decision."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import tensorflow as tf

from pstraining.runtime.compression.codecs import VectorCodec
from pstraining.runtime.compression.pull import PullShadow
from pstraining.runtime.model.keras_model import Touched
from pstraining.runtime.model.optimizers import sparse_optimizer
from pstraining.runtime.model.optimizers.clipping import MeanClipping, are_usable
from pstraining.runtime.model.partition import Segment
from pstraining.runtime.model.segment_optimizer import SegmentOptimizer
from pstraining.runtime.model.tensor import Operation, Tensor, Variable
from pstraining.runtime.ps.critical_section import NEVER, applied, clock, not_applied, with_dependencies
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.tensors import WORKER_SLOTS, put
from pstraining.runtime.ps.variables import PSVariable
from pstraining.runtime.updates.messages import GradientStats
from pstraining.runtime.updates.mode_state import ModeState

WAIT_SECONDS: Final = 60.0
"""Seconds after a restore for which a round waits for workers that have not registered yet."""


@dataclass(frozen=True)
class RoundConfig:
    """Configuration of the rounds; equal on every server and in every task."""

    workers: int
    """Number of workers in the job's spec; with ordered sums, a round always waits for each of them with data."""
    backups: int = 0
    """Number of workers that a round need not wait for."""
    ordered: bool = False
    """Whether gradients are added in the order of the workers."""
    moves: bool = False
    """Whether workers send moves by their local optimizers instead of gradients."""
    pulls: tuple[VectorCodec | None, ...] = (None,)
    """The codec of pulled parameters in each format; None for no codec."""
    dense: bool = True
    """Whether workers push gradients of dense parameters; otherwise only those of tables."""


class RoundResult(NamedTuple):
    """The result of a round on one server: the input of its step, emitted on request."""

    weight: Tensor
    """Weight of all gradients together; 0 if every gradient was skipped. float64[]."""
    losses: Tensor
    """Sum of the gradients' losses times weights, and of the weights. float64[2]."""
    mean: Callable[[], list[Tensor]]
    """Emits the mean gradient, a vector for each segment."""
    touched: Callable[[], list[Touched]]
    """Emits the touched rows of each table without repetition, and their mean gradients."""
    admitted: Tensor
    """On the arbiter, 1 for every worker in the round. int64[WORKER_SLOTS]."""
    overflowed: Tensor
    """1 if the loss is scaled and a gradient of the round is not finite. float64[]."""
    trust: Tensor | None = None
    """Totals by which updates of pieces are scaled, see `TrustRatios`; None if no tensor needs them."""


class MeanNorms:
    """The norms that a round's step needs; create it inside `variables_on` for a server.

    Args:
        clipping: clips the server's part of the mean; None without clipping by norm.
        part: the server's part with its pieces of tensors; None if workers hold the pieces.
    """

    def __init__(self, clipping: MeanClipping | None, part: SegmentOptimizer | None) -> None:
        self.clipping, self._part = clipping, part if part and part.trust.length else None
        self._clipped_by = clipping.length if clipping else 0
        self.length = self._clipped_by + (self._part.trust.length if self._part else 0)
        """Number of sums of squares: of the mean, and then of pieces."""
        self.totals = tf.Variable(tf.zeros([self.length], tf.float64))
        """The sums of squares of all servers together."""
        self.place = tf.Variable(tf.fill([2], tf.constant(-1, tf.int64)))
        """Step and attempt that they belong to; -1 for none."""

    def squares(self, vectors: Sequence[Tensor], touched: Sequence[Touched]) -> Tensor:
        """Emit the sums of squares of the server's part; see `MeanClipping` and `TrustRatios`. float64[length]."""
        found = [self.clipping.squares(vectors, touched)] if self.clipping else []
        return tf.concat([*found, self._part.trust_squares(vectors)] if self._part else found, 0)

    def trust_of(self, totals: Tensor) -> Tensor | None:
        """Return the part of totals by which updates of pieces are scaled; None if there is none."""
        return totals[self._clipped_by :] if self._part else None

    def applied_to(self, found: RoundResult) -> RoundResult:
        """Emit a result with a clipped mean; without a weight if the norms of the mean are not usable."""
        totals, clipping = self.totals.read_value(), self.clipping
        found = found._replace(trust=self.trust_of(totals))
        if clipping is None:
            return found
        totals = totals[: clipping.length]
        usable = are_usable(totals, found.overflowed)
        return found._replace(
            weight=tf.where(usable, found.weight, tf.zeros([], tf.float64)),
            mean=lambda: clipping.vectors(found.mean(), totals),
            touched=lambda: clipping.rows(found.touched(), totals),
        )


class Accumulators(ModeState):
    """The variables of rounds on one server; create it inside `variables_on` for that server."""

    def __init__(self, shard: Shard, config: RoundConfig) -> None:
        self.config = config
        segments = shard.segments if config.dense else ()
        self.attempt = tf.Variable(tf.zeros([], tf.int64))
        self.pushed = tf.Variable(tf.zeros([WORKER_SLOTS], tf.int64))
        """1 for every worker whose gradient is in the sums of this attempt."""
        rows = config.workers if config.ordered else 2
        self.weights = tf.Variable(tf.zeros([rows], tf.float64))
        """With ordered sums each worker's weight; otherwise the unit of the sums, and the total weight."""
        self.losses = tf.Variable(tf.zeros([], tf.float64))
        """Sum of losses times weights."""
        self.overflowed = tf.Variable(tf.zeros([], tf.float64)) if shard.loss_scale else None
        """1 if a gradient in the sums has overflowed; None if the loss is not scaled."""
        shapes = [[config.workers, segment.size] if config.ordered else [segment.size] for segment in segments]
        self.vectors = [
            tf.Variable(lambda shape=shape, dtype=segment.dtype: tf.zeros(shape, dtype), dtype=segment.dtype)
            for shape, segment in zip(shapes, segments, strict=True)
        ]
        codec = next((codec for codec in config.pulls if codec), None)
        self.shadow = PullShadow(segments, shard.vectors, codec, optional=None in config.pulls) if codec else None
        self.format = tf.Variable(tf.zeros([], tf.int64)) if len(config.pulls) > 1 else None
        """Number of the round's format; None if there is a single one."""
        self.rows = [SparseAccumulator(table) for table in shard.tables]
        norms = shard.norms if not config.moves and (config.dense or shard.tables) else None
        clipping = MeanClipping(norms, segments, shard.tables) if norms else None
        found = MeanNorms(clipping, shard.optimizer if config.dense else None)
        self.norms = found if found.length else None
        """None if the step needs none."""
        # The arbiter's.
        self.admitted = tf.Variable(tf.zeros([WORKER_SLOTS], tf.int64))
        self.closed = tf.Variable(tf.zeros([], tf.int64))
        self.served = tf.Variable(tf.zeros([WORKER_SLOTS], tf.int64))
        """The last global step that each worker's gradient is part of."""
        self.wait_until = tf.Variable(lambda: _deadline(config), dtype=tf.float64)
        """Time until which a round waits for workers that have not registered yet, in seconds since 1970.

        It starts at a restore, and ends early once all workers have registered.
        """
        self.proposal = tf.Variable(tf.constant([WORKER_SLOTS, 0], tf.int64))
        """The proposal for the next round's format: the lowest worker of this round, and its format."""

    @property
    def transient(self) -> list[Variable]:
        """Return the variables of the current round."""
        rows = [v for table in self.rows for v in (table.indices, table.workers, table.gradients)]
        overflowed = [] if self.overflowed is None else [self.overflowed]
        norms = [self.norms.totals, self.norms.place] if self.norms else []
        return [self.pushed, self.weights, self.losses, *overflowed, *self.vectors, *rows, *norms]

    @property
    def carried(self) -> list[PSVariable]:
        """Return the workers' last steps, and the wait for workers."""
        return [self.served, self.wait_until]

    def followers(self, segment: int) -> list[PSVariable]:
        """Return the variables of a segment's shadow."""
        return self.shadow.variables(segment) if self.shadow else []

    # The methods emit operations on the server's device, inside its critical section.

    def add(
        self,
        worker: Tensor,
        attempt: Tensor,
        same: Tensor,
        stats: Tensor,
        vectors: Sequence[Tensor],
        touched: Sequence[Touched],
    ) -> list[Operation]:
        """Emit adding a gradient, which starts a new sum if its attempt is new; return the operations to wait for."""
        numbers = GradientStats.read(stats)
        weight = numbers.samples * numbers.finite
        counts = weight * numbers.parts  # the weight of the vectors as they arrive
        kept = tf.where(same, self.weights.read_value(), tf.zeros_like(self.weights.read_value()))
        losses = tf.where(same, self.losses.read_value(), tf.zeros([], tf.float64)) + tf.math.multiply_no_nan(
            numbers.loss, weight
        )
        pushed = tf.where(same, self.pushed.read_value(), 0) + tf.one_hot(worker, WORKER_SLOTS, dtype=tf.int64)
        if self.config.ordered:
            weights = tf.tensor_scatter_nd_update(kept, tf.reshape(worker, [1, 1]), tf.reshape(weight, [1]))
            added = [put(target, worker, vector) for target, vector in zip(self.vectors, vectors, strict=True)]
        else:
            first, total = tf.unstack(kept)
            unit = tf.where(first > 0, first, counts)
            weights = tf.stack([unit, total + weight])
            added = [accumulate(self.vectors, vectors, begins=tf.equal(total, 0), weight=counts, unit=unit)]
        begins = tf.equal(tf.reduce_sum(kept), 0)
        added += [
            table.add(rows, worker, counts, begins=begins) for table, rows in zip(self.rows, touched, strict=True)
        ]
        if self.overflowed is not None:
            before = tf.where(same, self.overflowed.read_value(), tf.zeros([], tf.float64))
            added.append(self.overflowed.assign(tf.maximum(before, numbers.overflowed), read_value=False))
        return [
            *added,
            self.attempt.assign(attempt, read_value=False),
            self.weights.assign(weights, read_value=False),
            self.losses.assign(losses, read_value=False),
            self.pushed.assign(pushed, read_value=False),
        ]

    def propose_format(self, worker: Tensor, fmt: Tensor) -> list[Operation]:
        """Emit storing a worker's proposal for the next round's format; return the operations to wait for.

        The lowest worker of a round decides: only one worker at a time explores which format is faster.
        """
        if self.format is None:
            return []
        proposal = self.proposal.read_value()
        heard = tf.where(worker <= proposal[0], tf.stack([worker, fmt]), proposal)
        return [self.proposal.assign(heard, read_value=False)]

    def next_format(self) -> Tensor:
        """Emit the format of the next round. int64[]."""
        return tf.unstack(self.proposal.read_value())[1]

    def mean(self) -> list[Tensor]:
        """Emit the mean of the added gradients, a vector for each segment."""
        weights = self.weights.read_value()
        if not self.config.ordered:
            unit, all_weights = tf.unstack(weights)
            sums, parts = [total.read_value() for total in self.vectors], all_weights / unit
            means: list[Tensor] = tf.cond(
                tf.equal(
                    parts, 1
                ),  # every worker has divided its gradient, and all have pushed: there is nothing to do
                lambda: [tf.identity(total) for total in sums],
                lambda: [total / tf.cast(parts, total.dtype) for total in sums],
            )
            return means
        unit = tf.reduce_max(weights)
        means = []
        for rows in self.vectors:
            values, mean = rows.read_value(), tf.zeros([rows.shape[1]], rows.dtype)
            for worker in range(self.config.workers):
                part = values[worker] * tf.cast(weights[worker] / unit, rows.dtype)
                mean = tf.where(weights[worker] > 0, mean + part, mean)
            means.append(mean / tf.cast(tf.reduce_sum(weights) / unit, rows.dtype))
        return means

    def squares(self) -> Tensor:
        """Emit the sums of squares that the step needs; see `MeanNorms`."""
        return self.norms_or_raise().squares(self.mean(), self._touched(self._total()))

    def norms_or_raise(self) -> MeanNorms:
        """Return the norms.

        Raises:
            TypeError: the step needs none.
        """
        if self.norms is None:
            raise TypeError("the step needs no norms")
        return self.norms

    def _total(self) -> Tensor:
        """Emit the weight of all gradients together. float64[]."""
        weights = self.weights.read_value()
        return tf.reduce_sum(weights) if self.config.ordered else tf.unstack(weights)[1]

    def _touched(self, total: Tensor) -> list[Touched]:
        return [table.mean(total, ordered=self.config.ordered) for table in self.rows]

    def result(self) -> RoundResult:
        """Emit the result of the round; the mean is clipped by the norms that are stored."""
        total = self._total()
        losses = tf.stack([self.losses.read_value(), total])
        found = RoundResult(
            total,
            losses,
            self.mean,
            lambda: self._touched(total),
            self.admitted.read_value(),
            tf.zeros([], tf.float64) if self.overflowed is None else self.overflowed.read_value(),
        )
        return found if self.norms is None else self.norms.applied_to(found)

    def clear(self) -> list[Operation]:
        """Emit the reset of the round; return the operations to wait for."""
        cleared = [self.pushed, self.weights, self.losses, self.admitted, self.closed]
        cleared += [] if self.overflowed is None else [self.overflowed]
        no_worker = tf.stack([tf.constant(WORKER_SLOTS, tf.int64), self.next_format()])
        return [
            *(found.assign(tf.zeros(found.shape, found.dtype), read_value=False) for found in cleared),
            *([] if self.format is None else [self.proposal.assign(no_worker, read_value=False)]),
        ]


class SparseAccumulator:
    """Accumulates the touched rows of one table in a round; create it inside `variables_on` for a server."""

    def __init__(self, table: Segment) -> None:
        width = table.slices[0].width
        self.indices = tf.Variable(tf.zeros([0], tf.int64), shape=[None])
        self.workers = tf.Variable(tf.zeros([0], tf.int64), shape=[None])
        self.gradients = tf.Variable(tf.zeros([0, width], table.dtype), shape=[None, width])

    def add(self, rows: Touched, worker: Tensor, weight: Tensor, *, begins: Tensor) -> Tensor:
        """Emit adding a worker's rows times its weight, or replacing the sum if it `begins`; return the operation."""
        indices, gradients = rows
        new = [indices, tf.fill(tf.shape(indices), worker), gradients * tf.cast(weight, gradients.dtype)]
        targets = [self.indices, self.workers, self.gradients]

        def begin() -> Tensor:
            return with_dependencies(
                [t.assign(v, read_value=False) for t, v in zip(targets, new, strict=True)], applied()
            )

        def append() -> Tensor:
            grown = [tf.concat([t.read_value(), v], 0) for t, v in zip(targets, new, strict=True)]
            return with_dependencies(
                [t.assign(v, read_value=False) for t, v in zip(targets, grown, strict=True)], applied()
            )

        return tf.cond(weight > 0, lambda: tf.cond(begins, begin, append), not_applied)

    def mean(self, total: Tensor, *, ordered: bool) -> Touched:
        """Emit each touched row once, with its mean gradient over the round's samples."""
        indices, gradients = self.indices.read_value(), self.gradients.read_value()
        if ordered:
            order = tf.argsort(self.workers.read_value(), stable=True)
            indices, gradients = tf.gather(indices, order), tf.gather(gradients, order)
        unique, summed = sparse_optimizer.merged([(indices, gradients)])
        return unique, summed / tf.cast(total, summed.dtype)


def _deadline(config: RoundConfig) -> Tensor:
    return tf.constant(NEVER, tf.float64) if config.ordered else clock() + WAIT_SECONDS


def accumulate(
    targets: Sequence[Variable], vectors: Sequence[Tensor], *, begins: Tensor, weight: Tensor, unit: Tensor
) -> Tensor:
    """Emit setting or adding vectors, in units of the first gradient's weight; nothing without a weight."""

    def scaled() -> list[Tensor]:
        return [vector * tf.cast(weight / unit, vector.dtype) for vector in vectors]

    def begin() -> Tensor:
        return with_dependencies(
            [t.assign(v, read_value=False) for t, v in zip(targets, vectors, strict=True)], applied()
        )

    def add() -> Tensor:
        parts = tf.cond(tf.equal(weight, unit), lambda: [tf.identity(vector) for vector in vectors], scaled)
        return with_dependencies(
            [t.assign_add(v, read_value=False) for t, v in zip(targets, parts, strict=True)], applied()
        )

    return tf.cond(weight > 0, lambda: tf.cond(begins, begin, add), not_applied)
