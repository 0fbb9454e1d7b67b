"""The cost of a lost parameter server: with a hot standby, and with a restart from a checkpoint.

The same job runs in alternation. The server's process is killed and restarts at once, which is the best case: no pod is
created, no node chosen and no image pulled. By Young's rule a job of two servers saves every ten minutes; here the
server is killed halfway between two checkpoints that are closer.
"""

import tempfile
from dataclasses import replace
from typing import Final

from bench.training.figures import Taken
from bench.training.measurement import Effort, Measurement
from bench.training.network import Links
from bench.training.runs import Load, Loss, running
from bench.training.volume import SYNC

EVERY: Final = 30
"""Seconds from one checkpoint to the next."""
COMPUTE: Final = 0.05
"""Duration of a gradient's computation in seconds, which leaves CPU time beside updates."""
RATIO: Final = f"a server is lost: seconds lost, hot standby / halfway between checkpoints {EVERY} s apart"
HOT: Final = "a server is lost: seconds lost, hot standby"
AGAIN: Final = f"a server is lost: seconds lost, halfway between checkpoints {EVERY} s apart"
STOOD: Final = "a server is lost: of which nobody trains, without a standby"
LOAD: Final = Load(
    "medium", ps=2, workers=2, training={**SYNC, "minShardBytes": 0}, environment={"BENCH_DELAY": str(COMPUTE)}
)


def take(effort: Effort) -> Taken:
    """Measure a loss of each kind in every round."""
    rounds = [(with_standby(effort), without(effort)) for _ in range(effort.rounds)]
    return {
        RATIO: [hot.again / plain.again for hot, plain in rounds],
        HOT: [hot.again for hot, _ in rounds],
        AGAIN: [plain.again for _, plain in rounds],
        STOOD: [plain.stood for _, plain in rounds],
    }


def with_standby(effort: Effort) -> Loss:
    """Kill the primary of a shard, and measure the loss."""
    with running(replace(LOAD, standbys=1), effort) as job:
        return job.lose("ps-0")


def without(effort: Effort) -> Loss:
    """Kill the only server of a shard some seconds after a checkpoint, and measure the loss."""
    every = 2 if effort.small else EVERY
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = {"path": folder, "intervalSeconds": every}
        with running(replace(LOAD, checkpoint=checkpoint), effort) as job:
            return job.lose("ps-0", after="checkpoint", seconds=every / 2)


BACK: Final = "a server of half of a table of 512 MB is lost and comes back, 1 Gbit/s: seconds that nobody trains"
COPIED: Final = f"{BACK}, state copied between two steps"
LEARNED: Final = f"{BACK}, state learned"
BACK_RATIO: Final = f"{BACK}, learned / copied"


def take_back(effort: Effort) -> Taken:
    """Measure state transfer as a whole between two steps, and in chunks beside training, in every round."""
    rounds = [(heal("0", effort), heal(str(1 << 60), effort)) for _ in range(effort.rounds)]
    return {
        BACK_RATIO: [learned / copied for learned, copied in rounds],
        LEARNED: [learned for learned, _ in rounds],
        COPIED: [copied for _, copied in rounds],
    }


def heal(enough: str, effort: Effort) -> float:
    """Kill the primary of a shard with two slots per parameter, and measure until it is in sync again."""
    environment = {"BENCH_ENOUGH": enough}
    load = Load("rows", ps=2, standbys=1, workers=2, training={**SYNC, "minShardBytes": 0}, environment=environment)
    with Links(load.tasks, "1gbit") as links, running(load, effort, links) as job:
        return job.heal("ps-0")


MEASUREMENTS: Final = (
    Measurement("a server is lost", (RATIO, HOT, AGAIN, STOOD), take),
    Measurement("a server comes back", (BACK_RATIO, LEARNED, COPIED), take_back),
)
