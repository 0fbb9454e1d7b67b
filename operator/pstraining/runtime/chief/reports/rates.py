"""The learning rates of the chief's optimizers: in logs, and those that LearningRateScheduler has set in an epoch."""

from collections.abc import Sequence
from contextlib import suppress

import keras
import numpy as np
import tensorflow as tf

from pstraining.runtime.chief.reports.fixed_settings import SCHEDULE
from pstraining.runtime.model.optimizers.optimizer import rate_names
from pstraining.runtime.model.tensor import KerasOptimizer


def learning_rates(optimizers: Sequence[KerasOptimizer], step: int) -> dict[str, float]:
    """Return the learning rates at a step of the optimizers by their names in logs, without those that are no numbers.

    Args:
        optimizers: the program's optimizers.
        step: number of steps of each optimizer.
    """
    found = {}
    for name, optimizer in zip(rate_names(optimizers), optimizers, strict=True):
        rate = getattr(optimizer, "_learning_rate", None)
        made = tf.constant(step, optimizer._iterations.dtype)  # a schedule may read the type of the step
        with suppress(TypeError, ValueError):
            found[name] = float(np.asarray(rate(made) if isinstance(rate, SCHEDULE) else optimizer.learning_rate))
    return found


def rates_of(optimizers: Sequence[KerasOptimizer]) -> list[float | None]:
    """Return the present learning rates, by optimizer; None for schedules."""
    schedules = [isinstance(own._learning_rate, SCHEDULE) for own in optimizers]
    pairs = zip(optimizers, schedules, strict=True)
    return [None if is_one else float(np.asarray(own.learning_rate)) for own, is_one in pairs]


class RepeatedRates:
    """The learning rates of epochs that are trained again after a restore, for which no callback is called.

    Args:
        optimizers: the program's optimizers.
        callbacks: the program's callbacks.
    """

    def __init__(self, optimizers: Sequence[KerasOptimizer], callbacks: Sequence["keras.callbacks.Callback"]) -> None:
        self._optimizers, self._callbacks, self._first = optimizers, callbacks, rates_of(optimizers)
        self._epoch: int | None = None
        self._kept: list[float | None] = []

    def follow(self, epoch: int | None) -> None:
        """Set the rates that LearningRateScheduler has set in an epoch; None: those before the restore return."""
        if epoch == self._epoch:
            return
        if self._epoch is None:
            self._kept = rates_of(self._optimizers)
        self._epoch = epoch
        if epoch is None:
            for own, rate in zip(self._optimizers, self._kept, strict=True):
                if rate is not None:
                    own.learning_rate = rate
        else:
            scheduled(self._optimizers, self._callbacks, epoch + 1, self._first)


def scheduled(
    optimizers: Sequence[KerasOptimizer],
    callbacks: Sequence["keras.callbacks.Callback"],
    epoch: int,
    first: Sequence[float | None] = (),
) -> bool:
    """Set the learning rates that LearningRateScheduler would have set in the epochs before one, as in one `fit`.

    Args:
        optimizers: the program's optimizers.
        callbacks: the program's callbacks.
        epoch: the epoch that begins or is resumed, from 0.
        first: the program's learning rates; empty: the present ones.

    Returns:
        Whether the rates follow from such callbacks alone. ReduceLROnPlateau sets them by what it has seen.
    """
    found = [callback for callback in callbacks if isinstance(callback, keras.callbacks.LearningRateScheduler)]
    others = any(isinstance(callback, keras.callbacks.ReduceLROnPlateau) for callback in callbacks)
    if not found or others or any(isinstance(own._learning_rate, SCHEDULE) for own in optimizers):
        return False
    rates = [float(rate or 0.0) for rate in first or rates_of(optimizers)]
    for number in range(epoch):
        for callback in found:
            rates = [_rate_of(callback, number, rate) for rate in rates]
    for own, rate in zip(optimizers, rates, strict=True):
        own.learning_rate = rate
    return True


def _rate_of(callback: "keras.callbacks.LearningRateScheduler", epoch: int, rate: float) -> float:
    """Return the learning rate that a callback sets in an epoch, from the one before."""
    try:
        found = callback.schedule(epoch, rate)
    except TypeError:  # Keras also takes functions of the epoch alone
        found = callback.schedule(epoch)
    return float(found)
