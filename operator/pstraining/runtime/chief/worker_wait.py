"""The chief's wait for workers that push their dense parameters, in mode Hybrid."""

import time
from collections.abc import Callable, Collection
from typing import Final

from pstraining.runtime.checkpoint.state import StateLostError

GATHER_POLL: Final = 0.01
"""Seconds between reads while workers push their dense parameters."""
ALONE_SECONDS: Final = 10.0
"""Seconds without a worker after which newer dense parameters are considered lost."""


def wait_for_workers(
    check: Callable[[], None], workers_present: Callable[[], Collection[object]]
) -> Callable[[], None]:
    """Return a function that waits for GATHER_POLL seconds.

    Args:
        check: called first; it raises if the wait is over.
        workers_present: returns the workers that can push.

    The function raises:
        StateLostError: no worker was present for ALONE_SECONDS.
    """
    alone_since: list[float] = []

    def wait() -> None:
        check()
        if workers_present():
            alone_since.clear()
        elif not alone_since:
            alone_since.append(time.monotonic())
        elif time.monotonic() - alone_since[0] > ALONE_SECONDS:
            raise StateLostError
        time.sleep(GATHER_POLL)

    return wait
