"""Whether one shard carries more than the others: by the bytes that workers exchange with its servers.

Dense parameters are cut so that every shard has as many bytes. Rows of an embedding table are not wanted equally often:
row i is on shard i modulo their number, and rows that are wanted most may share one.

Pure; importing it imports no TensorFlow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TOO_MUCH: Final = 1.5
"""Times the mean of all shards: from then on one is told of, as all workers wait for it."""
LEAST_RATE: Final = 1e6
"""Bytes a second, of a shard on average, below which it does not matter."""
LOOKS: Final = 3
"""So often in a row, before it is told."""


@dataclass(frozen=True)
class Load:
    """The heaviest shard."""

    shard: int
    times: float
    """What it carries, as a multiple of the mean of all shards."""


def heaviest(moved: Sequence[float]) -> Load:
    """Of bytes by shard; if none were moved, all carry as much."""
    mean = sum(moved) / len(moved)
    most = max(moved)
    return Load(list(moved).index(most), most / mean if mean else 1.0)


class SkewDetector:
    """Detects a shard that is overloaded several times in a row."""

    def __init__(self) -> None:
        self._shard, self._looks = -1, 0

    def observe(self, moved: Sequence[float], seconds: float) -> Load | None:
        """Return a shard to report now; once, until the load is even again or another shard is overloaded.

        Args:
            moved: bytes of every shard since the last call.
            seconds: since then.
        """
        load = heaviest(moved)
        if load.times < TOO_MUCH or sum(moved) < LEAST_RATE * seconds * len(moved):
            self._shard, self._looks = -1, 0
            return None
        self._looks = self._looks + 1 if load.shard == self._shard else 1
        self._shard = load.shard
        return load if self._looks == LOOKS else None
