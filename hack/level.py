"""The level of the tests, from one environment variable that only this module reads."""

from collections.abc import Mapping
from enum import StrEnum

VARIABLE = "PSTRAINING_TESTS"


class Level(StrEnum):
    """A level of the tests, which includes the levels before it."""

    QUICK = "quick"
    """`make test`: every mechanism once."""
    ALL = "all"
    """`make test-all`: also the tests that `make test` leaves out."""
    SOAK = "soak"
    """`make soak`: also repetitions for hours."""


class LevelError(ValueError):
    """The environment names a level that does not exist."""


def read_level(environment: Mapping[str, str]) -> Level:
    """Return the level that the environment names; QUICK without one.

    Raises:
        LevelError: the environment names an unknown level.
    """
    given = environment.get(VARIABLE) or Level.QUICK
    try:
        return Level(given)
    except ValueError:
        raise LevelError(f"{VARIABLE} must be one of {', '.join(Level)}, not {given!r}") from None
