"""Jobs of real processes, measured while they train."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from bench.training import models, network
from bench.training.measurement import Effort
from bench.usage import Usage, usage
from pstraining.runtime.config.cluster import Task
from pstraining.runtime.local import LocalJob, Place
from tests.support.elastic_job import ElasticJob

RESTARTS = 3
"""Restarts of a process before its job is watched: TensorFlow's server may crash when many clients connect at once."""
LIMIT = 240.0
"""Maximum seconds without a report of a job."""
WARM_REPORTS = 3
"""Number of a worker's reports, at most one per second, after which it counts as warm."""
Passed = Mapping[str, tuple[int, int]]
"""Sent and received bytes of every task."""


@dataclass(frozen=True)
class Load:
    """A job: its program, tasks and settings."""

    model: str
    ps: int = 1
    standbys: int = 0
    """Number of hot standbys of each parameter server."""
    workers: int = 2
    chief: bool = True
    training: Mapping[str, Any] | None = None
    environment: Mapping[str, str] | None = None
    checkpoint: Mapping[str, Any] | None = None
    program: str = "bench.training.program"
    """A module that prints reports as `StepReports` does."""
    reporters: tuple[str, ...] = ()
    """Tasks that must report before the job is watched; the first one's reports are read. By default all workers."""

    @property
    def tasks(self) -> list[str]:
        """Labels of all tasks."""
        numbered = {"ps": self.ps * (1 + self.standbys), "worker": self.workers}
        found = [f"{role}-{index}" for role, number in numbered.items() for index in range(number)]
        return [*found, *(["chief"] if self.chief else [])]

    @property
    def samples_per_step(self) -> int:
        """Number of samples in an update of the parameters."""
        training = dict(self.training or {})
        batches = int(training.get("accumulationSteps", training.get("localSteps", 1)))
        in_update = self.workers - int(training.get("backupWorkers", 0)) if training.get("mode") == "Sync" else 1
        return models.BATCH * batches * in_update


@dataclass(frozen=True)
class Figures:
    """The figures of a job while it was watched."""

    steps_per_second: float
    """Updates of the parameters by all workers, per second."""
    samples_per_second: float
    """Samples in these updates, per second."""
    steps: int
    bytes: int
    """Bytes on the network in both directions, with headers."""
    links: Passed
    """Bytes by task, if each has a separate link."""
    processor_seconds: float
    """CPU seconds of all processes."""
    resident: Mapping[str, float]
    """Resident bytes at the end, by task."""

    @property
    def bytes_per_sample(self) -> float:
        """Bytes on the network per sample in an update."""
        return self.bytes / self.steps * self.steps_per_second / self.samples_per_second


@dataclass(frozen=True)
class Loss:
    """The cost of a lost process."""

    stood: float
    """Longest time in seconds in which a worker applied no step."""
    again: float
    """Seconds until training reached the newest step again; if steps were lost, at most one second too many."""


@dataclass(frozen=True)
class _Look:
    """The state of a job at a report."""

    step: int
    at: float
    """The time in seconds of the monotonic clock."""
    links: Passed


