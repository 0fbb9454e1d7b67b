"""Which workers follow another layout of the servers without a restart."""

from typing import Any

import pytest

from pstraining.api.training import Codec, Mode
from pstraining.runtime.config.settings import CompressionSettings, TrainingSettings
from pstraining.runtime.worker.assignments import follows_layouts


@pytest.mark.parametrize(
    ("training", "has_keys", "follows"),
    [
        ({"mode": Mode.SYNC}, False, True),
        ({"mode": Mode.SYNC, "ordered_sums": True, "accumulation_steps": 4}, False, True),
        ({"mode": Mode.SYNC, "local_steps": 4}, False, True),
        ({"mode": Mode.SYNC, "compression": CompressionSettings(push=Codec.INT8)}, False, True),
        ({"mode": Mode.SYNC, "compression": CompressionSettings(pull=Codec.BF16)}, False, True),
        ({"mode": Mode.ASYNC}, False, True),
        ({"mode": Mode.ASYNC, "overlap_communication": True, "max_staleness": 2}, False, True),
        ({"mode": Mode.ASYNC, "local_steps": 4}, False, True),
        ({"mode": Mode.ASYNC, "compression": CompressionSettings(push=Codec.INT8)}, False, True),
        ({"mode": Mode.HYBRID}, False, False),
        ({"mode": Mode.SYNC}, True, False),
    ],
)
def test_a_worker_that_holds_state_of_its_layout_waits_for_its_restart(
    training: dict[str, Any], has_keys: bool, follows: bool
) -> None:
    """In Hybrid, workers hold the dense parameters in the segments of one layout."""
    assert follows_layouts(TrainingSettings(steps=1, **training), has_keys=has_keys) is follows
