"""The optimizers of a saved state by name: a restore must not give an optimizer the slots of another one.

Slots of different optimizers may have one name. The `momentum` of Adam is a mean of gradients, that of SGD a sum of
steps against them, and that of ScheduleFreeAdamW a copy of the parameters.
"""

import json
from collections.abc import Mapping
from typing import Final

import numpy as np

from pstraining.runtime.checkpoint.state import Entry, StateMismatchError, StateParts
from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import KerasOptimizer

NAME: Final = "scalar/optimizers"
"""Name of the tensor, a text: for each class the paths of the variables and tables that it trains, as JSON."""
_SAME_SLOTS: Final = {"AdamW": "Adam"}
"""Classes whose slots are those of another class."""
_OF_ALL: Final = ("average", "gradient_accumulator")
"""Slots of Keras's base class, which have one meaning in all optimizers."""


def described(trained_by: Mapping[str, KerasOptimizer]) -> Array:
    """Return the tensor for the optimizer of each variable and table, by path."""
    found: dict[str, list[str]] = {}
    for path, optimizer in trained_by.items():
        found.setdefault(type(optimizer).__name__, []).append(path)
    return np.asarray(json.dumps(found).encode())


def check(state: StateParts, trained_by: Mapping[str, KerasOptimizer], own: Mapping[str, Entry]) -> None:
    """Refuse slots that another optimizer has saved. A state of an earlier version does not name its optimizers.

    Args:
        state: the saved state.
        trained_by: the program's optimizer of each variable and table, by path.
        own: the tensors of the program's state by name.

    Raises:
        StateMismatchError: names the first variable, both optimizers, and the way out.
    """
    if NAME not in state.entries:
        return
    paths: Mapping[str, list[str]] = json.loads(state.read(NAME, 0, 1)[0])
    saved_by = {path: name for name, trained in paths.items() for path in trained}
    for entry in own:
        kind, _, rest = entry.partition("/")
        slot, _, path = rest.partition("/")
        if kind != "slot" or slot in _OF_ALL or entry not in state.entries or path not in trained_by:
            continue
        saved, now = saved_by.get(path), type(trained_by[path]).__name__
        if saved is not None and _SAME_SLOTS.get(saved, saved) != _SAME_SLOTS.get(now, now):
            raise StateMismatchError(
                f"the checkpoint has the {slot} that {saved} has computed for {path}, and the program trains it by "
                f"{now}: return {saved} as before, or give another checkpoint.path and load the model's weights in "
                "the model function"
            )