class Running:
    """A job that trains and is warm."""

    def __init__(self, job: LocalJob, load: Load, effort: Effort, links: network.Links | None) -> None:
        self._job, self._load, self._seconds = job, load, effort.seconds
        self._passed: Callable[[], Passed] = links.passed if links else lambda: {"lo": (network.sent(), 0)}
        self._names = load.reporters or tuple(f"worker-{index}" for index in range(load.workers))
        self._wait_for(1 if effort.small else WARM_REPORTS)
        if load.standbys:  # workers prepare for a loss beside training
            self._wait_for(1, event="failover_ready")

    def watch(self) -> Figures:
        """Measure the job for the time of `effort`, from one report to another.

        Raises:
            TimeoutError: training has stalled.
            RuntimeError: a process of the job was lost meanwhile.
        """
        begin = end = self._look(after=time.monotonic())
        starts, before = self._starts(), self._usage()
        while end.at - begin.at < self._seconds:
            end = self._look(after=end.at)
        if self._starts() != starts:
            raise RuntimeError(
                "a process was lost while its job was watched: these figures are not of undisturbed training"
            )
        used = self._usage()
        steps, lasted = end.step - begin.step, end.at - begin.at
        moved = {
            task: (now[0] - begin.links[task][0], now[1] - begin.links[task][1]) for task, now in end.links.items()
        }
        return Figures(
            steps_per_second=steps / lasted,
            samples_per_second=steps * self._load.samples_per_step / lasted,
            steps=steps,
            bytes=sum(out for out, _ in moved.values()),
            links=moved,
            processor_seconds=sum(used[name].cpu - before[name].cpu for name in used),
            resident={name: found.rss * 2**20 for name, found in used.items()},
        )

    def lose(self, task: str, *, after: str | None = None, seconds: float = 0.0) -> "Loss":
        """Kill a process, and wait until the workers have reached their former step.

        Args:
            task: the process's label.
            after: an event of the chief to wait for before; None: no wait.
            seconds: duration of further training after the event.
        """
        chief = self._job.processes[self._job.leader.task.label]
        events = len(chief.events(after)) if after else 0
        while after and len(chief.events(after)) == events:
            self._supervise(time.monotonic() + LIMIT, f"no {after}")
            time.sleep(0.1)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._supervise(until + LIMIT, "the job stands still")
            time.sleep(0.1)
        step, stood = self._look(after=time.monotonic()).step, len(self._stood(0))
        killed = time.monotonic()
        self._job.kill(task)
        deadline = killed + LIMIT
        while any(len(self._stood(worker)) == stood for worker in range(self._load.workers)):
            self._supervise(deadline, "no worker continues")
            time.sleep(0.01)
        resumed = [self._stood(worker)[stood] for worker in range(self._load.workers)]
        longest = max(float(event["seconds"]) for event in resumed)
        if min(int(event["step"]) for event in resumed) > step:
            return Loss(longest, longest)
        while (look := self._look(after=time.monotonic())).step < step:
            pass
        return Loss(longest, look.at - killed)

    def heal(self, task: str) -> float:
        """Kill a process, and wait until its successor is in sync.

        Returns:
            The largest total of seconds in which a worker applied no step, at the loss and at the return.
        """
        before = [len(self._reports(f"worker-{worker}", "resumed")) for worker in range(self._load.workers)]
        self.lose(task)
        chief, deadline = self._job.leader.task.label, time.monotonic() + LIMIT
        while any(len(own) <= self._load.standbys for own in self._reports(chief, "view")[-1]["members"]):
            self._supervise(deadline, f"{task} does not come back")
            time.sleep(0.1)
        view = self._reports(chief, "view")[-1]
        for name in (f"worker-{worker}" for worker in range(self._load.workers)):
            while self._reports(name)[-1]["monotonic"] < view["monotonic"]:
                self._supervise(deadline, "no worker continues")
                time.sleep(0.1)
        stood = [self._reports(f"worker-{worker}", "resumed")[first:] for worker, first in enumerate(before)]
        return max(sum(float(event["seconds"]) for event in events) for events in stood)

    def change(self, shards: int) -> float:
        """Change the number of shards of an elastic job while it trains.

        Returns:
            The longest time in seconds in which a worker applied no step.
        """
        assert isinstance(self._job, ElasticJob)
        chief, deadline, began = self._job.leader.task.label, time.monotonic() + LIMIT, time.monotonic()
        self._job.change(shards)
        while not self._reports(chief, "layout"):
            self._supervise(deadline, "the number of shards does not change")
            time.sleep(0.01)
        self._job.settle()
        over = time.monotonic()
        for name in self._names:
            while self._reports(name)[-1]["monotonic"] < over:
                self._supervise(deadline, "no worker continues")
                time.sleep(0.01)
        reports = (report for name in self._names for report in self._reports(name) if report["monotonic"] > began)
        return max(float(report["gap_seconds"]) for report in reports)

    def stop_chief(self) -> float:
        """Send SIGTERM to the chief, which saves; return the seconds from the first refused update to its end."""
        chief, began = self._job.leader, time.monotonic()
        chief.popen.send_signal(signal.SIGTERM)
        chief.popen.wait(LIMIT)
        ended = time.monotonic()
        refused = [event["monotonic"] for name in self._names for event in self._reports(name, "refused")]
        return ended - min([at for at in refused if at > began], default=began)

    def first_report(self) -> float:
        """Return the time of the workers' first report, by the monotonic clock."""
        return min(float(self._reports(name)[0]["monotonic"]) for name in self._names)

    def _stood(self, worker: int) -> list[dict[str, Any]]:
        return [event for event in self._reports(f"worker-{worker}", "resumed") if event["after"] == "lost"]

    def pause(self) -> None:
        """Suspend all processes of the job."""
        self._job.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the processes, and wait until they train."""
        reports = len(self._reports(self._names[0]))
        self._job.signal(signal.SIGCONT)
        self._wait_for(reports + 1, self._names[:1])

    def _usage(self) -> dict[str, Usage]:
        return {name: usage(process.popen.pid) for name, process in self._job.processes.items()}

    def _starts(self) -> int:
        return sum(process.starts for process in self._job.processes.values())

    def _reports(self, name: str, event: str = "worker") -> list[dict[str, Any]]:
        return self._job.processes[name].events(event)

    def _wait_for(self, reports: int, names: tuple[str, ...] = (), event: str = "worker") -> None:
        deadline = time.monotonic() + LIMIT
        while any(len(self._reports(name, event)) < reports for name in names or self._names):
            self._supervise(deadline, "the workers do not train")
            time.sleep(0.1)

    def _look(self, after: float) -> _Look:
        """Return the job's state at the next report."""
        deadline = time.monotonic() + LIMIT
        while True:
            events = self._reports(self._names[0])
            if events and events[-1]["monotonic"] > after:
                return _Look(int(events[-1]["step"]), float(events[-1]["monotonic"]), self._passed())
            self._supervise(deadline, "the job stands still")
            time.sleep(0.01)

    def _supervise(self, deadline: float, what: str) -> None:
        code = self._job.supervise()
        if code is None and time.monotonic() < deadline:
            return
        ended = [process for process in self._job.processes.values() if process.popen.poll() is not None]
        shown = ended or list(self._job.processes.values())
        lines = [f"{process.task.label}: {line}" for process in shown for line in process.lines[-30:]]
        codes = {process.task.label: process.popen.returncode for process in ended}
        raise TimeoutError("\n".join([f"{what}; exit codes: {codes}", *lines]))


