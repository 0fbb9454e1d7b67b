"""The standstill when a job gets a third parameter server: live with hot standbys, and by a stop, a save and a restore.

Both ways alternate on the same machine. The second way is measured at its best: no pod is deleted or created, its
processes start at once, and only the seconds of the save, and from the start to the first step, count.
"""

import tempfile
import time
from dataclasses import replace
from typing import Final

from bench.training.figures import Taken
from bench.training.measurement import Effort, Measurement
from bench.training.runs import Load, running
from bench.training.takeover import LOAD
from tests.support.elastic_job import ElasticJob

NAME: Final = "another number of servers: seconds without a step"
RATIO: Final = f"{NAME}, stop, save and restore / live"
LIVE: Final = f"{NAME}, live"
AGAIN: Final = f"{NAME}, stop, save and restore"
SHARDS: Final = 3


def take(effort: Effort) -> Taken:
    """Measure a change of each kind in every round."""
    rounds = [(live(effort), again(effort)) for _ in range(effort.rounds)]
    return {
        RATIO: [restored / changed for changed, restored in rounds],
        LIVE: [changed for changed, _ in rounds],
        AGAIN: [restored for _, restored in rounds],
    }


def live(effort: Effort) -> float:
    """Change the number of shards during training; return the longest time in seconds without a step."""
    with running(replace(LOAD, standbys=1), effort, kind=ElasticJob) as job:
        return job.change(SHARDS)


def again(effort: Effort) -> float:
    """Stop a job, which saves, and resume it with more servers; return the seconds without a step."""
    with tempfile.TemporaryDirectory() as folder:
        load: Load = replace(LOAD, checkpoint={"path": folder, "intervalSeconds": 3600})
        with running(load, effort) as job:
            saved = job.stop_chief()
        began = time.monotonic()
        with running(replace(load, ps=SHARDS), effort) as job:
            return saved + job.first_report() - began


MEASUREMENTS: Final = (Measurement("another number of servers", (RATIO, LIVE, AGAIN), take),)
