"""Numbers in labels and annotations, which any client may write."""

from typing import Final

_DIGITS: Final = 18
"""Maximum digits of the operator's numbers. Python refuses to parse thousands of digits."""


def number(text: object) -> int | None:
    """Parse a natural number in ASCII digits; None for any other value."""
    is_number = isinstance(text, str) and len(text) <= _DIGITS and text.isascii() and text.isdecimal()
    return int(str(text)) if is_number else None
