"""The state of training by logical names, as a whole or in parts.

A tensor's name has its kind: `model/<path>`, `slot/<slot>/<path>` or `scalar/<name>`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol, runtime_checkable

import numpy as np

from pstraining.runtime.errors import FinalError
from pstraining.runtime.model.partition import Array

ENDED: Final = "scalar/ended_early"
"""Name of the mark that training was ended with a state before its time."""


class SupersededError(RuntimeError):
    """A newer chief leads the job; this one must end."""


class StateLostError(Exception):
    """No worker is there any more to bring the newest dense parameters to the servers."""


class Entry(NamedTuple):
    """Dtype and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class StateEntries(Protocol):
    """What a state consists of."""

    @property
    def step(self) -> int:
        """The global step."""
        ...

    @property
    def ended_early(self) -> bool:
        """Whether training was ended with this state before its time, so that no run trains it on."""
        ...

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The tensors by name."""
        ...


@runtime_checkable
class StateBlocks(StateEntries, Protocol):
    """A state that can be written in blocks, in the order of its entries."""

    def blocks(self) -> Iterator[tuple[str, Array]]:
        """Yield names and flat parts of tensors: all parts of one tensor, in their order, then those of the next."""
        ...


class StateParts(StateEntries, Protocol):
    """A state that can be read in parts."""

    def read(self, name: str, begin: int, end: int) -> Array:
        """Return elements `begin` to `end` of a flattened tensor. Shape: [end - begin]."""
        ...


@dataclass(frozen=True)
class State:
    """Everything that training needs to continue, by logical names that do not depend on the number of servers."""

    step: int
    variables: dict[str, Array]
    """The model's variables by path."""
    slots: dict[str, dict[str, Array]]
    """The optimizer's tensors by slot, then by the path of their variable."""
    scalars: dict[str, Array]
    """The optimizer's own counters, and what is no server's."""

    @classmethod
    def of(cls, step: int, tensors: Mapping[str, Array]) -> "State":
        """Return the state of which these are the tensors, by name."""
        state = cls(step, {}, {}, {})
        for name, value in tensors.items():
            kind, _, rest = name.partition("/")
            if kind == "model":
                state.variables[rest] = value
            elif kind == "slot":
                slot, _, path = rest.partition("/")
                state.slots.setdefault(slot, {})[path] = value
            else:
                state.scalars[rest] = value
        return state

    @property
    def ended_early(self) -> bool:
        """Whether training was ended with this state before its time, so that no run trains it on."""
        return ENDED.partition("/")[2] in self.scalars

    def ended(self) -> "State":
        """The same, as the last one of a training that was ended before its time."""
        return replace(self, scalars={**self.scalars, ENDED.partition("/")[2]: np.asarray(1, np.int64)})

    @property
    def tensors(self) -> dict[str, Array]:
        """All of the state but its step, by name."""
        arrays = {f"model/{path}": value for path, value in self.variables.items()}
        for slot, values in self.slots.items():
            arrays |= {f"slot/{slot}/{path}": value for path, value in values.items()}
        return arrays | {f"scalar/{name}": np.asarray(value) for name, value in self.scalars.items()}

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The tensors by name, in the order of `blocks`."""
        return {name: Entry(str(value.dtype), value.shape) for name, value in self.tensors.items()}

    def blocks(self) -> Iterator[tuple[str, Array]]:
        """Yield each tensor's name, and all of it."""
        for name, value in self.tensors.items():
            if value.size:
                yield name, np.reshape(value, [-1])

    def read(self, name: str, begin: int, end: int) -> Array:
        """Return elements `begin` to `end` of a flattened tensor. Shape: [end - begin]."""
        return np.reshape(self.tensors[name], [-1])[begin:end]


class StateMismatchError(FinalError, RuntimeError):
    """A saved state that does not fit the program's model or optimizer."""


def whole(state: StateBlocks | StateParts) -> State:
    """Return a state with all tensors in memory."""
    if isinstance(state, State):
        return state
    entries = state.entries
    if not isinstance(state, StateBlocks):
        tensors = {name: state.read(name, 0, entry.size).reshape(entry.shape) for name, entry in entries.items()}
        return State.of(state.step, tensors)
    found = {name: np.empty(entry.size, entry.dtype) for name, entry in entries.items()}
    written = dict.fromkeys(found, 0)
    for name, block in state.blocks():
        begin = written[name]
        found[name][begin : begin + block.size] = block
        written[name] += block.size
    return State.of(state.step, {name: found[name].reshape(entry.shape) for name, entry in entries.items()})
