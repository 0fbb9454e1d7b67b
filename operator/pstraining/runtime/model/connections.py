"""Checks while a step is traced which variables the loss depends on, as Keras's `fit` does.

`fit` leaves a variable without a gradient unchanged. Here the variable gets a gradient of zeros, because its optimizer
trains a fixed list of variables. The result is the same if the optimizer neither decays nor recomputes the variable,
and no constraint applies to it. A model whose step would change such a variable is refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import keras
import tensorflow as tf

from pstraining.runtime.model.errors import ModelError
from pstraining.runtime.model.optimizers.optimizer import CONSTRAINED, is_decayed
from pstraining.runtime.model.own_state import common_seed
from pstraining.runtime.model.tensor import KerasModel, KerasOptimizer, KerasVariable, Tensor, Variable
from pstraining.runtime.model.training.state_changes import Writes

RECOMPUTED: Final = ("Ftrl",)
"""Optimizers that compute a variable from their slots, so that a gradient of zeros changes it."""


class Connections:
    """Checks a traced step.

    Args:
        model: the built Keras model; the servers have exactly its variables.
        trained_by: the optimizer of each trained variable, by path.
    """

    def __init__(self, model: KerasModel, trained_by: Mapping[str, KerasOptimizer]) -> None:
        self._model, self._trained_by = model, trained_by
        self._known = {id(variable) for variable in model.variables}
        self.missing: list[str] = []
        """Paths of the trained variables on which the loss does not depend."""
        self.of_no_layer: list[str] = []
        """Lines of the program where the step uses variables that belong to no layer."""

    def check_used(self, written: Writes, own: Iterable[Variable]) -> None:
        """Refuse variables that the forward pass has created: the servers would neither have nor train them.

        Args:
            written: the operations of the forward pass.
            own: variables of this library.

        Raises:
            ModelError: names the first one.
        """
        late = [v for v in self._model.variables if id(v) not in self._known and _counts(v)]
        if late:
            raise ModelError(
                f"{late[0].path} was created by the first training step, and parameter servers do not have it: build "
                "every layer in the model function, such as by a call of the model with training=True"
            )
        known = [*self._model.variables, *self._model.metrics_variables, *common_seed()]
        self.of_no_layer = written.of_no_layer(known, own)

    def filled(
        self, gradients: Iterable[Tensor | None], variables: Sequence[Tensor], tensors: Sequence[tuple[str, str]]
    ) -> list[Tensor]:
        """Return the gradients, with zeros for missing ones.

        Args:
            gradients: the gradients of the trained variables, followed by those of rows of tables.
            variables: the variables and rows that the gradients belong to, in the same order.
            tensors: path and group of each trained variable.

        Raises:
            ModelError: there is no gradient at all, or the optimizer would change a variable without one.
        """
        given = list(gradients)
        missing = [tensor for tensor, gradient in zip(tensors, given, strict=False) if gradient is None]
        if variables and all(gradient is None for gradient in given):
            raise ModelError(
                f"no variable has a gradient, such as {missing[0][0] if missing else 'the rows of a table'}: the loss "
                "does not depend on them. Check the loss, and the operations between it and the layers"
            )
        for path, group in missing:
            self._check_missing(path, group)
        self.missing = [path for path, _ in missing]
        return [
            tf.zeros_like(variable) if gradient is None else tf.convert_to_tensor(gradient)
            for gradient, variable in zip(given, variables, strict=True)
        ]

    def _check_missing(self, path: str, group: str) -> None:
        kind = type(self._trained_by[path]).__name__
        why = ""
        if is_decayed(group):
            why = f"{kind} decays it"
        elif kind in RECOMPUTED:
            why = f"{kind} computes it again in each step"
        elif CONSTRAINED in group:
            why = "its constraint applies to it"
        if why:
            raise ModelError(
                f"{path} has no gradient: the loss does not depend on it. {why} here, but `fit` leaves it unchanged. "
                "Set `trainable = False` on its layer, or remove the layer"
            )


def _counts(variable: KerasVariable) -> bool:
    """Return whether a variable is trained, or is state that workers share."""
    trained = isinstance(variable, keras.Variable) and variable.trainable
    return trained or bool(tf.as_dtype(variable.dtype).is_floating)
