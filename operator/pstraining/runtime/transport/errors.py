"""TensorFlow's error codes after which the client reconnects. Pure: no clock, no TensorFlow."""

import re
from typing import Final

ALWAYS_RETRIED: Final = frozenset({"UNAVAILABLE", "ABORTED"})
"""Codes that only a lost or replaced parameter server explains."""
RETRIED: Final = ALWAYS_RETRIED | {"FAILED_PRECONDITION", "INVALID_ARGUMENT", "CANCELLED", "INTERNAL", "UNKNOWN"}
"""Codes that a lost server may cause, and a mistake of the program as well."""
ATTEMPTS: Final = 5
"""Number of consecutive ambiguous errors of a function after which it is the program's mistake."""


MISSING_STATE: Final = re.compile(r"Resource \S+ does not exist")
"""Message of TensorFlow's NOT_FOUND if a server lacks a variable: it was replaced, or its layout is over."""


def name_of(code: str, message: str) -> str:
    """Return the name of an error: operations name a variable that a server lacks in two ways."""
    return "FAILED_PRECONDITION" if code == "NOT_FOUND" and MISSING_STATE.search(message) else code


def is_retried(code: str, attempts: int) -> bool:
    """Return whether the client reconnects after a failed call, the last of `attempts` consecutive failures."""
    return code in ALWAYS_RETRIED or (code in RETRIED and attempts < ATTEMPTS)
