"""Training on a GPU beside plain Keras on the same card: `python -m bench.training.gpu`.

One worker and parameter servers on this host train in mode Async, in each of several ways. `fit` trains the same model
with the same batches. They run in turn, and the median of the rounds' ratios of steps per second counts. The share of
transfers is measured alone: the time of one copy of the parameters to the GPU and one of the gradient back, over the
time of a step.

`--cpu` runs tiny models on the CPU instead: that shows that the program works, and measures nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from pstraining.runtime.local import LocalJob

PROGRAM: Final = "bench.training.gpu_program"
BATCH: Final = {"resnet": 64, "transformer": 32}
LEAST: Final = 0.9
"""Minimum ratio of steps per second of the runtime to those of `fit`, in the fastest way with one server."""
OVERLAP: Final = {"mode": "Async", "overlapCommunication": True}
BF16: Final = {**OVERLAP, "compression": {"push": "Bf16", "pull": "Bf16"}}
WAYS: Final[dict[str, tuple[int, dict[str, Any]]]] = {
    "Async": (1, {"mode": "Async"}),
    "overlapped": (1, OVERLAP),
    "overlapped, Bf16": (1, BF16),
    "overlapped, 4 servers": (4, OVERLAP),
    "overlapped, Bf16, 4 servers": (4, BF16),
}
"""The number of parameter servers and the settings of training, by name."""
NO_GPU: Final = (
    "bench.training.gpu measures on a GPU, and TensorFlow sees none on this machine. Run it where "
    "`tf.config.list_physical_devices('GPU')` names one, or add --cpu to see that the program works."
)


@dataclass(frozen=True)
class Figures:
    """The measurements of a model."""

    fit: tuple[float, ...]
    """Steps per second of plain Keras, by round."""
    runtime: Mapping[str, tuple[float, ...]]
    """Steps per second of the runtime, by way and round."""
    copy_seconds: float
    """Seconds for one copy in each direction of the data that a step transfers."""

    def ratio(self, way: str) -> float:
        """Return the median of the rounds' ratios, the runtime over `fit`."""
        return median(ours / theirs for ours, theirs in zip(self.runtime[way], self.fit, strict=True))

    def transfer_share(self, way: str) -> float:
        """Return the share of a step's time that the transfers would take; overlapped transfers delay no step."""
        return self.copy_seconds * median(self.runtime[way])

    @property
    def is_enough(self) -> bool:
        """Return whether one of the ways with one server reaches the limit."""
        return max(self.ratio(way) for way in self.runtime if WAYS[way][0] == 1) >= LEAST


def steps_per_second(events: Sequence[Mapping[str, Any]], warm: int) -> float:
    """Return steps per second between the first report after the warm-up and the last report.

    Args:
        events: a worker's reports, in order, with "steps" and "monotonic".
        warm: steps of the warm-up.

    Raises:
        ValueError: fewer than two reports came after the warm-up.
    """
    counted = [event for event in events if event["steps"] >= warm]
    if len(counted) < 2:
        raise ValueError(f"{len(counted)} reports after the warm-up: it takes two")
    first, last = counted[0], counted[-1]
    return float((last["steps"] - first["steps"]) / (last["monotonic"] - first["monotonic"]))


def measure(settings: Mapping[str, Any], ways: Sequence[str], *, rounds: int, seconds: float) -> Figures:
    """Run `fit` and a job of each way in turn."""
    os.environ["BENCH_GPU"] = json.dumps(settings)
    model = settings["model"]
    copy_seconds = _noted(model, "copies", _plain("copies"))
    fit: list[float] = []
    runtime: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        fit.append(_noted(model, "fit", _plain("fit")))
        for way in ways:
            runtime[way].append(_noted(model, way, _job(way, settings["warm"], seconds)))
    return Figures(tuple(fit), {way: tuple(found) for way, found in runtime.items()}, copy_seconds)


def _noted(model: str, what: str, figure: float) -> float:
    """Print a figure as a line of JSON as soon as it is known, so that an interrupted run keeps its measurements."""
    sys.stdout.write(json.dumps({"model": model, "what": what, "figure": figure}) + "\n")
    sys.stdout.flush()
    return figure


def _plain(what: str) -> float:
    command = [sys.executable, "-m", PROGRAM, what]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _job(way: str, warm: int, seconds: float, limit: float = 300.0) -> float:
    """Return the steps per second of a job over a number of seconds after the warm-up.

    Raises:
        TimeoutError: it does not train.
    """
    deadline = time.monotonic() + limit + seconds
    servers, training = WAYS[way]
    with LocalJob(["-m", PROGRAM, "job"], ps=servers, chief=False, training=training) as job:
        worker = job.processes["worker-0"]
        while True:
            events = [event for event in worker.events("worker") if event["steps"] >= warm]
            if len(events) > 1 and events[-1]["monotonic"] - events[0]["monotonic"] >= seconds:
                return steps_per_second(events, warm)
            if job.supervise() is not None or time.monotonic() > deadline:
                raise TimeoutError("\n".join(["the job does not train", *worker.lines[-30:]]))
            time.sleep(0.1)


def has_gpu() -> bool:
    """Return whether TensorFlow sees a GPU; another process checks it, and its end frees the card."""
    code = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.split()[-1] != "0"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a ratio is below its limit, and 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="python -m bench.training.gpu", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cpu", action="store_true", help="tiny models on the CPU: shows that it works")
    parser.add_argument("--only", default="", help="names of models that contain this")
    parser.add_argument("--way", action="append", choices=list(WAYS), help="only this way, once or more (default all)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each program (default 5)")
    parser.add_argument("--seconds", type=float, default=20, help="of a job's training that are measured (default 20)")
    parser.add_argument("--steps", type=int, default=200, help="of `fit` that are measured (default 200)")
    parser.add_argument("--warm", type=int, default=30, help="steps before those that are measured (default 30)")
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    options = parser.parse_args(arguments)
    if not options.cpu and not has_gpu():
        sys.stderr.write(NO_GPU + "\n")
        return 2
    found: dict[str, Figures] = {}
    for name in (name for name in BATCH if options.only in name):
        batch, warm = (4, 2) if options.cpu else (BATCH[name], options.warm)
        device = "CPU:0" if options.cpu else "GPU:0"
        settings = {"model": name, "device": device, "batch": batch, "small": options.cpu}
        settings |= {"warm": warm, "steps": options.steps}
        found[name] = measure(settings, options.way or list(WAYS), rounds=options.rounds, seconds=options.seconds)
        sys.stdout.write("".join(f"{line}\n" for line in lines(name, found[name])))
        sys.stdout.flush()
    if options.out:
        options.out.write_text(json.dumps({name: asdict(figures) for name, figures in found.items()}, indent=1) + "\n")
    return int(not options.cpu and not all(figures.is_enough for figures in found.values()))


def lines(name: str, figures: Figures) -> list[str]:
    """Return the figures of a model as text, with one line per way."""
    return [
        f"{name}, {way}: {figures.ratio(way):.3f} of fit's steps/s ({median(rates):.2f} of {median(figures.fit):.2f}), "
        f"transfers {figures.transfer_share(way):.1%} of a step"
        for way, rates in figures.runtime.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
