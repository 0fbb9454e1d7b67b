"""Which variables a loss depends on, checked where a step is traced, as Keras's `fit` does.

`fit` leaves a variable without a gradient as it is. Here its gradient is zeros, because the variable has a place among
those of its optimizer. The result is the same if the optimizer neither decays nor recomputes the variable. Every other
step would change it, and is refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import keras
import tensorflow as tf

from pstraining.runtime.model.errors import ModelError
from pstraining.runtime.model.optimizers.optimizer import CONSTRAINED, is_decayed
from pstraining.runtime.model.tensor import KerasModel, KerasOptimizer, KerasVariable, Tensor

RECOMPUTED: Final = ("Ftrl",)
"""Optimizers that compute a variable from their slots, so that a gradient of zeros changes it."""


class Connections:
    """Checks a traced step.

    Args:
        model: the built Keras model; its variables are those that the servers know.
        trained_by: the optimizer of each trained variable, by path.
    """

    def __init__(self, model: KerasModel, trained_by: Mapping[str, KerasOptimizer]) -> None:
        self._model, self._trained_by = model, trained_by
        self._known = {id(variable) for variable in model.variables}
        self.missing: list[str] = []
        """Paths of the trained variables on which the loss does not depend."""

    def check_built(self) -> None:
        """Refuse variables that the forward pass has created: the servers would neither have nor train them.

        Raises:
            ModelError: names the first one.
        """
        late = [v for v in self._model.variables if id(v) not in self._known and _counts(v)]
        if late:
            raise ModelError(
                f"{late[0].path} was created by the first training step, and parameter servers do not have it: build "
                "every layer in the model function, such as by a call of the model with training=True"
            )

    def filled(
        self, gradients: Iterable[Tensor | None], variables: Sequence[Tensor], tensors: Sequence[tuple[str, str]]
    ) -> list[Tensor]:
        """Return gradients with zeros in the place of missing ones.

        Args:
            gradients: of the trained variables, and then of rows of tables.
            variables: what they are gradients of.
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
            why = f"{kind} computes it anew in each step"
        elif CONSTRAINED in group:
            why = "its constraint applies to it"
        if why:
            raise ModelError(
                f"{path} has no gradient: the loss does not depend on it. {why} here, while `fit` leaves it as it is. "
                "Set `trainable = False` on its layer, or leave the layer out"
            )


def _counts(variable: KerasVariable) -> bool:
    """Return whether a variable is trained, or is state that workers share."""
    trained = isinstance(variable, keras.Variable) and variable.trainable
    return trained or bool(tf.as_dtype(variable.dtype).is_floating)
