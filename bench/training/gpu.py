"""Training on a GPU beside plain Keras on the same card: `python -m bench.training.gpu`.

One worker and one parameter server on this host train in mode Async; `fit` trains the same model with the same batches.
They run in turn, and the median of the rounds' ratios of steps per second counts. The share of transfers is the time of
one copy of the parameters to the GPU and one of the gradient back, measured alone, over the time of a step.

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
"""Steps per second of the runtime over those of `fit`, at least."""
NO_GPU: Final = (
    "bench.training.gpu measures on a GPU, and TensorFlow sees none on this machine. Run it where "
    "`tf.config.list_physical_devices('GPU')` names one, or add --cpu to see that the program works."
)


@dataclass(frozen=True)
class Figures:
    """What was measured of a model."""

    fit: tuple[float, ...]
    """Steps per second of plain Keras, by round."""
    runtime: tuple[float, ...]
    """Steps per second of the runtime."""
    copy_seconds: float
    """For one copy each way of what crosses in a step."""

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios, the runtime over `fit`."""
        return median(ours / theirs for ours, theirs in zip(self.runtime, self.fit, strict=True))

    @property
    def transfer_share(self) -> float:
        """The part of a step that transfers take, if nothing hides them."""
        return self.copy_seconds * median(self.runtime)


def steps_per_second(events: Sequence[Mapping[str, Any]], warm: int) -> float:
    """Steps over seconds between the first report after the warm-up and the last report.

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


def measure(settings: Mapping[str, Any], *, rounds: int, seconds: float) -> Figures:
    """Run `fit` and a job in turn."""
    os.environ["BENCH_GPU"] = json.dumps(settings)
    fit, runtime = [], []
    for _ in range(rounds):
        fit.append(_plain("fit"))
        runtime.append(_job(settings["warm"], seconds))
    return Figures(tuple(fit), tuple(runtime), _plain("copies"))


def _plain(what: str) -> float:
    command = [sys.executable, "-m", PROGRAM, what]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _job(warm: int, seconds: float, limit: float = 300.0) -> float:
    """Steps per second of a job over a number of seconds after the warm-up.

    Raises:
        TimeoutError: it does not train.
    """
    deadline = time.monotonic() + limit + seconds
    with LocalJob(["-m", PROGRAM, "job"], chief=False, training={"mode": "Async"}) as job:
        worker = job.processes["worker-0"]
        while True:
            events = [event for event in worker.events("worker") if event["steps"] >= warm]
            if len(events) > 1 and events[-1]["monotonic"] - events[0]["monotonic"] >= seconds:
                return steps_per_second(events, warm)
            if job.supervise() is not None or time.monotonic() > deadline:
                raise TimeoutError("\n".join(["the job does not train", *worker.lines[-30:]]))
            time.sleep(0.1)


def has_gpu() -> bool:
    """Whether TensorFlow sees a GPU; asked in another process, which gives the card back."""
    code = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.split()[-1] != "0"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 if a ratio is below its limit, 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="python -m bench.training.gpu", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cpu", action="store_true", help="tiny models on the CPU: shows that it works")
    parser.add_argument("--only", default="", help="names of models that contain this")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each program (default 5)")
    parser.add_argument("--seconds", type=float, default=20, help="of a job's training that are measured (default 20)")
    parser.add_argument("--steps", type=int, default=200, help="of `fit` that are measured (default 200)")
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    options = parser.parse_args(arguments)
    if not options.cpu and not has_gpu():
        sys.stderr.write(NO_GPU + "\n")
        return 2
    found: dict[str, Figures] = {}
    for name in (name for name in BATCH if options.only in name):
        batch, warm = (4, 2) if options.cpu else (BATCH[name], 30)
        device = "CPU:0" if options.cpu else "GPU:0"
        settings = {"model": name, "device": device, "batch": batch, "small": options.cpu}
        found[name] = measure(
            settings | {"warm": warm, "steps": options.steps}, rounds=options.rounds, seconds=options.seconds
        )
        text = f"{name}: {found[name].ratio:.3f} of fit's steps/s, transfers {found[name].transfer_share:.1%} of a step"
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    if options.out:
        rows = {
            name: {**asdict(figures), "ratio": figures.ratio, "transfer_share": figures.transfer_share}
            for name, figures in found.items()
        }
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    return int(not options.cpu and any(figures.ratio < LEAST for figures in found.values()))


if __name__ == "__main__":
    sys.exit(main())
