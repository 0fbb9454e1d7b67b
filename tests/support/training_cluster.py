"""A cluster of three jobs for the dashboard: one trains, one had a failover, and one has failed."""

import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pstraining.cli.dashboard.content import Content
from pstraining.cli.dashboard.sampling import EVERY, Sampler
from pstraining.cli.dashboard.server import DashboardServer
from pstraining.cli.errors import DeniedError, RequestError
from pstraining.cli.tasks import tasks_of
from tests.support.builders import NOW, UID
from tests.support.cli_cluster import Object, WithJobs
from tests.support.simulation import World, running

WATCHED: Final = 600.0
"""Seconds for which a page has sampled the jobs."""
LOST: Final = 400.0
"""Seconds after which a parameter server of `recommender` is lost."""
PAUSE: Final = 20.0
"""Seconds during which `recommender` then makes no steps."""
SHARES: Final = (1.0, 1.0, 0.3)
"""The workers' shares of the steps; the last worker is slow."""
_STAMP = re.compile(r"2030-01-01T\d\d:\d\d:\d\dZ")
SCRIPT: Final = "<script>document.title='taken over'</script><img src=x onerror=\"document.title='taken over'\">"


class Job:
    """A simulated job under its own name, at the present time."""

    def __init__(self, name: str, world: World, ago: float = 0) -> None:
        """Copy the world's present objects.

        Args:
            name: instead of `digits`.
            world: with the job.
            ago: seconds since the world's present.
        """
        shift = datetime.now(UTC) - timedelta(seconds=ago) - world.now

        def moved(found: re.Match[str]) -> str:
            moment = datetime.strptime(found[0], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC) + shift
            return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

        found = [
            {
                "metadata": {"creationTimestamp": "2030-01-01T12:00:00Z"},
                "type": "Normal",
                "reason": str(event.reason),
                "message": event.message,
                "eventTime": world.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
            for event in world.reported[-3:]
        ]
        text = json.dumps([world.job, list(world.pods.values()), found])
        text = _STAMP.sub(moved, text).replace(UID, f"uid-{name}").replace("digits", name)
        self.job, self.pods, self.events = json.loads(text)
        self.name = name


def progress(step: int, steps: int, loss: float, rate: float, moment: datetime) -> dict[str, Any]:
    """Return the status's report of training."""
    return {
        "step": step,
        "steps": steps,
        "epoch": 2,
        "progressPercentage": 100 * step // steps,
        "estimatedRemainingSeconds": int((steps - step) / max(rate, 1)),
        "loss": f"{loss:.4g}",
        "samplesPerSecond": f"{32 * rate:.5g}",
        "checkpointStep": step - 500,
        "checkpointTime": (moment - timedelta(seconds=40)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lastUpdatedTime": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def trains() -> Job:
    """Return a job with three workers, one of which is slow, and two shards."""
    world = running(ps={"replicas": 2}, worker={"replicas": 3})
    world.now += timedelta(seconds=WATCHED)
    return Job("digits", world)


def fails_over() -> tuple[Job, Job]:
    """Return a job with hot standbys, before and after the loss of a primary."""
    world = running(ps={"replicas": 2, "standby": {"mode": "Hot"}}, worker={"replicas": 3})
    world.now += timedelta(seconds=LOST)
    before = Job("recommender", world, WATCHED - LOST)
    del world.pods["digits-ps-1"]
    world.settle()
    return before, Job("recommender", world, WATCHED - LOST)


def fails() -> Job:
    """Return a job whose program cannot train with its settings; one of its events has hostile text."""
    world = running()
    world.now += timedelta(seconds=30)
    world.end("chief", 0, 78, "ValueError: batch_size is 0: set it to at least 1.")
    world.settle()
    return Job("broken", world, 120)


class TrainingCluster(WithJobs):
    """A cluster whose jobs' metrics follow a clock that the test moves."""

    def __init__(self) -> None:
        self.before, self.after = fails_over()
        self.there_by_name = {job.name: job for job in (trains(), self.before, fails())}
        super().__init__(*(job.job for job in self.there_by_name.values()))
        self.now, self._began = 0.0, time.time() - WATCHED
        self.denied: set[str] = set()
        self.lines: dict[str, list[str]] = {}
        self.say("broken-chief-", f"epoch 1 of 5 {SCRIPT}")
        self.say("broken-chief-", "ValueError: batch_size is 0: set it to at least 1.")
        hostile = {"metadata": {"creationTimestamp": NOW.isoformat()}, "reason": "Hostile", "message": SCRIPT}
        self.there_by_name["broken"].events.append(hostile)

    def served(self) -> DashboardServer:
        """Serve a dashboard whose pages have sampled the jobs for some time."""
        sampler = Sampler(self, lambda: self.now, lambda: self._began + self.now)
        while self.now < WATCHED:
            if self.now >= LOST:
                self.there_by_name["recommender"] = self.after
            self._report()
            for name in ("digits", "recommender"):
                found = self.there_by_name[name]
                sampler.look(found.job, tasks_of(found.job, found.pods))
            self.now += EVERY
        self.there = [job.job for job in self.there_by_name.values()]
        return DashboardServer(Content(self, "default", sampler))

    def say(self, pod: str, line: str) -> None:
        """Add a line to the log of the task whose pod's name has this prefix."""
        written = self.lines.setdefault(pod, [])
        moment = datetime.now(UTC) - timedelta(seconds=1) + timedelta(microseconds=len(written))
        written.append(f"{moment.isoformat().replace('+00:00', 'Z')} {line}")

    def pods(self, namespace: str, job: str) -> list[Object]:
        self._refuse("pods")
        return list(self.there_by_name[job].pods)

    def events(self, namespace: str, uid: str) -> list[Object]:
        self._refuse("events")
        return next((j.events for j in self.there_by_name.values() if j.job["metadata"]["uid"] == uid), [])

    def metrics(self, namespace: str, pod: str, port: int, seconds: float = 10) -> str:
        self._refuse("pods/proxy")
        job, role, index, *_ = pod.split("-")
        if job == "broken":
            raise RequestError("connect: connection refused", 503)
        if role == "chief":
            return self._of_chief(job)
        return self._of_worker(job, int(index))

    def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        self._refuse("pods/log")
        yield from (line for name, lines in self.lines.items() if pod.startswith(name) for line in lines)

    def _refuse(self, what: str) -> None:
        if what in self.denied:
            raise DeniedError(f"You (jane) may not get {what} in namespace default.", 403)

    def _steps(self, job: str, share: float) -> int:
        """Return a worker's steps so far; it makes none while a lost server is replaced."""
        at = self.now
        if job == "recommender":
            at = min(at, LOST) if at < LOST + PAUSE else at - PAUSE
        return int(share * 9.5 * (at + 0.4 * math.sin(at / 9)))

    def _loss(self, job: str) -> float:
        step = self._steps(job, 1.0)
        return 0.08 + 2.1 * math.exp(-step / 1400) + 0.02 * math.sin(step / 37) + 0.015 * math.sin(step / 11)

    def _of_chief(self, job: str) -> str:
        step = sum(self._steps(job, share) for share in SHARES)
        return (
            f"pstraining_global_step {step}\npstraining_loss {self._loss(job)}\npstraining_epoch 2\n"
            'pstraining_workers_present 3\npstraining_compute_devices{type="CPU"} 1\n'
        )

    def _of_worker(self, job: str, index: int) -> str:
        steps, worker = self._steps(job, SHARES[index]), "pstraining_worker_"
        peers = [
            f'pstraining_{d}_bytes_total{{peer="ps-{n}"}} {steps * 40_000}'
            for d in ("sent", "received")
            for n in (0, 1)
        ]
        counts = [f"{worker}steps_total {steps}", f"{worker}samples_total {32 * steps}", f"{worker}dropped_total 0"]
        means = [f"{worker}step_seconds_sum {self.now}", f"{worker}step_seconds_count {steps}"]
        means += [f"{worker}staleness_sum {2 * steps}", f"{worker}staleness_count {steps}"]
        return "\n".join([*counts, *means, *peers, 'pstraining_compute_devices{type="GPU"} 1', ""])

    def _report(self) -> None:
        """Write the chiefs' reports into the status."""
        moment = datetime.fromtimestamp(self._began + self.now, UTC)
        for name in ("digits", "recommender"):
            step = sum(self._steps(name, share) for share in SHARES)
            reported = progress(step, 20_000, self._loss(name), 21.8, moment)
            self.there_by_name[name].job["status"]["training"] = reported
