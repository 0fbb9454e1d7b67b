"""A measurement: its name, its figures, and the function that measures."""

from collections.abc import Callable
from dataclasses import dataclass

from bench.training.figures import Taken


@dataclass(frozen=True)
class Effort:
    """The extent of the measurements."""

    seconds: float = 8.0
    """Seconds for which each job is watched."""
    rounds: int = 3
    """Number of rounds, in which compared jobs alternate."""
    small: bool = False
    """Whether models are small and workers few, for a trial of the benchmark. The figures are then meaningless."""

    def model(self, name: str) -> str:
        """Return the model to train instead of `name`, which is small in a trial."""
        return "tiny" if self.small and name in ("medium", "dense", "big", "uneven") else name


@dataclass(frozen=True)
class Measurement:
    """One measurement."""

    name: str
    figures: tuple[str, ...]
    """Names in thresholds.toml of all figures that each run yields."""
    take: Callable[[Effort], Taken]
