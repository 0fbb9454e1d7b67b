"""Numbers in labels and annotations, which anybody may write."""

from typing import Final

_DIGITS: Final = 18
"""No number of ours is longer; Python refuses to read thousands of digits."""


def number(text: object) -> int | None:
    """Return a natural number that is written in ASCII digits; None for anything else."""
    is_number = isinstance(text, str) and len(text) <= _DIGITS and text.isascii() and text.isdecimal()
    return int(str(text)) if is_number else None
