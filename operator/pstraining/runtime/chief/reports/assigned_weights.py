"""What callbacks assign to the weights of their model, which is a copy: training has its own on the servers.

With `fit`, such values would train, and those that are assigned in `on_train_end` are the result.
"""

import zlib
from collections.abc import Sequence
from typing import Final

import keras
import numpy as np

from pstraining.runtime.chief.refusals import CallbackRefusedError, has_own_hook
from pstraining.runtime.model.keras_model import Model
from pstraining.runtime.model.tensor import KerasVariable

SMALL: Final = 65_536
"""Maximum of numbers in a weight that is compared after each epoch. A callback rarely assigns large ones alone."""


class AssignedWeights:
    """Compares the weights of a model before and after hooks of callbacks of the program's own; Keras's assign none.

    Args:
        model: the chief's model.
        callbacks: the program's callbacks.
    """

    def __init__(self, model: Model, callbacks: Sequence["keras.callbacks.Callback"]) -> None:
        self._model, self._is_used = model, any(map(has_own_hook, callbacks))
        self._before: list[int] = []
        self._whole = 0

    def note(self) -> None:
        """Note the weights before hooks of an epoch."""
        self._before = [_checksum(own) for _, own in self._compared()]

    def check(self) -> None:
        """Refuse weights with other values than before.

        Raises:
            CallbackRefusedError: names a weight and the way out.
        """
        for (path, own), before in zip(self._compared(), self._before, strict=True):
            if _checksum(own) != before:
                raise CallbackRefusedError(
                    f"a callback has assigned {path}, which training would not follow: workers have the weights of the "
                    "parameter servers. Set first values in the program's function that creates the model, and let the "
                    "model compute what changes later, such as from a floating-point weight that counts steps"
                )

    def note_all(self) -> None:
        """Note all weights before the end of training."""
        self._whole = self._of_all()

    def has_result(self) -> bool:
        """Return whether callbacks have assigned weights at the end of training."""
        return self._whole != self._of_all()

    def _compared(self) -> list[tuple[str, KerasVariable]]:
        """Return small weights by path; without statistics of BatchNormalization, which calling the model changes."""
        if not self._is_used:
            return []
        model = self._model
        of_all = zip((*model.tensors, *model.frozen_tensors), (*model.variables, *model.frozen), strict=True)
        return [(tensor.path, own) for tensor, own in of_all if tensor.size <= SMALL and not model.is_average(own)]

    def _of_all(self) -> int:
        """Return a checksum; 0 if it is not needed, or if rows by key, which are in no weight, would be left out."""
        if not self._is_used or any(layer.is_dynamic for layer in self._model.embeddings):
            return 0
        found = 0
        for _, own in self._model.by_path():
            found = _checksum(own, found)
        return found


def _checksum(variable: KerasVariable, before: int = 0) -> int:
    return zlib.crc32(np.ascontiguousarray(variable.numpy()).data, before)
