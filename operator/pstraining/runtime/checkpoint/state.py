"""The state of training by logical names."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from pstraining.runtime.errors import FinalError
from pstraining.runtime.model.partition import Array

_ENDED: Final = "ended_early"


class SupersededError(RuntimeError):
    """A newer chief leads the job; this one must end."""


class StateLostError(Exception):
    """No worker is there any more to bring the newest dense parameters to the servers."""


@dataclass(frozen=True)
class State:
    """Everything that training needs to go on, by logical names that no number of servers shows in."""

    step: int
    variables: dict[str, Array]
    """The model's variables by path."""
    slots: dict[str, dict[str, Array]]
    """The optimizer's tensors by slot, then by the path of their variable."""
    scalars: dict[str, Array]
    """The optimizer's own counters, and what is no server's."""

    @property
    def ended_early(self) -> bool:
        """Whether training was ended with this state before its time, so that no run trains it on."""
        return _ENDED in self.scalars

    def ended(self) -> "State":
        """The same, as the last one of a training that was ended before its time."""
        return replace(self, scalars={**self.scalars, _ENDED: np.asarray(1, np.int64)})


class StateMismatchError(FinalError, RuntimeError):
    """A saved state that does not fit the program's model or optimizer."""
