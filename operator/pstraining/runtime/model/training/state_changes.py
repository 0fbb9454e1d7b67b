"""Finds how a training step changes variables without a gradient, from the operations that the step emits.

A moving average is recognized by its layer and by the number of its assignments in a step. Every other write of a step
counts as a change of unknown kind. Variables that no layer has are found by the lines of the program that use them.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import keras
import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils as resources

import pstraining
from pstraining.runtime.model.tensor import KerasVariable, Operation, Tensor, Variable

_OF_BATCH_NORMALIZATION: Final = (
    ("moving_mean", "momentum", False),
    ("moving_variance", "momentum", True),
    ("moving_stddev", "momentum", True),
    ("renorm_mean", "renorm_momentum", False),
    ("renorm_stddev", "renorm_momentum", True),
)
"""Attributes of the layer: a variable, its momentum, and whether it is never negative."""
_LIBRARIES: Final = tuple(f"{Path(str(own.__file__)).parent}/" for own in (tf, keras, pstraining))
_OF_GENERATORS: Final = ("RngReadAndSkip", "RngSkip")
"""Operations of `tf.random.Generator`, of which each process is to have its own."""
_ON_SERVERS: Final = "/job:ps/"


class Average(NamedTuple):
    """A variable that every call of its layer assigns: momentum * variable + (1 - momentum) * the batch's value."""

    momentum: float
    is_positive: bool
    """Whether the variable is never negative."""


def averages(layers: Iterable[keras.layers.Layer]) -> dict[int, Average]:
    """Return the moving averages of Keras's BatchNormalization by the identity of their variables."""
    own, found = keras.layers.BatchNormalization, {}
    for layer in layers:
        if not isinstance(layer, own) or type(layer).call is not own.call:
            continue
        for name, momentum, is_positive in _OF_BATCH_NORMALIZATION:
            variable, factor = getattr(layer, name, None), getattr(layer, momentum, None)
            if variable is not None and factor is not None and 0 <= factor < 1:
                found[id(variable)] = Average(float(factor), is_positive)
    return found


class Writes:
    """The writes of operations that are emitted after its creation, in the function that is being traced."""

    def __init__(self) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self._since = len(self._graph.get_operations())

    def of(self, variables: Sequence[KerasVariable]) -> list[int | None]:
        """Return how often each variable is assigned; None if it is written in another way."""
        handles = {id(inside): id(outside) for outside, inside in self._graph.captures}
        found: dict[int, int | None] = {}
        for operation in self._with_resources():
            for written in resources.get_read_write_resource_inputs(operation)[1]:
                handle = handles.get(id(written), id(written))
                before = found.get(handle, 0)
                is_plain = operation.type == "AssignVariableOp" and before is not None
                found[handle] = before + 1 if is_plain and before is not None else None
        return [found.get(id(variable.value.handle), 0) for variable in variables]

    def of_no_layer(self, known: Iterable[KerasVariable], own: Iterable[Variable]) -> list[str]:
        """Return the lines of the program whose operations use further variables of this process, in their order.

        Args:
            known: the variables of the model and of its metrics.
            own: variables of this library.
        """
        handles = {id(inside): outside for outside, inside in self._graph.captures}
        ours = {id(variable._value.handle) for variable in known} | {id(variable.handle) for variable in own}
        found = dict[str, None]()
        for operation in self._with_resources():
            if operation.type in _OF_GENERATORS:
                continue
            used = [handles[id(given)] for given in operation.inputs if id(given) in handles]
            if any(_is_variable(one) and id(one) not in ours and _ON_SERVERS not in one.device for one in used):
                found[_line(operation)] = None
        return list(found)

    def _with_resources(self) -> list[Operation]:
        operations = self._graph.get_operations()[self._since :]
        return [one for one in operations if any(given.dtype == tf.resource for given in one.inputs)]


def _is_variable(handle: Tensor) -> bool:
    """Return whether a captured tensor is a variable's handle, and not that of a hash table or an iterator."""
    return handle.dtype == tf.resource and getattr(handle, "_handle_data", None) is not None


def _line(operation: Operation) -> str:
    """Return the innermost line of the program that has emitted an operation, as file:line; otherwise its name."""
    for frame in reversed(list(operation.traceback or ())):
        if not frame.filename.startswith((*_LIBRARIES, "<")):
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return str(operation.name)
