"""A job in its own network namespace: the bytes that its tasks report, beside those of the network interface."""

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from pstraining.runtime.local import LocalJob
from tests.support.servers import SPREAD
from tests.support.soak_marks import THOROUGH

HEADER: Final = 66
"""Bytes of a TCP segment's headers on the loopback interface: Ethernet 14, IPv4 20, TCP with timestamps 32."""
TASKS: Final = ("chief", "worker-0", "worker-1")


def scrape(port: int) -> dict[str, float]:
    """Return a task's metrics by name, and by name{label} where there is a label."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    found = {}
    for family in families:
        for sample in family.samples:
            label = ",".join(sample.labels.values())
            found[f"{sample.name}{{{label}}}" if label else sample.name] = sample.value
    return found


def carried() -> int:
    """Return the bytes that have crossed the loopback interface, without headers."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            total, packets = (int(number) for number in numbers.split()[8:10])
            return total - HEADER * packets
    raise OSError("there is no loopback interface")


def steps(scraped: dict[str, float]) -> float:
    """Return a worker's number of steps, or the number that the chief knows."""
    return scraped.get("pstraining_worker_steps_total", scraped.get("pstraining_global_step", 0.0))


def payload(scrapes: dict[str, dict[str, float]]) -> float:
    """Return the bytes on all links of all tasks, in both directions."""
    return sum(value for found in scrapes.values() for name, value in found.items() if "_bytes_total{" in name)


def until(job: LocalJob, condition: Callable[[], Any]) -> Any:
    """Wait until the condition returns a value, and return it."""
    deadline = time.monotonic() + 240
    while not (found := condition()):
        assert job.supervise() is None, [process.lines[-5:] for process in job.processes.values()]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


@contextmanager
def metered(folder: Path) -> Iterator[LocalJob]:
    """Return a job whose tasks export metrics."""
    plan = {"width": 20_000, "pace": 0.02, "validation": False, "trainer": {"epochs": 1000, "steps_per_epoch": 40}}
    environment = {
        "PSTRAINING_METRICS_PORT": "0",
        "FITTING_FOLDER": str(folder),
        "FITTING_PLAN": json.dumps(plan),
    }
    checkpoint = {"path": str(folder / "checkpoints"), "intervalSeconds": 2}
    command = ["-m", "tests.support.fit_program"]
    with LocalJob(
        command,
        ps=2 if THOROUGH else 1,
        workers=2,
        restarts=2,
        training=SPREAD,
        checkpoint=checkpoint,
        environment=environment,
    ) as job:
        yield job


def run(folder: Path) -> dict[str, Any]:
    """Train in this thread's network, measure twice, and return the difference."""
    with metered(folder) as job:

        def all_scraped() -> dict[str, dict[str, float]]:
            return {task: scrape(job.processes[task].events("metrics")[-1]["port"]) for task in TASKS}

        def look() -> tuple[dict[str, dict[str, float]], float]:
            """Return the values that all tasks report, and the interface's bytes halfway through scraping them."""
            first, scrapes, second = carried(), all_scraped(), carried()
            return scrapes, (first + second) / 2

        chief = job.processes["chief"]
        until(job, lambda: len(chief.events("epoch")) >= 2 and chief.events("checkpoint"))
        before, crossed = look()
        epochs = len(chief.events("epoch"))
        lines = len([line for line in chief.lines if "samples/s" in line])
        until(job, lambda: len(chief.events("epoch")) >= epochs + 2)
        until(job, lambda: len([line for line in chief.lines if "samples/s" in line]) >= lines + 2)
        until(job, lambda: all(steps(found) > steps(before[task]) for task, found in all_scraped().items()))
        after, later = look()
        return {
            "payload": payload(after) - payload(before),
            "carried": later - crossed,
            "losses": [line["loss"] for line in chief.events("epoch")],
            "before": before,
            "after": after,
            "lines": [line for line in chief.lines if line.startswith("step ")],
        }
