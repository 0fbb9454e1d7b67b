"""Copies of Kubernetes objects."""

import pickle
from typing import TypeVar

T = TypeVar("T")


def copied(value: T) -> T:
    """Return a deep copy: tests copy objects of plain data all the time, and pickle is five times as fast as copy."""
    made: T = pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    return made
