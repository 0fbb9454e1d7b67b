"""A batch's gradient on several devices of one worker.

The model's variables are on the first device. Every device receives their values and a part of the batch, and computes
the gradient of its part. The first device adds the gradients, weighted by samples. It sets state to its mean over the
devices, as `tf.distribute.MirroredStrategy` does: BatchNormalization normalizes each part by itself.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

import keras
import tensorflow as tf

from pstraining.runtime.model.errors import ModelError
from pstraining.runtime.model.keras_model import Fetch, Model, Touched
from pstraining.runtime.model.optimizers import sparse_optimizer
from pstraining.runtime.model.tensor import Batch, KerasVariable, Tensor
from pstraining.runtime.model.training.training_step import samples

SEED_STRIDE: Final = 0x9E3779B1
"""Added to seeds from one device to the next, so that dropout masks differ: 2^32 divided by the golden ratio."""


Emit = Callable[..., Tensor]


class _Part(NamedTuple):
    """One device's part of a batch: its weight and the device's results."""

    weight: Tensor
    """The part's number of samples divided by the batch's. float64[]."""
    loss: Tensor
    gradients: list[Tensor]
    touched: list[Touched]
    written: dict[int, tuple[Tensor, Tensor]]
    """The values before and after the forward pass of each variable that it writes, by the variable's number."""


class _CountingScope(keras.StatelessScope):  # type: ignore[misc]
    """A scope in which values replace variables. It counts the writes of each variable."""

    def __init__(self, values: Sequence[tuple[KerasVariable, Tensor]]) -> None:
        super().__init__(values, collect_losses=True)
        self.writes = Counter[int]()
        """Number of writes of each variable, by its identity."""

    def add_update(self, update: tuple[KerasVariable, Tensor]) -> None:
        self.writes[id(update[0])] += 1
        super().add_update(update)


def loss_and_gradients(
    model: Model, batch: Batch, fetch_on: Callable[[str], Fetch], devices: Sequence[str], *, share: float = 1.0
) -> tuple[Tensor, list[Tensor], list[Touched]]:
    """Emit one forward and backward pass over a batch on this worker's devices; see `Model.loss_and_gradients`.

    Args:
        model: the model, whose variables are on the first device.
        batch: with several devices its tensors have the samples as their first dimension, or are scalars.
        fetch_on: returns the function that fetches rows of tables to a device.
        devices: this worker's devices that compute.
        share: factor of the loss for the gradients.

    Raises:
        ModelError: several devices cannot divide the batch, because it contains a sparse tensor, a loss is a sum over
            its samples, or an RNN is stateful.
    """
    if len(devices) == 1:
        fetch = fetch_on(devices[0])
        emit = _compiled(model, lambda given: model.loss_and_gradients(given, fetch, share=share))
        found: tuple[Tensor, list[Tensor], list[Touched]] = emit(batch)
        return found
    if model.carried:
        raise ModelError("devices: an RNN with stateful=True has states of one batch size; use one device")
    if any(getattr(loss, "reduction", "") == "sum" for loss in tf.nest.flatten(model.keras.loss)):
        # The mean of n parts would be 1/n of the batch's loss: on a node with more GPUs, the model would learn slower.
        raise ModelError(
            'loss: with reduction="sum", the parts of a batch on several devices have no mean that equals one device; '
            "use the default reduction with a higher learning rate, or one device"
        )
    variables = _variables(model)
    with tf.device(devices[0]):
        values = [variable.value.read_value() for variable in variables]
        number = samples(batch)
        pieces = [_piece(batch, number, part, len(devices)) for part in range(len(devices))]
    parts = []
    for part, (device, (weight, piece)) in enumerate(zip(devices, pieces, strict=True)):
        with tf.device(device):
            parts.append(_part(model, piece, weight, fetch_on(device), _copies(variables, values, part), share))
    with tf.device(devices[0]):
        for index, variable in enumerate(variables):
            if all(index in part.written for part in parts):
                variable.assign(_together(variable, values[index], [(p.weight, *p.written[index]) for p in parts]))
        return _sums(model, parts)


def _compiled(model: Model, emit: Emit) -> Emit:
    """Return a pass, which XLA compiles if the program requests it."""
    return cast("Emit", tf.function(emit, autograph=False, jit_compile=True)) if model.jit_compile else emit


def _variables(model: Model) -> list[KerasVariable]:
    """Return the model's variables, including those of seeds and metrics."""
    found = [*model.keras.variables, *model.keras.metrics_variables]
    return list({id(variable): variable for variable in found}.values())


