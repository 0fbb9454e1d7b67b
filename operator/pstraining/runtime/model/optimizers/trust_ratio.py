"""Lamb's trust ratio of tensors that are split over parameter servers.

Lamb scales the update of a variable by the norm of the variable divided by the norm of the update (You et al., Large
Batch Optimization for Deep Learning, 2019). No process has a whole tensor that is split. Each process adds up the
squares of its pieces before the step, and the totals give every process the same ratio. Everything else is
element-wise, with the arithmetic of Keras's `Lamb.update_step`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import tensorflow as tf

from pstraining.runtime.model.optimizers.clipping import added, sum_of_squares
from pstraining.runtime.model.tensor import KerasOptimizer, KerasVariable, Operation, Tensor

_TOTALS: ContextVar[Tensor] = ContextVar("totals")
"""The totals of the step that is being emitted; threads may emit at the same time."""


class Piece(NamedTuple):
    """A part of a tensor on this process."""

    clone: KerasOptimizer
    """The clone of Lamb that trains the piece."""
    variable: KerasVariable
    """The piece's variable. Shape: [size]."""
    tensor: int
    """Number of the tensor in the layout."""


class _Update(NamedTuple):
    """Lamb's next moments of a piece, and the update before its scaling; each of shape [size]."""

    momentum: Tensor
    velocity: Tensor
    direction: Tensor


class TrustRatios:
    """The trust ratios of the pieces on one process; replaces the step of their clones.

    Args:
        tensors: numbers of all tensors that are split, on any server.
        pieces: the pieces on this process.
    """

    def __init__(self, tensors: Sequence[int], pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self._places = {tensor: place for place, tensor in enumerate(tensors)}
        self.length = 2 * len(tensors)
        """Number of sums of squares: one for every tensor, and one for its update."""
        for clone in {id(piece.clone): piece.clone for piece in pieces}.values():
            self._replace_step(clone)

    def squares(self, gradients: Sequence[Tensor]) -> Tensor:
        """Emit the sums of squares of this process's pieces; changes nothing. float64[length].

        Args:
            gradients: one per piece, of its shape.
        """
        found: list[list[Tensor]] = [[] for _ in range(self.length)]
        for piece, given in zip(self._pieces, gradients, strict=True):
            (gradient,) = piece.clone._clip_gradients([_accumulated(piece, given)])
            index = piece.clone._get_variable_index(piece.variable)
            place = 2 * self._places[piece.tensor]
            found[place].append(sum_of_squares(_decayed(piece)))
            found[place + 1].append(sum_of_squares(_update(piece.clone, index, gradient).direction))
        return tf.stack([added(parts) if parts else tf.zeros([], tf.float64) for parts in found])

    @contextmanager
    def by(self, totals: Tensor | None) -> Iterator[None]:
        """Let the steps that are emitted in the block use the totals of all processes' `squares`."""
        token = _TOTALS.set(totals)
        try:
            yield
        finally:
            _TOTALS.reset(token)

    def _replace_step(self, clone: KerasOptimizer) -> None:
        """Let a clone scale the updates of pieces by the totals; its other variables are whole."""
        own = [piece for piece in self._pieces if piece.clone is clone]
        places = {clone._get_variable_index(piece.variable): self._places[piece.tensor] for piece in own}
        composed = clone.update_step

        def update_step(gradient: Tensor, variable: KerasVariable, learning_rate: Tensor) -> Operation:
            index = clone._get_variable_index(variable)
            if index not in places:
                return composed(gradient, variable, learning_rate)
            found = _update(clone, index, tf.cast(gradient, variable.dtype))
            ratio = tf.cast(_ratio(*tf.unstack(_TOTALS.get())[2 * places[index] :][:2]), variable.dtype)
            clone.assign(clone._momentums[index], found.momentum)
            clone.assign(clone._velocities[index], found.velocity)
            return clone.assign_sub(variable, ratio * tf.cast(learning_rate, variable.dtype) * found.direction)

        clone.update_step = update_step


def _ratio(of_variable: Tensor, of_update: Tensor) -> Tensor:
    """Emit the ratio of two norms from their squares; 1 if one is zero. float64[]."""
    both = (of_variable > 0) & (of_update > 0)
    return tf.where(both, tf.sqrt(tf.math.divide_no_nan(of_variable, of_update)), tf.ones([], tf.float64))


def _update(clone: KerasOptimizer, index: int, gradient: Tensor) -> _Update:
    """Emit the update of one of a clone's variables, by the arithmetic of Keras."""
    dtype = gradient.dtype
    beta_1, beta_2 = tf.cast(clone.beta_1, dtype), tf.cast(clone.beta_2, dtype)
    step = tf.cast(tf.convert_to_tensor(clone.iterations) + 1, dtype)
    momentum, velocity = clone._momentums[index].value.read_value(), clone._velocities[index].value.read_value()
    momentum += (gradient - momentum) * tf.cast(1 - clone.beta_1, dtype)
    velocity += (tf.square(gradient) - velocity) * tf.cast(1 - clone.beta_2, dtype)
    root = tf.sqrt(velocity / (1 - tf.pow(beta_2, step))) + tf.cast(clone.epsilon, dtype)
    return _Update(momentum, velocity, momentum / (1 - tf.pow(beta_1, step)) / root)


def _accumulated(piece: Piece, gradient: Tensor) -> Tensor:
    """Emit the mean of a step's gradient and those that the optimizer has accumulated before it.

    While such an optimizer only accumulates, no update is scaled, and nothing reads the sums.
    """
    steps = piece.clone.gradient_accumulation_steps
    if not steps:
        return gradient
    before = piece.clone._accumulated_gradients[piece.clone._get_variable_index(piece.variable)]
    return (gradient + before.value.read_value()) / steps


def _decayed(piece: Piece) -> Tensor:
    """Emit a piece after its weight decay, which precedes the step."""
    clone, value = piece.clone, piece.variable.value.read_value()
    if clone.weight_decay is None or not clone._use_weight_decay(piece.variable):
        return value
    return value - value * tf.cast(clone.weight_decay, value.dtype) * tf.cast(clone.learning_rate, value.dtype)
