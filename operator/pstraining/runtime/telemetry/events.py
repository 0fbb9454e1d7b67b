"""Lines that a task prints while it runs: JSON for machines, text for people. Imports no TensorFlow."""

import json
import math
import sys
import threading
import time
from collections.abc import Mapping
from typing import Final

ERASE: Final = "\r\x1b[K"
_lock = threading.Lock()
_shown = threading.Event()
"""Set while a terminal's last line is a progress line, which the next output replaces."""


def event(name: str, /, **fields: object) -> None:
    """Print one JSON line, with the time in seconds since 1970 (UTC) and on the machine's monotonic clock.

    Fields may have any name, such as that of a metric; the event's own fields win.
    """
    times = {"time": round(time.time(), 3), "monotonic": round(time.monotonic(), 3)}
    _print(as_json({"event": name} | fields | times | {"event": name}))


def parsed(line: str) -> dict[str, object] | None:
    """Return the event in a line of output; None for other lines, which may begin like one."""
    try:
        found = json.loads(line) if line.startswith("{") else None
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None


def as_json(fields: Mapping[str, object]) -> str:
    """Return fields as JSON; numbers that are not finite, which JSON does not have, are null."""
    return json.dumps(
        {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in fields.items()}
    )


def say(text: str) -> None:
    """Print one line for people."""
    _print(text)


def overwrite(text: str) -> None:
    """Print a terminal's progress line over the former one; the next output replaces it."""
    with _lock:
        sys.stdout.write(f"{ERASE}{text}")
        sys.stdout.flush()
        _shown.set()


def _print(text: str) -> None:
    with _lock:  # one write a line: threads and processes share the stream
        begin = ERASE if _shown.is_set() else ""
        _shown.clear()
        sys.stdout.write(f"{begin}{text}\n")
        sys.stdout.flush()
