"""The order of assigned data in a saved state: positions of one order mean other samples in another one.

A program may continue with more files, or blocks of another size. Its trained epochs then stay trained, and the epoch
that was not complete starts again.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from pstraining.runtime.checkpoint.state import StateParts
from pstraining.runtime.chief.state.server_state import ServerState
from pstraining.runtime.data.sources import Order
from pstraining.runtime.model.partition import Array
from pstraining.runtime.telemetry.events import event

NAME: Final = "scalar/data"
"""Name of the tensor, a text: the order of the program's data, see `Order`."""
_NEXT, _HELD = "scalar/ledger/next", "scalar/ledger/held"


def noted(state: ServerState, order: Order | None) -> ServerState:
    """Return a state with the order of the program's data; None: the data is not assigned."""
    return state if order is None else replace(state, extra={**state.extra, NAME: np.asarray(order.text().encode())})


def ledger_of(state: StateParts, order: Order | None) -> Mapping[str, Array]:
    """Return tensors of the ledger that replace the saved ones because the order differs; none if it is the same.

    A state of an earlier version has no order, and its positions are kept.

    Args:
        state: the saved state.
        order: the order of the program's data; None: the data is not assigned.
    """
    if order is None or not {NAME, _NEXT, _HELD} <= state.entries.keys():
        return {}
    saved = Order.of(state.read(NAME, 0, 1)[0].decode())
    if saved == order:
        return {}
    shape = state.entries[_HELD].shape
    held = state.read(_HELD, 0, state.entries[_HELD].size).reshape(shape)
    numbers, following = held[:, 0][held[:, 0] > 0], int(state.read(_NEXT, 0, 1)[0])
    epoch, rest = divmod(min([following, *(numbers - 1).tolist()]), saved.count)
    if rest or len(numbers):
        reason = f"the checkpoint was saved with other data: epoch {epoch} of {saved.text()}, now {order.text()}"
        event("data_begins_anew", epoch=epoch, reason=reason)
    return {_NEXT: np.asarray(epoch * order.count, np.int64), _HELD: np.zeros(shape, np.int64)}
