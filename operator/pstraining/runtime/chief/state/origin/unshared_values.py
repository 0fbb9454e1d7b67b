"""Words, numbers of layers and integer weights in a saved state, by digest: parameters mean nothing with others.

Each program adapts its layers again when it starts. With other data, an index would stand for another word.
"""

import json
from collections.abc import Mapping
from typing import Final

import numpy as np

from pstraining.runtime.checkpoint.state import StateMismatchError, StateParts
from pstraining.runtime.model.own_state import Unshared
from pstraining.runtime.model.partition import Array

NAME: Final = "scalar/unshared"
"""Name of the tensor, a text: `Unshared.digests` as JSON."""


def described(unshared: Unshared) -> Mapping[str, Array]:
    """Return the tensor by name; none for a model without such values."""
    return {NAME: np.asarray(json.dumps(unshared.digests).encode())} if unshared.digests else {}


def check(state: StateParts, unshared: Unshared) -> None:
    """Refuse parameters that were trained with other values. A state of an earlier version does not describe them.

    Args:
        state: the saved state.
        unshared: the program's values.

    Raises:
        StateMismatchError: names the layers or weights, and the way out.
    """
    if NAME not in state.entries:
        return
    if names := unshared.differing(json.loads(state.read(NAME, 0, 1)[0])):
        raise StateMismatchError(
            f"the checkpoint was trained with other words, numbers or integer weights of {', '.join(names)}: adapt "
            "layers to the same data in the same order as before, give new words a place after the others, or give "
            "another checkpoint.path"
        )
