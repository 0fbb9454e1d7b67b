"""Detects a shard with more load than the others, by the bytes that workers exchange with its servers.

Dense parameters are partitioned into shards of equal bytes. Rows of an embedding table are not used equally often: row
i is on shard i modulo the number of shards, and the most used rows may be on one shard.

Pure; importing it imports no TensorFlow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TOO_MUCH: Final = 1.5
"""Multiple of the mean load from which a shard is reported, because all workers wait for that shard."""
LEAST_RATE: Final = 1e6
"""Mean bytes per second and shard below which skew is not reported."""
LOOKS: Final = 3
"""Consecutive observations before a report."""


@dataclass(frozen=True)
class Load:
    """The heaviest shard."""

    shard: int
    times: float
    """The shard's load as a multiple of the mean of all shards."""


def heaviest(moved: Sequence[float]) -> Load:
    """Return the heaviest shard from the bytes of each shard; without traffic, the first with multiple 1."""
    mean = sum(moved) / len(moved)
    most = max(moved)
    return Load(list(moved).index(most), most / mean if mean else 1.0)


class SkewDetector:
    """Detects a shard that is overloaded several times in a row."""

    def __init__(self) -> None:
        self._shard, self._looks = -1, 0

    def observe(self, moved: Sequence[float], seconds: float) -> Load | None:
        """Return a shard to report now. It is reported once until the load is even or another shard is overloaded.

        Args:
            moved: bytes of every shard since the last call.
            seconds: seconds since the last call.
        """
        load = heaviest(moved)
        if load.times < TOO_MUCH or sum(moved) < LEAST_RATE * seconds * len(moved):
            self._shard, self._looks = -1, 0
            return None
        self._looks = self._looks + 1 if load.shard == self._shard else 1
        self._shard = load.shard
        return load if self._looks == LOOKS else None
