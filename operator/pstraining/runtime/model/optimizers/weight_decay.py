"""Which variables an optimizer decays, as Keras decides it on TensorFlow."""

from typing import Protocol

import keras

from pstraining.runtime.model.tensor import KerasOptimizer


class Decayable(Protocol):
    """A variable of Keras, or a stand-in for one."""

    @property
    def value(self) -> object:
        """The TensorFlow variable."""


def is_used(optimizer: KerasOptimizer) -> bool:
    """Return whether an optimizer decays variables; Muon has a second decay, for variables that it trains by Adam."""
    return any(getattr(optimizer, name, None) is not None for name in ("weight_decay", "adam_weight_decay"))


def kind(optimizer: KerasOptimizer, variable: Decayable) -> str:
    """Return "decayed", "undecayed", or without weight decay "trainable".

    `exclude_from_weight_decay(var_names=...)` searches the names of TensorFlow's variables, which contain those of the
    layers, such as `model/layer_normalization/gamma:0`. Muon, with a decay of its own, searches Keras's: `gamma`.
    """
    if not is_used(optimizer):
        return "trainable"
    is_own = type(optimizer)._apply_weight_decay is not keras.optimizers.Optimizer._apply_weight_decay
    return "decayed" if optimizer._use_weight_decay(variable if is_own else variable.value) else "undecayed"
