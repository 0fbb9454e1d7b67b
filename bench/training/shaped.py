"""Pull and push of a large model compared with one raw TCP stream, alternately over the same link."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench.training.figures import Taken
from bench.training.measurement import Effort, Measurement
from bench.training.network import Links
from bench.training.runs import RESTARTS, with_variables
from pstraining.runtime.config.cluster import Task
from pstraining.runtime.local import LocalJob

RATES: Final = {"1 Gbit/s": "1gbit", "unshaped": None}
WAYS: Final = ("pull", "push")
ROUNDS: Final = 9
LIMIT: Final = 240.0
PORT: Final = 9999


def ratio(rate: str, way: str) -> str:
    """Return the name of a ratio."""
    return f"link, {rate}: {way} of 100 MB, rate over that of a raw TCP stream"


def rate_of_raw(rate: str, way: str) -> str:
    """Return the name of the raw stream's rate."""
    return f"link, {rate}: a raw TCP stream, MB/s, {way}"


def transfers(effort: Effort) -> Taken:
    """Measure every way over every link, in several rounds."""
    model, rounds = effort.model("big"), 2 if effort.small else ROUNDS
    found: dict[str, list[float]] = {}
    for rate, words in RATES.items():
        with Links(["ps-0", "worker-0"], words) as links, _other_end(links) as address:
            settings = {"BENCH_MODEL": model, "BENCH_RAW": address, "BENCH_ROUNDS": str(rounds)}
            place = with_variables(settings, links)
            job = LocalJob(
                ["-m", "bench.training.transfer"], ps=1, workers=1, chief=False, restarts=RESTARTS, place=place
            )
            rows = _rows(job)[-rounds:]
        for way in WAYS:
            found[ratio(rate, way)] = [row[f"raw_{way}"] / row[way] for row in rows]
            found[rate_of_raw(rate, way)] = [row["megabytes"] / row[f"raw_{way}"] for row in rows]
    return found


def _rows(job: LocalJob) -> list[dict[str, float]]:
    """Return the worker's reports of all rounds."""
    with job:
        deadline = time.monotonic() + LIMIT
        worker = job.processes[Task("worker", 0).label]
        while not worker.events("transferred"):
            is_over = job.supervise() is not None or time.monotonic() > deadline
            if is_over and not worker.events("transferred"):  # the last line, which may have come with the end
                raise TimeoutError("\n".join(["the worker does not come to an end", *worker.lines[-30:]]))
            time.sleep(0.1)
        return worker.events("transfer")


@contextmanager
def _other_end(links: Links) -> Iterator[str]:
    """Start the other end of the raw stream beside the parameter server, and return its address."""
    host = links.host("ps-0")
    command = [*links.prefix("ps-0"), sys.executable, "-m", "bench.training.raw", host, str(PORT)]
    process = subprocess.Popen(command, cwd=os.getcwd())
    try:
        yield f"{host}:{PORT}"
    finally:
        process.kill()
        process.wait()


MEASUREMENTS: Final = (
    Measurement(
        "links", tuple(name(rate, way) for rate in RATES for way in WAYS for name in (ratio, rate_of_raw)), transfers
    ),
)
