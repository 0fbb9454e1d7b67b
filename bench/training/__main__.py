"""The benchmark of the training runtime: `python -m bench.training`, or `make bench`.

Needs root, for separate networks. Compared jobs alternate within a round: ratios are valid on a busy machine as well.
"""

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from bench.training import figures, network
from bench.training.measurement import Effort
from bench.training.registry import MEASUREMENTS

OUT = Path(__file__).parents[2] / "docs" / "project" / "benchmarks"
FIGURES = "training.json"
PAGE = "training-figures.md"


def parser() -> argparse.ArgumentParser:
    """Return the parsed command line."""
    found = argparse.ArgumentParser(prog="python -m bench.training", description=__doc__)
    found.add_argument("--only", action="append", help="names, or parts of names, of what to measure; adds to the file")
    found.add_argument("--seconds", type=float, default=Effort.seconds, help="for which each job is watched")
    found.add_argument("--rounds", type=int, default=Effort.rounds, help="of jobs that are compared")
    found.add_argument("--small", action="store_true", help="try the bench itself: the figures mean nothing")
    found.add_argument("--out", type=Path, default=OUT, help="folder of the figures")
    found.add_argument("--no-check", action="store_true", help="do not fail on a figure beyond its limit or missing")
    found.add_argument("--list", action="store_true", help="only say what can be measured")
    return found


def main() -> int:
    """Measure, write the figures, compare them with the thresholds, and return the exit status."""
    options = parser().parse_args()
    wanted = [m for m in MEASUREMENTS if any(part in m.name for part in options.only or [""])]
    if options.list or not wanted:
        print("\n".join(measurement.name for measurement in MEASUREMENTS))
        return 0 if options.list else 2
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the exit stops the jobs
    network.leave()
    file = options.out / FIGURES
    kept: figures.Kept = json.loads(file.read_text()) if options.only and file.exists() else {}
    effort = Effort(options.seconds, options.rounds, options.small)
    for measurement in wanted:
        started = time.monotonic()
        taken = measurement.take(effort)
        kept = figures.add(kept, taken)
        _keep(kept, options.out)
        for name in taken:
            _say(f"{name}: {figures.rounded(kept['figures'][name]['value'])}")
        _say(f"({measurement.name}: {time.monotonic() - started:.0f} s)")
    failed = [check for check in figures.checks(kept) if not check.ok]
    for check in failed:
        _say(str(check))
    return 1 if failed and not options.no_check else 0


def _keep(kept: figures.Kept, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FIGURES).write_text(json.dumps(kept, indent=1) + "\n")
    (folder / PAGE).write_text(figures.page(kept))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
