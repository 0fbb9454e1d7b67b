"""Reports of evaluations that take long: nothing else shows a dataset that never ends. Imports no TensorFlow."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pstraining.runtime.telemetry.events import event

LONG_SECONDS: Final = 60.0
"""Seconds after which an evaluation is reported; later reports follow when the time has doubled."""


@contextmanager
def noting_long(argument: str, seconds: float = LONG_SECONDS) -> Iterator[None]:
    """Report that the block continues, in a thread.

    Args:
        argument: the `Trainer`'s argument whose dataset is evaluated.
        seconds: seconds until the first report.
    """
    ended, started = threading.Event(), time.monotonic()

    def note() -> None:
        wait = seconds
        while not ended.wait(wait):
            wait = time.monotonic() - started
            event("evaluation_continues", argument=argument, seconds=round(wait, 1))

    threading.Thread(target=note, name="pstraining-long", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
