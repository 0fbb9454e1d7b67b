"""The state of training by logical names, in memory or in blocks.

A tensor's name starts with its kind: `model/<path>`, `slot/<slot>/<path>` or `scalar/<name>`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol, runtime_checkable

import numpy as np

from pstraining.runtime.errors import FinalError
from pstraining.runtime.model.partition import Array

ENDED: Final = "scalar/ended_early"
"""Name of a scalar that marks the final state of a training that ended before its last step."""


class SupersededError(RuntimeError):
    """A newer chief leads the job; this one must end."""


class StateLostError(Exception):
    """The newest dense parameters are lost: no worker that holds them is left to push them to the servers."""


class Entry(NamedTuple):
    """Dtype and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class SavePlan(NamedTuple):
    """The relation of a copy of the servers' state to the copies before and after it."""

    base: int | None = None
    """The copy since which only the changed rows of tables are needed; None: the copy is complete."""
    recorded: bool = False
    """Whether a later copy may have this one as its base."""


FULL: Final = SavePlan()
"""A complete copy that no other continues."""


class StateEntries(Protocol):
    """The step and the tensors of a state."""

    @property
    def step(self) -> int:
        """The global step."""
        ...

    @property
    def ended_early(self) -> bool:
        """Whether training ended with this state before its last step; no later run trains this state further."""
        ...

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The tensors by name."""
        ...


@runtime_checkable
class StateBlocks(StateEntries, Protocol):
    """A state that can be written in blocks, in the order of its entries."""

    def blocks(self) -> Iterator[tuple[str, Array]]:
        """Yield names and flattened blocks of tensors: all blocks of one tensor in order, then those of the next."""
        ...


@runtime_checkable
class StateOfServers(StateEntries, Protocol):
    """A state that was copied from the servers."""

    @property
    def updates(self) -> tuple[int, ...]:
        """The number of updates that each server has applied."""
        ...


class StateParts(StateEntries, Protocol):
    """A state that can be read in ranges of elements."""

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
    """The optimizer's counters, and other values that no server holds."""

    @classmethod
    def of(cls, step: int, tensors: Mapping[str, Array]) -> "State":
        """Return the state with these tensors, given by name."""
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
        """Whether training ended with this state before its last step; no later run trains this state further."""
        return ENDED.partition("/")[2] in self.scalars

    def ended(self) -> "State":
        """Return a copy that is marked as the final state of a training that ended before its last step."""
        return replace(self, scalars={**self.scalars, ENDED.partition("/")[2]: np.asarray(1, np.int64)})

    @property
    def tensors(self) -> dict[str, Array]:
        """All tensors by name."""
        arrays = {f"model/{path}": value for path, value in self.variables.items()}
        for slot, values in self.slots.items():
            arrays |= {f"slot/{slot}/{path}": value for path, value in values.items()}
        return arrays | {f"scalar/{name}": np.asarray(value) for name, value in self.scalars.items()}

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The tensors by name, in the order of `blocks`."""
        return {name: Entry(str(value.dtype), value.shape) for name, value in self.tensors.items()}

    def blocks(self) -> Iterator[tuple[str, Array]]:
        """Yield each tensor's name and the whole flattened tensor; tensors without elements are left out."""
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
