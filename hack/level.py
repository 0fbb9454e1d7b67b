"""How much the tests try: one environment variable, read here and nowhere else."""

from collections.abc import Mapping
from enum import StrEnum

VARIABLE = "PSTRAINING_TESTS"


class Level(StrEnum):
    """How much the tests try; each level includes the ones before it."""

    QUICK = "quick"
    """`make test`: every mechanism once."""
    ALL = "all"
    """`make test-all`: also what `make test` gives up."""
    SOAK = "soak"
    """`make soak`: hours."""


class LevelError(ValueError):
    """The environment names a level that does not exist."""


def read_level(environment: Mapping[str, str]) -> Level:
    """The level that the environment names; quick if it names none.

    Raises:
        LevelError: there is no such level.
    """
    given = environment.get(VARIABLE) or Level.QUICK
    try:
        return Level(given)
    except ValueError:
        raise LevelError(f"{VARIABLE} must be one of {', '.join(Level)}, not {given!r}") from None