@contextmanager
def running(
    load: Load, effort: Effort, links: network.Links | None = None, kind: type[LocalJob] = LocalJob
) -> Iterator[Running]:
    """Start a job, and yield it when it is warm.

    Args:
        load: the job.
        effort: the extent of the measurements.
        links: the tasks' networks; None: all tasks use the loopback interface.
        kind: the class of the job.

    Raises:
        TimeoutError: the job does not train.
    """
    load = _small(load, effort) if effort.small else load
    job = kind(
        ["-m", load.program],
        ps=load.ps,
        standbys=load.standbys,
        workers=load.workers,
        chief=load.chief,
        training=load.training,
        checkpoint=load.checkpoint,
        restarts=RESTARTS,
        place=with_variables({"BENCH_MODEL": load.model, **(load.environment or {})}, links),
    )
    with job:
        yield Running(job, load, effort, links)


def _small(load: Load, effort: Effort) -> Load:
    """Return a similar job with fewer processes."""
    return replace(load, model=effort.model(load.model), workers=min(load.workers, 2), chief="chief" in load.reporters)


def measure(load: Load, effort: Effort, links: network.Links | None = None) -> Figures:
    """Run a job, and return its figures."""
    with running(load, effort, links) as job:
        found = job.watch()
    print(f"  {load}: {found.steps_per_second:.4g} steps/s", file=sys.stderr, flush=True)
    return found


def in_turn(loads: Sequence[Load], effort: Effort) -> list[list[Figures]]:
    """Return the figures of each job in each round, while the other jobs are suspended."""
    with ExitStack() as stack:
        jobs = []
        for load in loads:
            jobs.append(stack.enter_context(running(load, effort)))
            jobs[-1].pause()
        found = []
        for _ in range(effort.rounds):
            row = []
            for job in jobs:
                job.resume()
                row.append(job.watch())
                job.pause()
            found.append(row)
        return found


def with_variables(variables: Mapping[str, str], links: network.Links | None) -> Callable[[Task], Place]:
    """Return the function from a task to its place, with further environment variables."""
    settings = ("env", *(f"{name}={value}" for name, value in variables.items()))

    def place(task: Task) -> Place:
        found = links.place(task) if links else Place()
        return replace(found, prefix=(*found.prefix, *settings))

    return place
