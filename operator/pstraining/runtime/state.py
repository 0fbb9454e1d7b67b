"""The state of training by logical names."""

from dataclasses import dataclass

from pstraining.runtime.layout import Array


@dataclass(frozen=True)
class State:
    """Everything that training needs to go on, by logical names that no number of servers shows in."""

    step: int
    variables: dict[str, Array]
    """The model's variables by path."""
    slots: dict[str, dict[str, Array]]
    """The optimizer's tensors by slot, then by the path of their variable."""
    scalars: dict[str, Array]
    """The optimizer's own counters."""


class StateMismatchError(RuntimeError):
    """A saved state that does not fit the program's model or optimizer."""
