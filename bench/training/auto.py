"""The choices of Auto compression: `python -m bench.training.auto`. Needs root, for a separate network.

A grid of links and models is measured. At each point two synchronous workers train without compression, with Int8 in
both directions, and with Auto. They use one parameter server behind a token bucket on the loopback interface, which
both directions and both workers share. The three ways alternate in slices: other load on the machine affects all three.
Servers and workers run for the whole grid; Auto restarts its exploration at each point.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from bench.training import network
from pstraining.runtime.compression.auto_select import CODED, PLAIN
from tests.support.servers import Rig, connected, warm_up
from tests.support.worker_threads import Crew

WORKERS: Final = 2
BATCH: Final = 8
MODELS: Final = {"0.3 MB": 128, "4.2 MB": 512, "16.8 MB": 1024}
"""Widths of four square matrices of float32."""
LINKS: Final = (100, 400, 1600, 0)
"""Mbit/s; 0: as fast as the interface is."""
WAYS: Final = ("None", "Int8", "Auto")
APART: Final = 0.15
"""Difference relative to the slower way from which Auto's choice must be right."""
ENOUGH: Final = 0.9
"""Share of the faster way's speed that Auto must reach for smaller differences."""


@dataclass(frozen=True)
class Point:
    """The measurements of one link with one model."""

    link: int
    """Mbit/s; 0: unshaped."""
    model: str
    seconds: dict[str, float]
    """Seconds for an update by way; for Auto after its exploration."""
    chosen: int
    looked: int
    """Number of updates of Auto's exploration."""

    @property
    def ratio(self) -> float:
        """Auto's speed as a share of the faster one's."""
        return min(self.seconds["None"], self.seconds["Int8"]) / self.seconds["Auto"]

    @property
    def is_apart(self) -> bool:
        """Whether the two ways differ enough for a right and a wrong choice."""
        return abs(self.seconds["None"] / self.seconds["Int8"] - 1) > APART

    @property
    def is_right(self) -> bool:
        """Whether Auto's choice, or its speed, meets the limit at this point."""
        faster = CODED if self.seconds["Int8"] < self.seconds["None"] else PLAIN
        return self.chosen == faster if self.is_apart else self.ratio >= ENOUGH


def build(width: int) -> Any:
    """Return a model of four square matrices."""
    import keras

    hidden = [keras.layers.Dense(width, activation="relu", use_bias=False) for _ in range(4)]
    return keras.Sequential([keras.Input((width,)), *hidden])


class Trial:
    """One model in the three ways."""

    def __init__(self, client: Any, model: str, *, mode: str = "Sync") -> None:
        import keras
        import tensorflow as tf

        width, drawn = MODELS[model], np.random.default_rng(0)
        self._batch = tuple(tf.constant(drawn.normal(size=(BATCH, width)).astype("float32")) for _ in range(2))
        self._rigs = {}
        for way in WAYS:
            client.container = f"{mode}.{model}.{way}".replace(" ", ".")
            pull = "Bf16" if mode == "Async" and way == "Int8" else way
            rig = Rig(
                client,
                lambda: keras.optimizers.SGD(1e-4),
                ps=1,
                build=lambda: build(width),
                workers=WORKERS,
                loss="mse",
                mode=mode,
                compression={"push": way, "pull": pull},
            )
            rig.start()
            warm_up(rig, [self._batch])
            self._rigs[way] = rig
            self.train(way, 2)

    def train(self, way: str, steps: int) -> float:
        """Train a number of updates; return the seconds of one."""
        rig = self._rigs[way]
        for who in rig.identities:  # these workers sent no heartbeats while the others trained
            rig.store.heartbeat(who.worker, who.incarnation)
        began = time.monotonic()
        Crew(rig, [[self._batch] * steps for _ in range(WORKERS)]).join(600)
        return (time.monotonic() - began) / steps

    def settle(self) -> tuple[int, int]:
        """Let Auto start again on this link; return its choice, and the number of updates before it."""
        from pstraining.runtime.compression.wire_format import FormatSelector

        workers = self._rigs["Auto"].workers
        for number, updates in enumerate(workers):
            updates._selector = FormatSelector(updates._selector._formats, number)
        steps, decides = 0, workers[0]
        while decides._selector._known.exploring:
            self.train("Auto", 3)
            steps += 3
        return decides._selector.current, steps

    def measure(self, link: int, model: str, *, slices: int, seconds: float) -> Point:
        """Measure the three ways on the present link."""
        chosen, looked = self.settle()
        rough = {way: self.train(way, 2) for way in WAYS}
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(slices):
            for way in WAYS:
                found[way].append(self.train(way, max(2, round(seconds / rough[way]))))
        return Point(link, model, {way: median(taken) for way, taken in found.items()}, chosen, looked)


def shape(link: int) -> None:
    """Let a number of Mbit/s through the loopback interface, of this process's own network; 0: all."""
    subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], check=False, capture_output=True)
    if link:
        limits = ["burst", "256kb", "limit", "8mb"]
        subprocess.run(["tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", f"{link}mbit", *limits], check=True)


def table(points: Sequence[Point]) -> str:
    """Return a table in Markdown."""
    rows = ["| link, Mbit/s | model | None, ms | Int8, ms | Auto, ms | chosen | updates to settle | of the faster | |"]
    rows.append("|---|---|---|---|---|---|---|---|---|")
    for point in points:
        taken = [f"{1000 * point.seconds[way]:.1f}" for way in WAYS]
        verdict = "right" if point.is_right else "WRONG"
        row = [str(point.link or "unshaped"), point.model, *taken, "Int8" if point.chosen == CODED else "None"]
        row += [str(point.looked), f"{point.ratio:.2f}", f"{verdict} ({'apart' if point.is_apart else 'close'})"]
        rows.append("| " + " | ".join(row) + " |")
    return "\n".join(rows) + "\n"


def main() -> int:
    """Run the command line; return 1 if Auto misses the limit at a point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--links", type=int, nargs="*", default=list(LINKS))
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--mode", choices=["Sync", "Async"], default="Sync")
    parser.add_argument("--slices", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of one slice")
    parser.add_argument("--out", type=Path, default=Path("docs/project/benchmarks/training-auto.json"))
    parser.add_argument("--go-on", action="store_true", help="keep the points that the file has of other models")
    options = parser.parse_args()
    network.leave()
    points: list[Point] = []
    if options.go_on and options.out.exists():
        kept = (Point(**each) for each in json.loads(options.out.read_text(encoding="utf-8")))
        points = [point for point in kept if point.model not in options.models]
    with connected(1) as client:
        for model in options.models:
            shape(0)
            trial = Trial(client, model, mode=options.mode)
            for link in options.links:
                shape(link)
                points.append(trial.measure(link, model, slices=options.slices, seconds=options.seconds))
                sys.stdout.write(table(points[-1:]).splitlines()[-1] + "\n")
                sys.stdout.flush()
                options.out.write_text(json.dumps([asdict(point) for point in points], indent=1) + "\n")
    sys.stdout.write(table(points))
    return 0 if all(point.is_right for point in points) else 1


if __name__ == "__main__":
    sys.exit(main())
