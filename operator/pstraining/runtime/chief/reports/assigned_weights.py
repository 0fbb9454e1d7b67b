"""What callbacks assign to the weights of their model, which is a copy: training has its own on the servers.

With `fit`, such values would train, and those that are assigned in the last `on_epoch_end`, or in `on_train_end`, are
the result.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import keras
import numpy as np

from pstraining.runtime.chief.refusals import CallbackRefusedError, has_own_hook
from pstraining.runtime.model.keras_model import Model
from pstraining.runtime.model.own_state import seeds
from pstraining.runtime.model.partition import Array, key_path
from pstraining.runtime.model.tensor import KerasVariable


class AssignedWeights:
    """Compares the weights of a model before and after hooks of callbacks of the program's own; Keras's assign none.

    Args:
        model: the chief's model.
        callbacks: the program's callbacks.
    """

    def __init__(self, model: Model, callbacks: Sequence["keras.callbacks.Callback"]) -> None:
        self._model, self._is_used = model, any(map(has_own_hook, callbacks))
        tables = [table.path for table in model.tables if table.dynamic]
        self._by_key = {*tables, *map(key_path, tables)}
        trained = [*model.tensors[: len(model.trainable)], *model.frozen_tensors, *model.tables]
        self._weights = {tensor.path for tensor in trained} | self._by_key
        unnoted = {id(own) for own in (*model.carried, *seeds(model.keras._flatten_layers()))}
        self._local = [(own.path, own) for own in model.local if id(own) not in unnoted]
        self._reset: list[str] = []
        for layer in model.keras._flatten_layers() if self._is_used else ():
            if isinstance(layer, keras.layers.RNN) and layer.stateful:
                layer.reset_state = partial(self._note_reset, layer.name, layer.reset_state)
        self._before: Mapping[str, int] = {}
        self._whole: Mapping[str, int] = {}

    def _note_reset(self, layer: str, reset: Callable[[], None]) -> None:
        self._reset.append(layer)
        reset()

    def note(self) -> None:
        """Note the weights before hooks of an epoch."""
        self._reset.clear()
        self._before = self._checksums()

    def training_begun(self) -> None:
        """Accept that states of RNNs were reset in `on_train_begin`: those of workers begin like that."""
        self._reset.clear()

    def note_state(self) -> None:
        """Note the state again that a validation may have changed, as layers may count their calls."""
        self._before = self._checksums() | {path: own for path, own in self._before.items() if path in self._weights}

    def check(self) -> None:
        """Refuse weights with other values than before.

        Raises:
            CallbackRefusedError: names a weight, or an RNN whose states were reset, and the way out.
        """
        if self._reset:
            raise CallbackRefusedError(
                f"a callback has reset the states of the layer {self._reset[0]}, which workers would not follow: each "
                "has states of its own, which its batches continue. Leave the reset out, or use stateful=False"
            )
        if changed := self._changed():
            raise CallbackRefusedError(
                f"a callback has assigned {changed[0]}, which training would not follow: workers have the weights of "
                "the parameter servers. Set first values in the program's function that creates the model, and let the "
                "model compute what changes later, such as from a floating-point weight that counts steps"
            )

    def are_result(self) -> bool:
        """Return whether callbacks have assigned weights since `note`, after which nothing is trained.

        Raises:
            CallbackRefusedError: they have assigned rows by key.
        """
        return self._are_kept(self._changed())

    def note_all(self) -> None:
        """Note all weights before the end of training."""
        self._whole = self._checksums(whole=True)

    def has_result(self) -> bool:
        """Return whether callbacks have assigned weights at the end of training.

        Raises:
            CallbackRefusedError: see `are_result`.
        """
        found = self._checksums(whole=True)
        return self._are_kept([path for path in found if found[path] != self._whole.get(path)])

    def values(self) -> dict[str, Array]:
        """Return the weights by path, without rows by key and their keys, which callbacks do not change."""
        return {path: np.array(own.numpy()) for path, own in self._model.by_path() if path not in self._by_key}

    def _changed(self) -> list[str]:
        """Return the paths of weights with other values than before."""
        found = self._checksums()
        return [path for path in found if found[path] != self._before.get(path)]

    def _are_kept(self, changed: Sequence[str]) -> bool:
        if lost := [path for path in changed if path in self._by_key]:
            raise CallbackRefusedError(
                f"a callback has assigned {lost[0]}, the rows of a layer whose input_dim is None, which would not be "
                "in the result: assign weights of other layers alone, or change the rows of the model in final.keras"
            )
        return bool(set(changed) - {path for path, _ in self._local})  # those are in this process, as the result is

    def _checksums(self, *, whole: bool = False) -> dict[str, int]:
        """Return checksums of weights and tables, by path; without hooks of the program's own, there are none.

        Args:
            whole: whether statistics of BatchNormalization, which a call changes, are included, and not integers, which
                stay in this process.
        """
        if not self._is_used:
            return {}
        found = [(path, own) for path, own in self._model.by_path() if whole or not self._model.is_average(own)]
        return {path: _checksum(own) for path, own in (*found, *(() if whole else self._local))}


def _checksum(variable: KerasVariable) -> int:
    return zlib.crc32(np.ascontiguousarray(variable.numpy()).data)
