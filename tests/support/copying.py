"""Copies of Kubernetes objects."""

import marshal
import pickle
from typing import Any, TypeVar

T = TypeVar("T")


def copied(value: T) -> T:
    """Return a deep copy of plain data, quickly, because tests copy such objects very often.

    pickle is five times as fast as copy, and marshal three times as fast as pickle; but marshal knows no enumerations.
    """
    data: Any = value
    try:
        made: T = marshal.loads(marshal.dumps(data))
    except ValueError:
        made = pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    return made
