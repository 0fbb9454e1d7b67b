"""What callbacks assign to the weights of their model, which is a copy: training has its own on the servers.

With `fit`, such values would train, and those that are assigned in the last `on_epoch_end`, or in `on_train_end`, are
the result.
"""

import zlib
from collections.abc import Sequence

import keras
import numpy as np

from pstraining.runtime.chief.refusals import CallbackRefusedError, has_own_hook
from pstraining.runtime.model.keras_model import Model
from pstraining.runtime.model.tensor import KerasVariable


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
        if (path := self._changed()) is not None:
            raise CallbackRefusedError(
                f"a callback has assigned {path}, which training would not follow: workers have the weights of the "
                "parameter servers. Set first values in the program's function that creates the model, and let the "
                "model compute what changes later, such as from a floating-point weight that counts steps"
            )

    def are_result(self) -> bool:
        """Return whether callbacks have assigned weights since `note`, after which nothing is trained."""
        return not self._has_keys() and self._changed() is not None

    def note_all(self) -> None:
        """Note all weights before the end of training."""
        self._whole = self._of_all()

    def has_result(self) -> bool:
        """Return whether callbacks have assigned weights at the end of training."""
        return self._whole != self._of_all()

    def _changed(self) -> str | None:
        """Return the path of a weight with another value than before; None for none."""
        pairs = zip(self._compared(), self._before, strict=True)
        return next((path for (path, own), before in pairs if _checksum(own) != before), None)

    def _compared(self) -> list[tuple[str, KerasVariable]]:
        """Return weights and tables by path; without statistics of BatchNormalization, which a call changes."""
        if not self._is_used:
            return []
        return [(path, own) for path, own in self._model.by_path() if not self._model.is_average(own)]

    def _has_keys(self) -> bool:
        """Return whether the model has rows by key, which are in no weight."""
        return any(layer.is_dynamic for layer in self._model.embeddings)

    def _of_all(self) -> int:
        """Return a checksum; 0 if it is not needed, or if rows by key would be left out."""
        if not self._is_used or self._has_keys():
            return 0
        found = 0
        for _, own in self._model.by_path():
            found = _checksum(own, found)
        return found


def _checksum(variable: KerasVariable, before: int = 0) -> int:
    return zlib.crc32(np.ascontiguousarray(variable.numpy()).data, before)
