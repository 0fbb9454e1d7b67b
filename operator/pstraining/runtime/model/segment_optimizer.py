"""The program's optimizers on the segments of one parameter server.

Each optimizer of the program is cloned onto the vectors of its groups. A clone that needs whole tensors has a variable
for each tensor, in the tensor's shape, or for each piece of it; only messages and checkpoints have the vector. A worker
in mode Hybrid has the same objects for every server, so that its arithmetic and the order of its state equal the
servers'.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from pstraining.runtime.model.keras_model import STATE, Model
from pstraining.runtime.model.optimizers import optimizer as optimizers
from pstraining.runtime.model.optimizers.loss_scale import LossScale, LossScaleSettings
from pstraining.runtime.model.optimizers.trust_ratio import Piece, TrustRatios
from pstraining.runtime.model.partition import Array, Layout, Segment
from pstraining.runtime.model.tensor import Constraint, DType, KerasOptimizer, KerasVariable, Operation, Tensor


class SlotPlace(NamedTuple):
    """The owner of a slot: a segment, or a tensor in it."""

    slot: str
    segment: int
    tensor: int | None = None
    """Number of the tensor, whose slots may have any shape; None for the whole segment, with slots of its length."""


class TensorVariables:
    """Variables in the shapes of tensors, presented as one concatenated vector."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = list(variables)
        self.dtype = self.variables[0].dtype
        self._sizes = [variable.shape.num_elements() for variable in self.variables]
        self.shape = tf.TensorShape([sum(self._sizes)])

    def read_value(self) -> Tensor:
        """Emit reading the values as one vector."""
        parts = [tf.reshape(variable.read_value(), [-1]) for variable in self.variables]
        return tf.concat(parts, 0) if len(parts) > 1 else parts[0]

    def assign(self, value: Tensor, *, read_value: bool = True) -> Operation:
        """Emit replacing the values."""
        done = [v.assign(part, read_value=False) for v, part in zip(self.variables, self.split(value), strict=True)]
        return self._after(done, read_value=read_value)

    def assign_add(self, delta: Tensor, *, read_value: bool = True) -> Operation:
        """Emit adding to the values."""
        done = [v.assign_add(part, read_value=False) for v, part in zip(self.variables, self.split(delta), strict=True)]
        return self._after(done, read_value=read_value)

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return a vector's part for each variable, in the variable's shape."""
        parts = tf.split(vector, self._sizes) if len(self._sizes) > 1 else [vector]
        return [tf.reshape(part, variable.shape) for part, variable in zip(parts, self.variables, strict=True)]

    def initial(self) -> Tensor:
        """Emit the initial value."""
        return tf.zeros(self.shape, self.dtype)

    def numpy(self) -> Array:
        """Return the values as one vector."""
        return np.asarray(self.read_value())

    def _after(self, done: Sequence[Operation], *, read_value: bool) -> Operation:
        with tf.control_dependencies([operation for operation in done if operation is not None]):
            return self.read_value() if read_value else tf.no_op()


class SegmentOptimizer:
    """Vectors of segments with the optimizers' clones on them; create it on the device of the variables.

    Args:
        program: the program's optimizers, by the numbers in the segments' groups.
        layout: the layout of the whole model.
        ps: number of the server.
        fused: whether fused kernels may replace Keras's arithmetic.
        scaling: settings of loss scaling; None for none.
        constraints: the constraint of each tensor that has one, by path; a clone applies it after its step.
    """

    def __init__(
        self,
        program: Sequence[KerasOptimizer],
        layout: Layout,
        ps: int,
        *,
        fused: bool,
        scaling: LossScaleSettings | None = None,
        constraints: Mapping[str, Constraint] | None = None,
    ) -> None:
        self._layout, self._segments = layout, (segments := layout.on(ps))
        held = constraints or {}
        self._variables = [_variables(number, segment, layout, held) for number, segment in enumerate(segments)]
        self.vectors: list[Any] = [  # `PSVariable` on a server
            TensorVariables([variable.value for variable in own]) if is_whole(segment, layout) else own[0].value
            for segment, own in zip(segments, self._variables, strict=True)
        ]
        """The vectors, one per segment, each of shape [segment.size]."""
        trained = [number for number, segment in enumerate(segments) if segment.group != STATE]
        self._trained_by = {
            index: [trained[place] for place in found]
            for index, found in optimizers.places([segments[number].group for number in trained]).items()
        }
        self.clones: dict[int, KerasOptimizer] = {}
        """The clones of the optimizers that train a segment of this server, by the optimizers' numbers."""
        self.slots: dict[SlotPlace, Any] = {}
        """The optimizers' slots."""
        self.counters: dict[str, Any] = {}
        """The optimizers' counters by name."""
        self.copies: list[tuple[Any, int]] = []
        """Slots whose initial value is a copy of the parameters, with the numbers of their segments."""
        for index, numbers in self._trained_by.items():
            self._clone(program, index, numbers, fused=fused)
        self.trust = TrustRatios(layout.cut_by_norms(), self._pieces())
        self.loss_scale = LossScale(scaling) if scaling else None
        if self.loss_scale:
            self.counters |= self.loss_scale.saved()

    @classmethod
    def of(cls, model: Model, layout: Layout, ps: int, *, fused: bool) -> "SegmentOptimizer":
        """Return the segment optimizer of a program's model on server number `ps`."""
        return cls(model.optimizers, layout, ps, fused=fused, scaling=model.scaling, constraints=model.constraints)

    def _clone(
        self,
        program: Sequence[KerasOptimizer],
        index: int,
        numbers: Sequence[int],
        *,
        fused: bool,
    ) -> None:
        """Clone one of the program's optimizers onto these segments."""
        variables = [variable for number in numbers for variable in self._variables[number]]
        groups = [self._segments[number].group for number in numbers for _ in self._variables[number]]
        places = [place for number in numbers for place in self._slot_places(number)]
        clone = self.clones[index] = optimizers.clone(program[index], variables, groups, fused=fused)
        slots, counters = optimizers.state_of(clone, variables)
        together: dict[SlotPlace, list[Any]] = {}
        for (slot, place), value in slots.items():
            together.setdefault(SlotPlace(slot, *places[place]), []).append(value)
        for where, values in together.items():
            joins = where.tensor is None and is_whole(self._segments[where.segment], self._layout)
            self.slots[where] = TensorVariables(values) if joins else values[0]
            if optimizers.starts_as_parameters(clone, where.slot):
                self.copies.append((self.slots[where], where.segment))
        prefix = f"optimizer{index}/" if len(program) > 1 else ""
        self.counters |= {prefix + name: value for name, value in counters.items()}

    @property
    def state(self) -> list[Any]:
        """Return all state: vectors, slots and counters."""
        return [*self.vectors, *self.slots.values(), *self.counters.values()]

    def train(self, vectors: Sequence[Tensor], trust: Tensor | None = None) -> None:
        """Emit one step of every optimizer.

        Args:
            vectors: one per segment; those of segments of state are not used.
            trust: totals of `trust_squares` of all servers; None without pieces. float64[trust.length].
        """
        with self.trust.by(trust):
            for index, numbers in self._trained_by.items():
                gradients = [gradient for n in numbers for gradient in self._split(n, vectors[n])]
                if len({is_whole(self._segments[n], self._layout) for n in numbers}) > 1:
                    # Keras requires gradients of one graph, but in the branch of a condition only some are split.
                    gradients = [tf.identity(gradient) for gradient in gradients]
                self.clones[index].apply(gradients, [variable for n in numbers for variable in self._variables[n]])

    def trust_squares(self, vectors: Sequence[Tensor]) -> Tensor:
        """Emit the sums of squares by which a step scales the updates of pieces; see `TrustRatios`.

        Args:
            vectors: see `train`.
        """
        return self.trust.squares([self._split(n, vectors[n])[place] for n, place in self._places_of_pieces()])

    def add(self, vectors: Sequence[Tensor], *, moves: bool = False) -> None:
        """Emit adding the changes of segments of state.

        Args:
            vectors: one per segment.
            moves: whether the vectors of trained segments are changes as well, computed by the workers' optimizers.
        """
        for number, segment in enumerate(self._segments):
            if moves or segment.group == STATE:
                self.vectors[number].assign_add(vectors[number], read_value=False)

    def _slot_places(self, number: int) -> list[tuple[int, int | None]]:
        """Return the segment and the tensor of the slots, for each of a segment's variables."""
        segment, tensors = self._segments[number], self._layout.tensors
        if not is_whole(segment, self._layout):
            return [(number, None)]
        # A piece has no slot of its tensor; where norms suffice, slots have the variables' shapes, concatenated.
        return [(number, None if tensors[slice_.tensor].by_norms else slice_.tensor) for slice_ in segment.slices]

    def _places_of_pieces(self) -> list[tuple[int, int]]:
        """Return the segment, and the place in it, of every piece of a tensor whose norms are needed."""
        return [
            (number, place)
            for number, segment in enumerate(self._segments)
            if is_whole(segment, self._layout)
            for place, slice_ in enumerate(segment.slices)
            if self._layout.is_piece(slice_)
        ]

    def _pieces(self) -> list[Piece]:
        return [
            Piece(
                clone=self.clones[optimizers.number_of(self._segments[number].group)],
                variable=self._variables[number][place],
                tensor=self._segments[number].slices[place].tensor,
            )
            for number, place in self._places_of_pieces()
        ]

    def _split(self, number: int, vector: Tensor) -> list[Tensor]:
        """Return a segment's gradient divided into the shapes of the segment's variables."""
        own = self.vectors[number]
        return own.split(vector) if isinstance(own, TensorVariables) else [vector]


def is_whole(segment: Segment, layout: Layout) -> bool:
    """Return whether an optimizer or constraints need a segment's whole tensors; none of its group is then split."""
    return layout.tensors[segment.slices[0].tensor].whole


def _variables(
    number: int, segment: Segment, layout: Layout, constraints: Mapping[str, Constraint]
) -> list[KerasVariable]:
    """Create a segment's vector, or a variable for each of its whole tensors and of their pieces."""
    if not is_whole(segment, layout):
        return [_variable((segment.size,), segment.dtype, f"segment{number}")]
    made = []
    for place, slice_ in enumerate(segment.slices):
        tensor, is_piece = layout.tensors[slice_.tensor], layout.is_piece(slice_)
        shape = (slice_.size,) if is_piece else tensor.shape
        variable = _variable(shape, tensor.dtype, f"segment{number}_{place}")
        # Muon selects variables by their path, and Keras names slots by it.
        variable._path = f"{tensor.path}_from_{slice_.begin}" if is_piece else tensor.path
        variable.constraint = constraints.get(tensor.path)
        made.append(variable)
    return made


def _variable(shape: tuple[int, ...], dtype: DType, name: str) -> Any:
    return keras.Variable(initializer="zeros", shape=shape, dtype=dtype, name=name)
