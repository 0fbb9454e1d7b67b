"""Keras's `Normalization`, which computes with constants that it makes from its variables after `adapt`.

Each task adapts its layer by itself, perhaps to other samples. The variables of all tasks are then the chief's, and the
constants must be made from them again, as Keras does when it loads weights.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import keras


def adapted(layers: Iterable[keras.layers.Layer]) -> list[keras.layers.Normalization]:
    """Return the layers whose mean and variance are variables, and not arguments."""
    return [layer for layer in layers if isinstance(layer, keras.layers.Normalization) and layer.input_mean is None]


def refresh(layers: Sequence[keras.layers.Normalization]) -> None:
    """Compute the constants from the variables."""
    for layer in layers:
        layer.finalize_state()


@contextmanager
def from_variables(layers: Sequence[keras.layers.Normalization]) -> Iterator[None]:
    """Emit operations that read the variables, instead of constants, while the block is traced."""
    constants = [(layer.mean, layer.variance) for layer in layers]
    refresh(layers)
    try:
        yield
    finally:
        for layer, (mean, variance) in zip(layers, constants, strict=True):
            layer.mean, layer.variance = mean, variance
