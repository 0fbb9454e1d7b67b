"""The program's optimizers on the segments of one parameter server.

Each optimizer of the program is cloned onto the vectors of its groups. A worker in the mode Hybrid has the same objects
for every server, so that its arithmetic and the order of its state are the servers'.
"""

from collections.abc import Sequence
from typing import Any

import keras

from pstraining.runtime.model import optimizer as optimizers
from pstraining.runtime.model.keras_model import STATE
from pstraining.runtime.model.partition import Segment
from pstraining.runtime.model.tensor import KerasOptimizer, KerasVariable, Tensor


class SegmentOptimizer:
    """Vectors of segments with the optimizers' clones on them; create it where the variables shall be.

    Args:
        program: the program's optimizers, by the numbers in the segments' groups.
        segments: the server's, without tables.
        fused: whether fused kernels may replace Keras's arithmetic.
    """

    def __init__(self, program: Sequence[KerasOptimizer], segments: Sequence[Segment], *, fused: bool) -> None:
        self._segments = segments
        self._variables: list[KerasVariable] = [
            keras.Variable(initializer="zeros", shape=(segment.size,), dtype=segment.dtype, name=f"segment{number}")
            for number, segment in enumerate(segments)
        ]
        self.vectors: list[Any] = [variable.value for variable in self._variables]  # `PSVariable` on a server
        """One per segment, each of shape [segment.size]."""
        trained = [number for number, segment in enumerate(segments) if segment.group != STATE]
        self._trained_by = {
            index: [trained[place] for place in found]
            for index, found in optimizers.places([segments[number].group for number in trained]).items()
        }
        self.clones: dict[int, KerasOptimizer] = {
            index: optimizers.clone(
                program[index],
                [self._variables[number] for number in numbers],
                [segments[number].group for number in numbers],
                fused=fused,
            )
            for index, numbers in self._trained_by.items()
        }
        """The clones of those optimizers that train a segment of this server, by the optimizers' numbers."""
        self.slots: dict[tuple[str, int], Any] = {}
        """The optimizers' vectors, by slot name and number of the segment."""
        self.counters: dict[str, Any] = {}
        """The optimizers' counters."""
        for index, clone in self.clones.items():
            slots, counters = optimizers.state_of(clone)
            prefix = f"optimizer{index}/" if len(program) > 1 else ""
            self.slots |= slots
            self.counters |= {prefix + name: value for name, value in counters.items()}

    @property
    def state(self) -> list[Any]:
        """Return all state: vectors, slots and counters."""
        return [*self.vectors, *self.slots.values(), *self.counters.values()]

    def apply(self, vectors: Sequence[Tensor], *, moves: bool = False) -> None:
        """Emit one step.

        Args:
            vectors: one per segment: its gradient, or the change of a segment of state.
            moves: whether the vectors of trained segments are changes as well, computed by the workers' optimizers.
        """
        if not moves:
            for index, numbers in self._trained_by.items():
                self.clones[index].apply([vectors[n] for n in numbers], [self._variables[n] for n in numbers])
        for number, segment in enumerate(self._segments):
            if moves or segment.group == STATE:
                self.vectors[number].assign_add(vectors[number], read_value=False)
