"""What callbacks cannot change: workers and parameter servers have these settings from the program.

`fit` traces its step after `on_train_begin` and the first `on_epoch_begin`, so what these set has an effect there.
Later only a learning rate that is a number does.
"""

import inspect
from dataclasses import dataclass
from typing import Final

import keras
import numpy as np

from pstraining.runtime.chief.refusals import CallbackRefusedError
from pstraining.runtime.model.keras_model import Model
from pstraining.runtime.model.tensor import KerasOptimizer

SCHEDULE: Final = keras.optimizers.schedules.LearningRateSchedule


@dataclass(frozen=True)
class FixedSettings:
    """The settings of a model's optimizers, and what is trained, as the program has created them."""

    rates: list[object]
    """The learning rate of each optimizer: a variable, or a schedule."""
    settings: list[dict[str, object]]
    """Other settings of each optimizer, by name."""
    trainable: list[bool]
    """Whether each weight and each table is trained."""

    @classmethod
    def of(cls, model: Model) -> "FixedSettings":
        """Return the present settings of a model."""
        rates = [getattr(own, "_learning_rate", None) for own in model.optimizers]
        trained = {id(variable) for variable in model.keras.trainable_variables}
        weights = [id(weight) in trained for weight in (*model.trainable, *model.frozen)]
        tables = [bool(layer.trainable) for layer in model.embeddings]
        return cls(rates, [_settings(own) for own in model.optimizers], [*weights, *tables])

    def check_rates(self, model: Model) -> None:
        """Refuse a schedule in place of a learning rate, and another rate in place of a schedule.

        Raises:
            CallbackRefusedError: names the way out.
        """
        for former, present in zip(self.rates, self.of(model).rates, strict=True):
            if present is None or present is former:  # None while the chief's thread reads the other settings
                continue
            if isinstance(former, SCHEDULE) or isinstance(present, SCHEDULE):
                raise CallbackRefusedError(
                    f"a callback has set the optimizer's learning rate to {type(present).__name__}, which the "
                    "parameter servers would not follow: give a schedule to the optimizer in the program's function, "
                    "or let the callback set a number at each epoch, as LearningRateScheduler does"
                )

    def check_all(self, model: Model) -> None:
        """Refuse all other settings than those of the program, before training begins.

        Raises:
            CallbackRefusedError: names the setting and the way out.
        """
        self.check_rates(model)
        present = self.of(model)
        for former, own in zip(self.settings, present.settings, strict=True):
            if changed := sorted(name for name in former.keys() | own.keys() if former.get(name) != own.get(name)):
                raise CallbackRefusedError(
                    f"a callback has changed the optimizer's {changed[0]}, which the parameter servers would not "
                    "follow: set it in the program's function that creates the optimizer"
                )
        if present.trainable != self.trainable:
            raise CallbackRefusedError(
                "a callback has changed which variables are trained (`trainable` of a layer), which the workers would "
                "not follow: set it in the program's function that creates the model"
            )


def _settings(optimizer: KerasOptimizer) -> dict[str, object]:
    """Return the numbers with which an optimizer was created, such as its weight decay, without the learning rate."""
    names = {*inspect.signature(keras.optimizers.Optimizer).parameters, *inspect.signature(type(optimizer)).parameters}
    own = {name: value for name, value in vars(optimizer).items() if name in names}
    return {name: value for name, value in own.items() if value is None or isinstance(value, int | float | np.number)}
