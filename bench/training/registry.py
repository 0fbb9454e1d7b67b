"""All measurements. A new module adds its `MEASUREMENTS` here, and its figures to thresholds.toml."""

from typing import Final

from bench.training import checkpoints, replication, resharding, shaped, speed, starting, stragglers, takeover, volume
from bench.training.measurement import Measurement

MEASUREMENTS: Final[tuple[Measurement, ...]] = (
    *volume.MEASUREMENTS,
    *starting.MEASUREMENTS,
    *stragglers.MEASUREMENTS,
    *speed.MEASUREMENTS,
    *shaped.MEASUREMENTS,
    *replication.MEASUREMENTS,
    *takeover.MEASUREMENTS,
    *resharding.MEASUREMENTS,
    *checkpoints.MEASUREMENTS,
)
