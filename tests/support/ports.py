"""TCP ports for a test's processes, reserved until they listen."""

from contextlib import ExitStack
from typing import Final

from pstraining.runtime.local import hold_port

_HELD: Final = ExitStack()


def free_port() -> int:
    """A port to listen on, with SO_REUSEADDR; the kernel reserves it while this process lives."""
    return hold_port(_HELD)


def free_neighbours() -> int:
    """The first of two such ports, side by side: TensorFlow's and the launcher's status port."""
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
