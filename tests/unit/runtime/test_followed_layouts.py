"""Which jobs follow another layout of the servers without a restart."""

from typing import Any

import pytest

from pstraining.api.training import Codec, Mode
from pstraining.runtime.config.settings import CompressionSettings, TrainingSettings


@pytest.mark.parametrize(
    ("training", "follows"),
    [
        ({"mode": Mode.SYNC}, True),
        ({"mode": Mode.SYNC, "ordered_sums": True, "accumulation_steps": 4}, True),
        ({"mode": Mode.SYNC, "local_steps": 4}, True),
        ({"mode": Mode.SYNC, "compression": CompressionSettings(push=Codec.INT8)}, True),
        ({"mode": Mode.SYNC, "compression": CompressionSettings(pull=Codec.BF16)}, True),
        ({"mode": Mode.ASYNC}, True),
        ({"mode": Mode.ASYNC, "overlap_communication": True, "max_staleness": 2}, True),
        ({"mode": Mode.ASYNC, "local_steps": 4}, True),
        ({"mode": Mode.ASYNC, "compression": CompressionSettings(push=Codec.INT8)}, True),
        ({"mode": Mode.HYBRID}, False),
    ],
)
def test_workers_that_hold_state_of_their_layout_wait_for_a_restart(training: dict[str, Any], follows: bool) -> None:
    """In Hybrid, workers hold the dense parameters in the segments of one layout."""
    assert (not TrainingSettings(steps=1, **training).layout_obstacle) is follows
