"""Which of TensorFlow's errors are answered by reconnecting. Pure: no clock, no TensorFlow."""

from typing import Final

ALWAYS_RETRIED: Final = frozenset({"UNAVAILABLE", "ABORTED"})
"""TensorFlow's errors that only a lost or replaced parameter server explains."""
RETRIED: Final = ALWAYS_RETRIED | {"FAILED_PRECONDITION", "INVALID_ARGUMENT", "CANCELLED", "INTERNAL", "UNKNOWN"}
"""Errors that a lost server also shows itself by, and the program's own mistakes too."""
ATTEMPTS: Final = 5
"""How often in a row, with every server present and unchanged, an ambiguous error is taken for a lost server."""


def is_retried(code: str, attempts: int) -> bool:
    """Whether a failed call is answered by reconnecting, after `attempts` failures in a row without a success."""
    return code in ALWAYS_RETRIED or (code in RETRIED and attempts < ATTEMPTS)
