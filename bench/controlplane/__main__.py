"""The benchmark of the control plane: `python -m bench.controlplane`, or `make bench`.

Needs a cluster with fake nodes and an audit log. Unless the local cluster runs already, it is started and removed for
every program. Programs alternate within a round: ratios are valid on a busy machine as well.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from bench.controlplane import flood, hung_requests, progress, report, runs
from bench.controlplane.namespace import Bench, Renew, opened
from bench.controlplane.runs import Figures
from bench.controlplane.workloads import Shape
from localcluster.layout import read_layout
from pstraining import __version__
from pstraining.kube.connection import CONTEXT, KUBECONFIG
from pstraining.progress import PERIOD_SECONDS

ROOT = Path(__file__).parents[2]
OUT = ROOT / "docs" / "project" / "benchmarks"
SHAPES = "100x1+2,10x10+100,1x10+100,1000x1+2"
FIGURES = "controlplane.json"
FAKE_NODES = 20


def shape(text: str) -> Shape:
    """Parse a shape such as 100x1+2: jobs, parameter servers and workers."""
    jobs, _, tasks = text.partition("x")
    ps, _, workers = tasks.partition("+")
    return Shape(int(jobs), int(ps), int(workers))


async def measure(
    bench: Bench,
    options: argparse.Namespace,
    earlier: Figures | None = None,
    keep: Callable[[Figures], None] = lambda found: None,
) -> Figures:
    """Run the selected measurements and return their figures.

    Args:
        bench: the cluster.
        options: the selection.
        earlier: figures of an earlier run, which are kept unless they are measured again.
        keep: called with all figures after every step, because a full run takes hours.
    """
    found: Figures = {"shapes": {}} | (earlier or {})
    found |= {
        "taken": datetime.now(UTC).date().isoformat(),
        "version": __version__,
        "cores": os.cpu_count(),
        "floor_concurrency": options.concurrency,
    }
    for wanted in (shape(text) for text in options.shapes.split(",") if text):
        rounds = [await _round(bench, wanted, options.concurrency) for _ in range(options.rounds)]
        found["shapes"][wanted.name] = report.medians(rounds) | {"each": rounds}
        _say(f"{wanted.name}: {report.medians(rounds)}")
        keep(found)
    if options.live:
        live = Shape(options.live, 1, 2)
        life = await runs.operator(bench, live, idle=options.idle, reactions=options.reactions)
        found["life"] = {live.name: life}
        _say(f"{live.name}: {life}")
        keep(found)
    if options.finished:
        found["finished"] = await runs.finished(bench, [int(n) for n in options.finished.split(",")])
        found["growth"] = report.growth(found["finished"])
        _say(f"finished: {found['finished']}, {found['growth']}")
        keep(found)
    if options.flood:
        async for found["flood"] in flood.measure(bench, options.flood, options.flood_jobs, options.rounds):
            _say(f"flood: {found['flood']}")
            keep(found)
    if options.progress:
        found["progress"] = await progress.measure(
            bench, options.progress, options.progress_seconds, options.progress_period
        )
        _say(f"progress: {found['progress']}")
        keep(found)
    if options.poisoned:
        async for found["poisoned"] in hung_requests.measure(bench, options.poisoned, options.rounds):
            _say(f"poisoned: {found['poisoned']}")
            keep(found)
    return found


async def _round(bench: Bench, wanted: Shape, concurrency: int) -> Figures:
    least = await runs.floor(bench, wanted, concurrency)
    watched = await runs.floor(bench, wanted, concurrency, watched=True)
    ours = await runs.operator(bench, wanted)
    return ours | {
        "floor_seconds": least["seconds"],
        "children_ratio": ours["seconds"] / least["seconds"],
        "watch_cpu": watched["cpu"],
        "watch_rss": watched["rss"],
        "cpu_ratio": ours["cpu"] / watched["cpu"],
    }


def parser() -> argparse.ArgumentParser:
    """Return the parsed command line."""
    found = argparse.ArgumentParser(prog="python -m bench.controlplane", description=__doc__)
    found.add_argument("--shapes", default=SHAPES, help=f"default: {SHAPES}")
    found.add_argument("--rounds", type=int, default=5)
    found.add_argument("--concurrency", type=int, default=16, help="the floor client's requests in flight")
    found.add_argument(
        "--live", type=int, default=1000, help="jobs that are live while nothing, then something, happens"
    )
    found.add_argument("--idle", type=float, default=600.0, help="seconds for which nothing happens")
    found.add_argument("--reactions", type=int, default=100)
    found.add_argument("--finished", default="100,1000,10000", help="numbers of finished jobs")
    found.add_argument("--poisoned", type=int, default=1000, help="jobs of which every twentieth is poisoned")
    found.add_argument(
        "--flood", type=int, default=10_000, help="hostile events, and as many ConfigMaps and StatefulSets"
    )
    found.add_argument("--flood-jobs", type=int, default=100, help="jobs of the namespace beside them")
    found.add_argument("--progress", type=int, default=1000, help="running jobs that report their progress")
    found.add_argument("--progress-seconds", type=float, default=295.0, help="seconds for which they report")
    found.add_argument(
        "--progress-period", type=float, default=PERIOD_SECONDS, help="seconds from one report of a job to the next"
    )
    found.add_argument("--limit", type=float, default=900.0, help="seconds that one step may take")
    found.add_argument("--out", type=Path, default=OUT)
    found.add_argument("--add", action="store_true", help="keep earlier figures that are not taken again")
    found.add_argument("--no-check", action="store_true", help="do not fail when a figure is above its limit")
    return found


def main() -> int:
    """Measure, write the figures, compare them with the thresholds, and return the exit status."""
    options = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the exit stops the programs
    layout = read_layout(os.environ)
    was_up = layout.kubeconfig.exists()
    target = {KUBECONFIG: str(layout.kubeconfig), CONTEXT: layout.context}
    try:
        _up()
        with tempfile.TemporaryDirectory() as folder:
            renew = None if was_up else _renew
            found = asyncio.run(_measured(target, layout.audit_log, Path(folder), options, renew))
    finally:
        _hack("kwok", "down") if was_up else _hack("down")
    failed = [check for check in report.checks(found) if not check.ok]
    for check in failed:
        _say(f"above its limit: {check.what}: {check.value:.3g} > {check.limit:.3g}")
    return 1 if failed and not options.no_check else 0


async def _measured(
    target: dict[str, str], audit: Path, folder: Path, options: argparse.Namespace, renew: Renew | None
) -> Figures:
    async with opened(target, audit, folder, options.limit, renew) as bench:
        earlier = json.loads((options.out / FIGURES).read_text()) if options.add else None
        return await measure(bench, options, earlier, lambda found: _keep(found, options.out))


def _keep(found: Figures, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FIGURES).write_text(json.dumps(found, indent=1) + "\n")
    (folder / "controlplane-figures.md").write_text(report.page(found))


def _up() -> None:
    _hack("up", "--nodes", "1")
    _hack("kwok", "up", "--nodes", str(FAKE_NODES))


def _renew() -> None:
    _hack("down")
    _up()


def _hack(*arguments: str) -> None:
    """Run a command of the local cluster; a failure shows its output."""
    command = [sys.executable, "-m", "localcluster", *arguments]
    done = subprocess.run(command, check=False, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise RuntimeError(f"localcluster {' '.join(arguments)} failed: {done.stdout.decode()[-2000:]}")


def _say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
