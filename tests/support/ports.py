"""TCP ports for a test's processes, reserved until they listen."""

from contextlib import ExitStack
from typing import Final

from pstraining.runtime.local import hold_port

_HELD: Final = ExitStack()


def free_port() -> int:
    """Return a free port for a socket with SO_REUSEADDR; the kernel reserves it while this process runs."""
    return hold_port(_HELD)


def free_neighbours() -> int:
    """Return the first of two adjacent free ports, for TensorFlow and for the launcher's status."""
    while True:
        first = ExitStack()
        port = hold_port(first)
        try:
            hold_port(first, port + 1)
        except (OSError, OverflowError):
            first.close()
            continue
        _HELD.push(first)
        return port
