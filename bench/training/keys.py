"""Steps with rows by any int64 key, beside a table with a fixed number of rows: `python -m bench.training.keys`.

One worker trains on two servers. All variants exist at the same time, and train in turn, one block at a time. The
ratios are of medians over the blocks: of seconds, and of processor time of the worker and the servers.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from bench.usage import usage
from tests.support.servers import Rig, connected

PS: Final = 2
IDS, WIDTH, BATCH, IDS_OF_SAMPLE = 50_000, 128, 8, 256
DRAWN: Final = 64
"""Number of batches that are repeated, each time with other new keys."""
LEAST: Final = 0.7
"""Minimum ratio of steps per second with rows by key to those with a fixed number of rows, without limits on rows."""
LIMITS: Final = {"max_rows": 30_000, "min_count": 2, "expire_after": 1000}
"""Limits of rows, none of which is enough for all keys."""


@dataclass(frozen=True)
class Variant:
    """A table, and the distribution of its keys."""

    input_dim: int | None = None
    new: int = 0
    """Percentage of a batch's keys that are new."""
    limits: dict[str, int] = field(default_factory=dict)

    def build(self) -> Any:
        """Return a model with a table under a mean and a dense layer."""
        import keras

        from pstraining.runtime import Embedding

        ids = keras.Input((IDS_OF_SAMPLE,), dtype="int64")
        rows = keras.layers.GlobalAveragePooling1D()(Embedding(self.input_dim, WIDTH, name="table", **self.limits)(ids))
        return keras.Model(ids, keras.layers.Dense(2)(rows))

    def batches(self) -> Iterator[tuple[Any, Any]]:
        """Yield endless batches of 2,048 ids, of which half are different."""
        import tensorflow as tf

        random = np.random.default_rng(0)
        ids = np.stack([random.choice(IDS, BATCH * IDS_OF_SAMPLE // 2, replace=False) for _ in range(DRAWN)])
        targets, number = random.normal(size=(DRAWN, BATCH, 2)).astype("float32"), 0
        while True:
            own = ids[number % DRAWN]
            number += 1
            own = np.where(own < IDS * self.new // 100, own + number * IDS, own)
            both = np.concatenate([own, own[::-1]]).reshape([BATCH, -1])
            yield tf.constant(both), tf.constant(targets[number % DRAWN])


FIXED: Final = "fixed"
VARIANTS: Final = {
    FIXED: Variant(input_dim=IDS),
    "known keys": Variant(),
    "30 % new keys": Variant(new=30),
    "30 % new keys, with limits": Variant(new=30, limits=LIMITS),
}


@dataclass
class Cost:
    """The cost of a variant's steps, with one number per block: seconds per step."""

    wall: list[float] = field(default_factory=list)
    worker: list[float] = field(default_factory=list)
    """Processor seconds of the worker."""
    servers: list[float] = field(default_factory=list)
    """Processor seconds of all servers."""


class Runner:
    """One variant on the servers, with its own variables."""

    def __init__(self, client: Any, name: str, mode: str) -> None:
        import keras

        variant = VARIANTS[name]
        client.container = f"{mode}.{''.join(c for c in name if c.isalnum())}"
        self._client, self.cost, self._batches = client, Cost(), variant.batches()
        self._rig = Rig(client, lambda: keras.optimizers.Adam(1e-4), ps=PS, build=variant.build, loss="mse", mode=mode)
        self._rig.start()
        self._rig.train(next(self._batches) for _ in range(2 * DRAWN))

    def block(self, steps: int) -> None:
        """Train one block, and record its cost."""
        batches = [next(self._batches) for _ in range(steps)]
        before, began = self._spent(), time.perf_counter()
        self._rig.train(batches)
        wall, after = time.perf_counter() - began, self._spent()
        self.cost.wall.append(wall / steps)
        self.cost.worker.append((after[0] - before[0]) / steps)
        self.cost.servers.append((after[1] - before[1]) / steps)

    def _spent(self) -> tuple[float, float]:
        """Return the processor seconds so far of this process and of the servers."""
        return usage(os.getpid()).cpu, sum(usage(server.pid).cpu for server in self._client.servers)


def measure(mode: str, *, rounds: int, steps: int) -> dict[str, Cost]:
    """Train every variant in turn; return the costs by the variants' names."""
    with connected(PS) as client:
        runners = {name: Runner(client, name, mode) for name in VARIANTS}
        for _ in range(rounds):
            for runner in runners.values():
                runner.block(steps)
        return {name: runner.cost for name, runner in runners.items()}


def ratios(costs: dict[str, Cost]) -> dict[str, dict[str, float]]:
    """Return for each variant by key steps per second and processor time per step, relative to the fixed table."""
    fixed = costs[FIXED]
    return {
        name: {
            "steps/s": median(a / b for a, b in zip(fixed.wall, own.wall, strict=True)),
            "processor time of servers": sum(own.servers) / sum(fixed.servers),
            "processor time of all": sum(own.servers + own.worker) / sum(fixed.servers + fixed.worker),
        }
        for name, own in costs.items()
        if name != FIXED
    }


def main() -> int:
    """Run the command line; return 1 if steps without limits are slower than the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=["Async", "Sync"], action="append")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=32, help="of a block")
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    options = parser.parse_args()
    found, failed = {}, False
    for mode in options.mode or ["Async"]:
        costs = measure(mode, rounds=options.rounds, steps=options.steps)
        for name, cost in costs.items():
            each = {kind: round(1000 * median(values), 3) for kind, values in asdict(cost).items()}
            sys.stdout.write(f"{mode}, {name}: {each} ms a step\n")
        found[mode] = ratios(costs)
        sys.stdout.write(json.dumps(found[mode], indent=1) + "\n")
        failed |= any(own["steps/s"] < LEAST for name, own in found[mode].items() if not VARIANTS[name].limits)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
