"""Parsing and printing of durations, counts, sizes and rates."""

import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Final

from pstraining.core.observe import parse_time

_UNITS: Final = {
    **{"ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3},
    **{"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0},
}
"""Seconds per unit: Go's units, as kubectl accepts them, and days. Unicode has two signs for micro."""
LONGEST: Final = (2**63 - 1) // 10**9
"""Maximum of a duration in seconds, as of Go's: 292 years."""
_PART = re.compile(rf"(\d+\.?\d*|\.\d+)({'|'.join(_UNITS)})")
_DURATION = re.compile(rf"\+?(?:{_PART.pattern})+")
_PREFIXES: Final = ("", "k", "M", "G", "T")


def seconds(text: str) -> float:
    """Parse a duration as kubectl does, such as 30s, 5m, 1h30m, 1.5h or 0, into seconds. Days are also allowed.

    Raises:
        ValueError: the text is not a duration, or it is longer than LONGEST.
    """
    if text.removeprefix("+") == "0":
        return 0.0
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration such as 30s, 5m, 1h30m or 2d")
    return bounded(sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text)), text)


def bounded(length: float, text: str) -> float:
    """Return a length in seconds if it is at most LONGEST.

    Raises:
        ValueError: it is longer.
    """
    if length > LONGEST:
        raise ValueError(f"{text!r} is longer than {LONGEST} s")
    return length


def request_seconds(text: str) -> float:
    """Parse the value of kubectl's --request-timeout, a duration or a whole number of seconds, into seconds.

    Raises:
        ValueError: the text is neither.
    """
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return seconds(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a whole number of seconds nor a duration such as 5s or 1m") from None


def duration(length: float) -> str:
    """Format seconds with at most two units: 12s, 3m20s, 5h, 2d3h."""
    whole = max(0, int(length))
    for large, small, size, part in (("d", "h", 86400, 3600), ("h", "m", 3600, 60), ("m", "s", 60, 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size}{large}" + (f"{rest}{small}" if rest else "")
    return f"{whole}s"


def since(stamp: str | None, now: datetime) -> str:
    """Format the time since a Kubernetes timestamp; empty without one."""
    moment = parse_time(stamp)
    return "" if moment is None else duration((now - moment).total_seconds())


def several(count: int, what: str) -> str:
    """Format a count with its noun, in the plural unless it is 1."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def devices(numbers: Mapping[str, int] | None) -> str:
    """Format devices by type: 2 GPUs. TensorFlow has one CPU device for all cores, which is shown without a number."""
    found = sorted((numbers or {}).items())
    return ", ".join(kind if kind == "CPU" and number == 1 else several(number, kind) for kind, number in found)


def plain(value: float, digits: int) -> str:
    """Format a number to some digits, or to whole numbers if it is large, without an exponent: 204800, 0.0819."""
    return f"{value:.0f}" if value >= 10**digits else f"{Decimal(f'{value:.{digits}g}'):f}"


def rate(value: float | None) -> str:
    """Format a rate per second to three digits; a dash if it is unknown."""
    return "-" if value is None else plain(value, 3)


def bytes_rate(value: float | None) -> str:
    """Format bytes per second with a decimal prefix."""
    if value is None:
        return "-"
    for prefix in _PREFIXES[:-1]:
        if value < 999.5:
            return f"{rate(value)} {prefix}B/s"
        value /= 1000
    return f"{rate(value)} {_PREFIXES[-1]}B/s"


_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKMGBT]?)")
_TIMES: Final = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}


def count(text: str) -> int:
    """Parse a positive number such as 138000000, 25.6M or 1.5B (B is a billion, as G).

    Raises:
        ValueError: the text is not such a number, or 0.
    """
    found = _COUNT.fullmatch(text)
    length = float(found[1]) * _TIMES[found[2]] if found else 0.0
    if not isfinite(length) or not (number := round(length)):
        raise ValueError(f"{text!r} is not a number such as 138000000, 25.6M or 1.5B")
    return number


def size(length: float) -> str:
    """Format a number of bytes with a decimal prefix."""
    return bytes_rate(length).removesuffix("/s")
