"""The initial state from the program's model, read in ranges: the chief holds no second copy of its tables."""

from collections.abc import Mapping

import numpy as np

from pstraining.runtime.checkpoint.state import Entry
from pstraining.runtime.model.keras_model import Model
from pstraining.runtime.model.partition import Array
from pstraining.runtime.ps.saving.state_parts import MODEL


class InitialState:
    """The model's own variables at step 0.

    Args:
        model: the chief's model.
        changes: whether the model's variables change while the initial values may be needed again. Their values are
            then copied now.
    """

    step = 0
    ended_early = False

    def __init__(self, model: Model, *, changes: bool) -> None:
        self._model, self._copies = model, model.values() if changes else None
        self._last: tuple[str, Array] | None = None

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The tensors by name."""
        if self._copies is not None:
            return {f"{MODEL}/{path}": Entry(str(own.dtype), own.shape) for path, own in self._copies.items()}
        return {
            f"{MODEL}/{path}": Entry(variable.value.dtype.name, tuple(variable.shape))
            for path, variable in self._model.by_path()
        }

    def read(self, name: str, begin: int, end: int) -> Array:
        """Return elements `begin` to `end` of a flattened tensor. Shape: [end - begin]."""
        if self._last is None or self._last[0] != name:
            path = name.partition("/")[2]
            if self._copies is not None:
                whole = self._copies[path]
            else:  # without a copy where the variable is in the CPU's memory
                whole = np.asarray(dict(self._model.by_path())[path].value.read_value())
            self._last = name, whole
        return self._last[1].reshape(-1)[begin:end]
