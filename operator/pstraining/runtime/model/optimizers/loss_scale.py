"""Dynamic loss scaling, as Keras's `LossScaleOptimizer` does it (Micikevicius et al., Mixed Precision Training, 2018).

Small gradients are zero in float16. The loss is therefore multiplied by a scale before the backward pass, and gradients
are divided by it afterwards, in float32. A gradient that is not finite is an overflow: no optimizer makes a step, and
the scale is halved. After a number of steps without an overflow the scale is doubled.

In rounds every server and every standby has the scale, and updates it from the same gradients of the same round, so all
of them have the same scale. A worker multiplies and divides by one scale; its gradient is correct if the scale is old.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import keras
import numpy as np
import tensorflow as tf

from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import KerasOptimizer, Operation, Tensor, Variable

NAMES: Final = ("loss_scale", "loss_scale_good_steps", "loss_scale_skipped_steps")
"""Names of the state in a checkpoint."""


@dataclass(frozen=True)
class LossScaleSettings:
    """Settings of a `LossScaleOptimizer`."""

    initial: float
    """The scale before the first step."""
    growth_steps: int
    """Steps without an overflow after which the scale is doubled."""

    def values(self) -> dict[str, Array]:
        """Return the state at the beginning, by name."""
        first = np.asarray(self.initial, np.float32), np.zeros([], np.int64), np.zeros([], np.int64)
        return dict(zip(NAMES, first, strict=True))


def inner(optimizer: KerasOptimizer) -> KerasOptimizer:
    """Return the optimizer that applies steps: the inner one of a `LossScaleOptimizer`, or else the given one."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        found: KerasOptimizer = optimizer.inner_optimizer
        return found
    return optimizer


def settings_of(compiled: KerasOptimizer) -> LossScaleSettings | None:
    """Return the settings of a compiled model's loss scaling; None if Keras does not scale its loss."""
    if not isinstance(compiled, keras.optimizers.LossScaleOptimizer):
        return None
    return LossScaleSettings(float(compiled.initial_scale), int(compiled.dynamic_growth_steps))


class LossScale:
    """The scale's variables on a server or on a worker; the methods emit operations where the variables are."""

    def __init__(self, settings: LossScaleSettings) -> None:
        self._settings = settings
        first = settings.values()
        self.scale, self._good, self._skipped = (tf.Variable(first[name], trainable=False) for name in NAMES)

    def saved(self) -> dict[str, Variable]:
        """Return the variables by name: `PSVariable`s on a server."""
        return dict(zip(NAMES, (self.scale, self._good, self._skipped), strict=True))

    def initial(self) -> Mapping[str, Array]:
        """Return the state at the beginning, by name."""
        return self._settings.values()

    def skipped(self) -> Tensor:
        """Emit the number of steps that overflowed, which optimizers do not count. int64[]."""
        return self._skipped.read_value()

    def skip(self, overflowed: Tensor) -> list[Operation]:
        """Emit counting a step as skipped if it overflowed; return the operations to wait for.

        Args:
            overflowed: whether a gradient of the step is not finite. bool[].
        """
        return [self._skipped.assign_add(tf.cast(overflowed, tf.int64), read_value=False)]

    def advance(self, overflowed: Tensor) -> list[Operation]:
        """Emit setting the scale of the next step; return the operations to wait for.

        Args:
            overflowed: whether a gradient of the step is not finite. bool[].
        """
        scale, good = self.scale.read_value(), self._good.read_value()
        grows = tf.equal(good, self._settings.growth_steps - 1)
        following = tf.where(overflowed, 0.5 * scale, tf.where(grows, 2.0 * scale, scale))
        counted = tf.where(overflowed | grows, tf.zeros_like(good), good + 1)
        return [self.scale.assign(following, read_value=False), self._good.assign(counted, read_value=False)]

    def bits(self) -> Tensor:
        """Emit the bits of the scale, for replies that consist of integers. int64[]."""
        return tf.cast(tf.bitcast(self.scale.read_value(), tf.int32), tf.int64)

    def hold(self, bits: Tensor) -> Operation:
        """Emit setting the scale to the one whose bits a reply contains. int64[]."""
        return self.scale.assign(tf.bitcast(tf.cast(bits, tf.int32), tf.float32), read_value=False)


def unscaled(gradients: Sequence[Tensor], scale: Tensor) -> list[Tensor]:
    """Emit gradients of a loss that was multiplied by `scale`, without that factor; divided in float32 at least."""

    def divided(gradient: Tensor) -> Tensor:
        if gradient.dtype == tf.float16:
            return tf.cast(tf.cast(gradient, tf.float32) / scale, gradient.dtype)
        return gradient / tf.cast(scale, gradient.dtype)

    return [divided(gradient) for gradient in gradients]
