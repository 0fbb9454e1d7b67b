"""Computes a worker's part of an update: the gradient of one or several batches on its local parameters."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import tensorflow as tf

from pstraining.runtime.model import data_parallel
from pstraining.runtime.model.errors import ModelError
from pstraining.runtime.model.keras_model import STATE, Touched
from pstraining.runtime.model.optimizers import sparse_optimizer
from pstraining.runtime.model.optimizers.continued_schedule import continued
from pstraining.runtime.model.optimizers.finite import are_finite
from pstraining.runtime.model.optimizers.optimizer import check_for_local_steps
from pstraining.runtime.model.tensor import Batch, Tensor
from pstraining.runtime.model.training.training_step import samples
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.updates.messages import GradientStats

NEVER: Final = -2
"""A step number that never occurs. Nothing is computed for it, and every server rejects it."""

Rows = list[list[Touched]]
"""The touched rows by server and table: unique local indices, and their gradients."""
Vectors = list[list[Tensor]]
"""One vector per server and segment."""
StateTargets = Callable[[Sequence[Tensor], Sequence[Tensor], int], list[Tensor]]
"""Emits one tensor per variable of state, from its values before and after, and the number of batches in between."""
BatchSums = tuple[Tensor, Vectors, list[Touched]]
"""Stats, vectors, and for each table the touched rows: of one batch, or summed over batches."""


class LocalGradient(NamedTuple):
    """A worker's gradient for one update, on the device that computes or on the task's CPU."""

    stats: Tensor
    """See `GradientStats`. float64[5]."""
    vectors: Vectors
    """The mean gradient of each segment, or the change or the target of a segment of state."""
    rows: Rows
    """The mean gradient of the touched rows."""


class ShardGradient(NamedTuple):
    """The part of a `LocalGradient` that one server receives."""

    stats: Tensor
    """See `GradientStats`. float64[5]."""
    vectors: Sequence[Tensor]
    """One vector per segment."""
    rows: Sequence[Touched]
    """For each table local indices and gradients."""


class GradientComputer:
    """Computes a model's gradients on batches, called directly or inside a traced function.

    Args:
        store: the model and the servers' segments.
        moves: whether the worker sends the move of the parameters by its local optimizer over several batches (local
            SGD) instead of a gradient. The optimizer's slots stay on the worker.
        share: returns the factor of a move.
        parts: number of gradients in a step. The loss is divided by this number before the backward pass, at no cost,
            so the sum over equal batches is their mean. The division is omitted if it is not exact: if the number is
            not a power of two, or gradients are not linear in the loss.
        clips: whether this worker clips its gradient by norm; otherwise the mean is clipped before it is applied.
        state_targets: emits the tensors that are sent instead of the change of state, from the values before and
            after a number of batches.

    Raises:
        ModelError: local steps cannot move the rows of tables, or variables with a constraint.
        OptimizerError: an optimizer does not support local steps.
    """

    def __init__(
        self,
        store: ParameterStore,
        *,
        moves: bool = False,
        share: Callable[[], float] = lambda: 1.0,
        parts: int = 1,
        clips: bool = False,
        state_targets: StateTargets | None = None,
    ) -> None:
        self._store, self._moves, self._share, self._state_targets = store, moves, share, state_targets
        self._clips = clips
        exact = parts & (parts - 1) == 0  # division by a power of two rounds nothing
        self._parts = parts if exact and not moves and store.model.is_linear else 1
        if moves and store.model.tables:
            raise ModelError("spec.training.localSteps: embedding tables need every step; use accumulationSteps")
        if moves and (held := store.model.constraints):
            raise ModelError(
                f"spec.training.localSteps: {next(iter(held))} has a constraint, which a sum of the workers' changes "
                "need not meet; use accumulationSteps"
            )
        for own in store.model.optimizers if moves else ():
            check_for_local_steps(own)
        if moves and not store.model.optimizer.built:
            with tf.device(store.client.compute):
                store.model.optimizer.build(store.model.trainable)
        # A target is a mean over batches, as a gradient is; changes add up.
        changes = state_targets is None
        self._is_state = [[changes and segment.group == STATE for segment in shard.segments] for shard in store.shards]
        self._one = tf.function(self._emit_one, autograph=False, reduce_retracing=True)
        self._mean = tf.function(self._emit_mean, autograph=False, reduce_retracing=True)
        self._one_on_cpu = tf.function(self._emit_one_on_cpu, autograph=False, reduce_retracing=True)
        self._mean_on_cpu = tf.function(self._emit_mean_on_cpu, autograph=False, reduce_retracing=True)
        self._walk = tf.function(self._emit_walk, autograph=False, reduce_retracing=True)
        self._return = tf.function(self._emit_return, autograph=False)
        self._sum = tf.function(self._emit_sum, autograph=False, reduce_retracing=True)

    def bind(self, store: ParameterStore) -> "GradientComputer":
        """Return a computer with the same settings for other members of the shards."""
        return GradientComputer(
            store,
            moves=self._moves,
            share=self._share,
            parts=self._parts,
            clips=self._clips,
            state_targets=self._state_targets,
        )

    def is_one_pass(self, batches: Sequence[Batch]) -> bool:
        """Return whether `emit` can compute the gradient of these batches."""
        return len(batches) == 1 and not self._moves

    def compute(self, batches: Sequence[Batch]) -> LocalGradient:
        """Return the gradient of the mean loss over all samples of the batches.

        Variables that change without a gradient change from batch to batch, as in one process.

        Raises:
            ShardLostError: rows of a table could not be fetched.
        """
        if self._moves:
            return self._moved(batches)
        return LocalGradient(*self._store.client.run(self._mean, self._total(batches), len(batches) > 1))

    def compute_to_cpu(self, batches: Sequence[Batch]) -> LocalGradient:
        """Return the gradient as `compute` does, copied to this task's CPU in the same call.

        A copy that starts later waits for everything that the device has been given to compute in between, such as the
        next gradient.

        Raises:
            ShardLostError: see `compute`.
        """
        run = self._store.client.run
        if self.is_one_pass(batches):
            return LocalGradient(*run(self._one_on_cpu, batches[0], on_cpu=True))
        return LocalGradient(*run(self._mean_on_cpu, self._total(batches), on_cpu=True))

    def emit(self, batch: Batch) -> LocalGradient:
        """Emit the gradient of one batch, on the device that computes."""
        return LocalGradient(*self._emit_mean(self._emit_one(batch), summed=False))

    def zeros(self) -> LocalGradient:
        """Emit a gradient of zeros, without a batch."""
        shards = self._store.shards
        with tf.device(self._store.client.compute):
            vectors = [[tf.zeros([segment.size], segment.dtype) for segment in shard.segments] for shard in shards]
        stats, rows = self.zero_rows(0)
        return LocalGradient(stats, vectors, rows)

    def zero_rows(self, number: int) -> tuple[Tensor, Rows]:
        """Return stats of zeros, and `number` zero rows of every table."""
        with tf.device(self._store.client.compute):
            rows = [
                [
                    (tf.zeros([number], tf.int64), tf.zeros([number, table.slices[0].width], table.dtype))
                    for table in shard.tables
                ]
                for shard in self._store.shards
            ]
            return tf.zeros([len(GradientStats._fields)], tf.float64), rows

    def _total(self, batches: Sequence[Batch]) -> BatchSums:
        """Return the gradient of one batch, or the sums over several."""
        run = self._store.client.run
        total: BatchSums = run(self._one, batches[0])
        if len(batches) > 1:
            total = run(self._sum, None, total)
            for batch in batches[1:]:
                total = run(self._sum, total, run(self._one, batch))
        return total

    def _moved(self, batches: Sequence[Batch]) -> LocalGradient:
        """Train locally from the servers' parameters, return the change, and reset the parameters."""
        model, run = self._store.model, self._store.client.run
        before = [variable.value.read_value() for variable in model.variables]
        stats_of_steps = [run(self._walk, batch) for batch in batches]
        share = tf.constant(self._share(), tf.float64)
        stats, vectors = run(self._return, before, stats_of_steps, share)
        return LocalGradient(stats, vectors, rows=[[] for _ in self._store.shards])

    def _emit_walk(self, batch: Batch) -> Tensor:
        """Emit one step of this worker's own optimizer; return the batch's `GradientStats`. float64[5].

        A gradient that is not finite makes no step: NaN would stay in the slots, which outlive the update.
        """
        model = self._store.model
        with tf.device(self._store.client.compute):
            loss, gradients, _ = self._on_devices(batch)
            finite, scale = are_finite(gradients), model.loss_scale

            def walk() -> Tensor:
                with continued(model.optimizers, model.other_local_steps):
                    model.optimizer.apply(gradients, model.trainable)
                return tf.constant(True)

            walked = tf.cond(finite, walk, lambda: tf.constant(False))
            if scale is None:
                return _stats(batch, loss, walked)
            scale.advance(tf.logical_not(walked))
            return _stats(batch, loss, tf.constant(True))

    def _emit_return(
        self, before: Sequence[Tensor], stats_of_steps: Sequence[Tensor], share: Tensor
    ) -> tuple[Tensor, Vectors]:
        """Emit the change since `before` as stats and vectors, and reset the parameters."""
        model = self._store.model
        with tf.device(self._store.client.compute):
            after = [variable.value.read_value() for variable in model.variables]
            trained = len(model.trainable)
            pairs = zip(after[:trained], before[:trained], strict=True)
            moves = [(new - old) * tf.cast(share, new.dtype) for new, old in pairs]
            changes = self._state_changes(before[trained:], after[trained:], len(stats_of_steps))
            usable, scaled = tf.cast(are_finite(changes), tf.float64) if changes else 1.0, [*moves, *changes]
            with tf.control_dependencies(scaled):
                for variable, value in zip(model.variables, before, strict=True):
                    variable.value.assign(value)
            steps = GradientStats.read_all(tf.stack(stats_of_steps))
            number = tf.reduce_sum(steps.samples)
            loss = tf.reduce_sum(steps.samples * steps.loss) / number
            one, zero = tf.ones([], tf.float64), tf.zeros([], tf.float64)
            together = GradientStats(number, loss, usable * tf.reduce_min(steps.finite), parts=one, overflowed=zero)
            return together.pack(), self._store.pack(scaled)

    def _emit_one(self, batch: Batch) -> BatchSums:
        """Emit stats, vectors, and the touched rows of every table."""
        model = self._store.model
        state = model.variables[len(model.trainable) :]
        with tf.device(self._store.client.compute):
            before = [variable.value.read_value() for variable in state]
            with tf.control_dependencies(before):
                loss, gradients, touched = self._on_devices(batch, 1 / self._parts)
            if self._clips:
                gradients, touched = model.clip(gradients, touched)
            changes = self._state_changes(before, [variable.value.read_value() for variable in state], 1)
            if self._parts > 1:
                changes = [change / self._parts for change in changes]
            vectors = self._store.pack([*gradients, *changes])
            rows = [gradient for _, gradient in touched]
            if model.loss_scale is None:
                finite = are_finite([*tf.nest.flatten(vectors), *rows])
                return _stats(batch, loss, finite, self._parts), vectors, touched
            # After an overflow the optimizer applies no step, but the forward pass has changed the state.
            overflowed = tf.logical_not(are_finite([*gradients, *rows]))
            finite = are_finite(changes) if changes else tf.constant(True)
            return _stats(batch, loss, finite, self._parts, overflowed), vectors, touched

    def _state_changes(self, before: Sequence[Tensor], after: Sequence[Tensor], batches: int) -> list[Tensor]:
        if self._state_targets is None:
            return [new - old for new, old in zip(after, before, strict=True)]
        return self._state_targets(before, after, batches)

    def _on_devices(self, batch: Batch, share: float = 1.0) -> tuple[Tensor, list[Tensor], list[Touched]]:
        """Emit one forward and backward pass on this worker's devices; see `Model.loss_and_gradients`."""
        store = self._store
        return data_parallel.loss_and_gradients(
            store.model, batch, store.fetch_rows_on, store.client.devices, share=share
        )

    def _emit_sum(self, total: BatchSums | None, new: BatchSums) -> BatchSums:
        """Emit the sums over the batches so far: of samples, and of losses and gradients times their samples."""
        with tf.device(self._store.client.compute):
            packed, vectors, touched = new
            stats = GradientStats.read(packed)
            weight = stats.samples
            summed = stats._replace(loss=weight * stats.loss)  # a sum over samples, until `_emit_mean`
            parts = self._per_segment(lambda vector, is_state: vector if is_state else _times(vector, weight), vectors)
            weighted = [(indices, _times(gradient, weight)) for indices, gradient in touched]
            if total is None:
                return summed.pack(), parts, weighted
            packed_total, earlier, rows = total
            before = GradientStats.read(packed_total)
            summed = GradientStats(
                before.samples + summed.samples,
                before.loss + summed.loss,
                tf.minimum(before.finite, summed.finite),
                summed.parts,
                tf.maximum(before.overflowed, summed.overflowed),
            )
            together = [sparse_optimizer.merged(pair) for pair in zip(rows, weighted, strict=True)]
            return summed.pack(), tf.nest.map_structure(tf.add, earlier, parts), together

    def _emit_mean(self, total: BatchSums, summed: bool) -> tuple[Tensor, Vectors, Rows]:
        """Emit the means of sums, or one batch unchanged, with the touched rows split by server."""
        stats, vectors, touched = total
        with tf.device(self._store.client.compute):
            if summed:
                sums = GradientStats.read(stats)
                share = 1.0 / sums.samples
                vectors = self._per_segment(lambda vector, state: vector if state else _times(vector, share), vectors)
                touched = [(indices, _times(gradient, share)) for indices, gradient in touched]
                stats = sums._replace(loss=sums.loss * share).pack()
            servers, tables = len(self._store.shards), self._store.model.tables
            shares = [
                sparse_optimizer.split(indices, gradient, servers, dynamic=table.dynamic)
                for (indices, gradient), table in zip(touched, tables, strict=True)
            ]
            return stats, vectors, [[table[number] for table in shares] for number in range(servers)]

    def _emit_one_on_cpu(self, batch: Batch) -> LocalGradient:
        """Emit the gradient of one batch, and copying it to the CPU."""
        copied: LocalGradient = self._store.client.to_local(self.emit(batch))
        return copied

    def _emit_mean_on_cpu(self, total: BatchSums) -> LocalGradient:
        """Emit the mean of sums, and copying it to the CPU."""
        return self._store.client.to_local(LocalGradient(*self._emit_mean(total, summed=True)))

    def _per_segment(self, change: Callable[[Tensor, bool], Tensor], vectors: Sequence[Sequence[Tensor]]) -> Vectors:
        return [
            [change(vector, is_state) for vector, is_state in zip(row, kinds, strict=True)]
            for row, kinds in zip(vectors, self._is_state, strict=True)
        ]


def _stats(batch: Batch, loss: Tensor, finite: Tensor, parts: int = 1, overflowed: Tensor | None = None) -> Tensor:
    divisor, none = tf.constant(parts, tf.float64), tf.zeros([], tf.float64)
    return GradientStats(samples(batch), loss, finite, divisor, none if overflowed is None else overflowed).pack()


def _times(vector: Tensor, factor: Tensor) -> Tensor:
    return vector * tf.cast(factor, vector.dtype)
