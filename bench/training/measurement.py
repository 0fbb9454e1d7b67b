"""What can be measured: a name, the figures that come of it, and how they are taken."""

from collections.abc import Callable
from dataclasses import dataclass

from bench.training.figures import Taken


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    seconds: float = 8.0
    """For which each job is watched."""
    rounds: int = 3
    """Of jobs that are compared, in turn."""
    small: bool = False
    """With small models and few workers: to try the bench itself. The figures then mean nothing."""

    def model(self, name: str) -> str:
        """The model to train in the place of `name`."""
        return "tiny" if self.small and name in ("medium", "dense", "big", "uneven") else name


@dataclass(frozen=True)
class Measurement:
    """One thing to measure."""

    name: str
    figures: tuple[str, ...]
    """Names of thresholds.toml that it yields, every time."""
    take: Callable[[Effort], Taken]