def _piece(batch: Batch, number: Tensor, part: int, devices: int) -> tuple[Tensor, Batch]:
    """Emit a part of a batch, and its weight. Parts differ by at most one sample.

    With fewer samples than devices, some devices repeat the last sample with a weight of zero, because the mean of no
    samples is undefined.
    """
    size = number // devices + tf.cast(part < number % devices, tf.int32)
    begin = tf.minimum(part * (number // devices) + tf.minimum(part, number % devices), number - 1)
    end = begin + tf.maximum(size, 1)

    def cut(tensor: Tensor | None) -> Tensor | None:
        if isinstance(tensor, tf.SparseTensor):
            raise ModelError("devices: sparse tensors of a batch cannot be divided; make them dense, or use one device")
        return tensor if tensor is None or tensor.shape.rank == 0 else tensor[begin:end]

    return tf.cast(size, tf.float64) / tf.cast(number, tf.float64), tf.nest.map_structure(cut, batch)


def _copies(
    variables: Sequence[KerasVariable], values: Sequence[Tensor], part: int
) -> list[tuple[KerasVariable, Tensor]]:
    """Emit the variables' values on device number `part`; its seeds are offset by `part` times SEED_STRIDE."""
    copies = []
    for variable, value in zip(variables, values, strict=True):
        is_seed = part and variable.name == "seed_generator_state"
        moved = value + tf.constant([part * SEED_STRIDE, 0], value.dtype) if is_seed else tf.identity(value)
        copies.append((variable, moved))
    return copies


def _part(
    model: Model,
    piece: Batch,
    weight: Tensor,
    fetch: Fetch,
    copies: Sequence[tuple[KerasVariable, Tensor]],
    share: float,
) -> _Part:
    """Emit a forward and a backward pass on copies of the variables' values."""
    variables, values = zip(*copies, strict=True)

    def emit(piece: Batch, given: Sequence[Tensor]) -> Tensor:
        here = list(zip(variables, given, strict=True))
        by_variable = {id(variable): value for variable, value in here}
        trained = [by_variable[id(variable)] for variable in model.trainable]
        with _CountingScope(here) as scope, model.step.counting(weight > 0):
            found = model.loss_and_gradients(piece, fetch, share=share, values=trained)
        trained_writes, frozen_writes = (
            [scope.writes.get(id(variable), 0) for variable in own] for own in (model.trainable, model.frozen)
        )
        model.check_writes(trained_writes, frozen_writes)
        model.writes = [scope.writes.get(id(variable), 0) for variable in model.variables[len(model.trainable) :]]
        after = {index: scope.get_current_value(variable) for index, (variable, _) in enumerate(here)}
        return *found, {index: value for index, value in after.items() if scope.writes.get(id(variables[index]))}

    loss, gradients, touched, after = _compiled(model, emit)(piece, list(values))
    return _Part(weight, loss, gradients, touched, {index: (values[index], value) for index, value in after.items()})


def _together(variable: KerasVariable, value: Tensor, written: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Emit a variable's value after all parts.

    Changes of a metric's state are added, and changes of other floats are averaged. Integers and seeds get the first
    part's value.

    Args:
        variable: a variable that each part has written.
        value: the variable's value before the parts.
        written: each part's weight, and the values before and after the part.
    """
    if not tf.as_dtype(variable.dtype).is_floating:
        return written[0][2]
    is_sum = variable.aggregation == "sum"
    moves = [(after - before) * (1 if is_sum else tf.cast(weight, value.dtype)) for weight, before, after in written]
    return value + tf.add_n(moves)


def _sums(model: Model, parts: Sequence[_Part]) -> tuple[Tensor, list[Tensor], list[Touched]]:
    """Emit loss and gradients of the whole batch."""
    loss = tf.add_n([part.loss * tf.cast(part.weight, part.loss.dtype) for part in parts])
    weighted = [[_times(gradient, part.weight) for gradient in part.gradients] for part in parts]
    gradients = [tf.add_n(found) for found in zip(*weighted, strict=True)]
    touched = [
        sparse_optimizer.merged([(indices, _times(gradient, part.weight)) for part, (indices, gradient) in of_table])
        for of_table in ([(part, part.touched[table]) for part in parts] for table in range(len(model.tables)))
    ]
    return loss, gradients, touched


def _times(gradient: Tensor, weight: Tensor) -> Tensor:
    return gradient * tf.cast(weight, gradient.dtype)
