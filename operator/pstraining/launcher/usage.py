"""Measures the memory and CPU time of a pod's container, and reports the usage of the job to the operator.

Every launcher serves its own container's figures (`Meter`). The launcher of the task that does the chief's work
requests all figures and sends one report for the whole job (`Reporter`), while the cluster map has `measured`. This is
one of the launcher's files. In a pod it is beside launch.py, and it imports only Python 3.8's standard library.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Sequence  # noqa: UP035 - Python 3.8
from urllib.parse import urlsplit

if TYPE_CHECKING or __package__:
    from . import contract
    from .cgroups import Cgroup, Reading
    from .probe import status_port
    from .status_port import USAGE_PATH
else:
    import contract
    from cgroups import Cgroup, Reading
    from probe import status_port
    from status_port import USAGE_PATH

SAMPLE_SECONDS = 1.0
"""Seconds between two readings of a container whose figures are requested: shorter peaks may be missed."""
PERIOD_SECONDS = 5.0
"""Seconds between two rounds of requests to all tasks."""
TASKS_PER_SECOND = 400.0
"""Requests to tasks per second in the long run; each takes half a millisecond of CPU time."""
REPORT_SECONDS = 30.0
"""Seconds between two reports without an urgent change."""
ANSWER_SECONDS = 2.0
"""Timeout of a task's answer, and of the operator's."""
URGENT_SHARE = 0.8
"""Share of a memory limit from which every round is reported."""
NEWS_SHARE = 1.1
"""Factor of a peak's rise from which it is reported at once."""
TREND_ROUNDS = 6
"""Rounds over which the growth of memory is measured."""
CPU_SAMPLES = (12, 720)
"""Fewest and most samples of CPU use from which the percentile is taken: one minute, and one hour."""
MEAN_SECONDS = (240.0, 300.0)
"""Shortest and longest time over which the mean of CPU use is taken."""
ASKED_AT_ONCE = 16
FAILURES = (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, ImportError, RuntimeError)
"""Errors of a round, also in an image whose Python has no ssl, and where no further thread can be started."""
LOGGED_FAILURE = 3
"""Number of the failed round, counted from the last success, whose error is logged: an operator may be away briefly."""

Figures = Dict[str, Any]  # noqa: UP006 - Python 3.8


class Meter:
    """Measures this container. It samples after the first request, so a job that is not measured costs nothing.

    Args:
        pod: name of the pod.
        read: reads the container's cgroup.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        pod: str,
        read: Callable[[], Reading | None] = Cgroup().read,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pod, self._read, self._clock = pod, read, clock
        self._lock = threading.Lock()
        self._peak = 0
        self._kills: int | None = None
        self._killed_at: float | None = None
        self._thread: threading.Thread | None = None

    def report(self) -> Figures:
        """Return the figures, the answer to GET /v1/usage; empty if the kernel does not report them."""
        reading = self.sample()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="usage", daemon=True)
            self._thread.start()
        if reading is None:
            return {}
        now = self._clock()
        return {
            "pod": self._pod,
            "at": now,
            "memoryBytes": reading.memory,
            "peakBytes": self._peak,
            "limitBytes": reading.limit,
            "cpuSeconds": reading.cpu_seconds,
            "oomAgeSeconds": None if self._killed_at is None else now - self._killed_at,
        }

    def sample(self) -> Reading | None:
        """Read the cgroup once. An OOM kill is as old as the reading that shows it; earlier kills are ignored."""
        reading = self._read()
        if reading is None:
            return None
        with self._lock:
            self._peak = max(self._peak, reading.memory)
            if self._kills is not None and reading.oom_kills > self._kills:
                self._killed_at = self._clock()
            self._kills = reading.oom_kills
        return reading

    def _run(self) -> None:
        while True:
            time.sleep(SAMPLE_SECONDS)
            self.sample()


class RoleHistory:
    """The figures of one role over the last rounds."""

    def __init__(self) -> None:
        self._memory: deque[tuple[float, dict[str, int]]] = deque(maxlen=TREND_ROUNDS + 1)
        self._cpu: deque[tuple[float, float]] = deque(maxlen=CPU_SAMPLES[1])
        self._before: dict[str, tuple[float, float]] = {}

    def add(self, role: str, answers: Sequence[Figures], now: float) -> Figures:
        """Add a round, and return the role's part of a report: each figure is that of the pod with the highest one.

        Args:
            role: the role.
            answers: the figures of the role's pods, at least one.
            now: monotonic seconds.
        """
        largest = max(answers, key=lambda each: (_share(each), each["memoryBytes"]))
        self._memory.append((now, {each["pod"]: each["memoryBytes"] for each in answers}))
        self._add_cpu(answers, now)
        killed = [each for each in answers if each["oomAgeSeconds"] is not None]
        newest = min(killed, key=lambda each: float(each["oomAgeSeconds"]), default=None)
        found = {
            "role": role,
            "pod": largest["pod"],
            "memoryBytes": largest["memoryBytes"],
            "peakBytes": max(each["peakBytes"] for each in answers),
            "limitBytes": largest["limitBytes"],
            "growthBytesPerSecond": self._growth(largest["pod"]),
            "cpuMillicores": self._cpu_percentile(),
            "meanCpuMillicores": self._cpu_mean(now),
            "oomPod": None if newest is None else newest["pod"],
            "oomAgeSeconds": None if newest is None else newest["oomAgeSeconds"],
        }
        return {name: value for name, value in found.items() if value is not None}

    def _growth(self, pod: str) -> int | None:
        """Return the growth of a pod that has just answered; others, or it, may not have answered before."""
        found = [(at, memory[pod]) for at, memory in self._memory if pod in memory]
        (began, first), (ended, last) = found[0], found[-1]
        return int(max(0.0, (last - first) / (ended - began))) if ended > began else None

    def _add_cpu(self, answers: Sequence[Figures], now: float) -> None:
        """Add the largest use of a pod since the previous round. The CPU time of a restarted container begins at 0."""
        found = {each["pod"]: (each["at"], each["cpuSeconds"]) for each in answers if each["cpuSeconds"] is not None}
        used = []
        for pod, (at, seconds) in found.items():
            before = self._before.get(pod)
            if before is not None and at > before[0] and seconds >= before[1]:
                used.append((seconds - before[1]) / (at - before[0]))
        self._before = found
        if used:
            self._cpu.append((now, max(used)))

    def _cpu_percentile(self) -> int | None:
        if len(self._cpu) < CPU_SAMPLES[0]:
            return None
        return int(1000 * sorted(use for _, use in self._cpu)[int(0.95 * (len(self._cpu) - 1))])

    def _cpu_mean(self, now: float) -> int | None:
        least, most = MEAN_SECONDS
        found = [(at, use) for at, use in self._cpu if now - at <= most]
        if not found or now - found[0][0] < least:
            return None
        return int(1000 * sum(use for _, use in found) / len(found))


def pause(tasks: int) -> float:
    """Return the seconds between two rounds in a job with this number of tasks."""
    return max(PERIOD_SECONDS, tasks / TASKS_PER_SECOND)


def is_due(sent: Sequence[Figures], newest: Sequence[Figures], seconds: float) -> bool:
    """Whether a report is sent now.

    Args:
        sent: the report that was sent last.
        newest: the newest report.
        seconds: seconds since the last report was sent.
    """
    before = {each["role"]: each for each in sent}
    return seconds >= REPORT_SECONDS or any(_is_news(before.get(each["role"]), each, seconds) for each in newest)


def _is_news(before: Figures | None, newest: Figures, seconds: float) -> bool:
    if before is None or newest["peakBytes"] > NEWS_SHARE * before["peakBytes"]:
        return True
    is_killed = newest.get("oomAgeSeconds", seconds) < seconds
    return is_killed or _share(newest) >= URGENT_SHARE


def _share(figures: Figures) -> float:
    """Return the share of its memory limit that a container uses; a container without a limit uses none."""
    limit = figures.get("limitBytes")
    return figures["memoryBytes"] / limit if limit else 0.0


class Reporter:
    """Requests the figures of all tasks, and reports them to the operator, from a separate thread.

    Args:
        env: the container's environment.
        cluster_map: path of the cluster map.
    """

    def __init__(self, env: Mapping[str, str], cluster_map: str) -> None:
        self._url, self._map = urlsplit(env.get(contract.ENV_PROGRESS_URL, "")), cluster_map
        self._histories: dict[str, RoleHistory] = {}
        self._asked = 0
        self._sent: list[Figures] = []
        self._sent_at = float("-inf")
        self._failures = 0

    def start(self) -> None:
        """Start the thread, in the task that may report the job's progress; other tasks report nothing."""
        if self._url.hostname:
            threading.Thread(target=self._run, name="usage-reports", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(pause(self._asked))
            self.attempt()

    def attempt(self) -> None:
        """Make a round. A failed round is repeated later, and a lasting error is logged once."""
        try:
            self.round()
            self._failures = 0
        except FAILURES as error:
            self._failures += 1
            if self._failures == LOGGED_FAILURE:
                contract.log(f"the operator gets no reports of pods' usage, and memory does not grow: {error!r}")

    def round(self) -> None:
        """Request the figures of every task once, and send a report if one is due.

        Raises:
            OSError, http.client.HTTPException: the report could not be sent, or the operator refused it.
            ValueError, KeyError, TypeError: the cluster map has another format.
            ImportError, RuntimeError: Python has no ssl, or no further thread can be started.
        """
        tasks = self._tasks()
        if not tasks:
            return
        self._asked = len(tasks)
        asked = ask_all([address for _, address in tasks])
        now = time.monotonic()
        answers: dict[str, list[Figures]] = {}
        for role, address in tasks:
            if figures := asked.get(address):
                answers.setdefault(role, []).append(figures)
        newest = [self._histories.setdefault(r, RoleHistory()).add(r, found, now) for r, found in answers.items()]
        if newest and is_due(self._sent, newest, now - self._sent_at):
            self._send(newest)
            self._sent, self._sent_at = newest, now

    def _tasks(self) -> list[tuple[str, str]]:
        """Return the role and the address of every task; none while the job is not measured."""
        with open(self._map, encoding="utf-8") as file:
            content = json.load(file)
        further = content.get("measured")
        if further is None or content.get("ended"):
            return []
        return [(role, a) for role, addresses in {**content["cluster"], **further}.items() for a in addresses]

    def _send(self, report: list[Figures]) -> None:
        import ssl  # only here, because some images have a Python without it

        context = ssl.create_default_context(cafile=os.path.join(contract.RUN_DIR, contract.PROGRESS_AUTHORITY_FILE))
        with open(os.path.join(contract.MOUNT_DIR, contract.PROGRESS_TOKEN_FILE), encoding="ascii") as file:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {file.read().strip()}"}
        host = self._url.hostname or ""
        connection = http.client.HTTPSConnection(host, self._url.port, timeout=ANSWER_SECONDS, context=context)
        try:
            connection.request("POST", self._url.path + "/usage", json.dumps({"usage": report}), headers)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise OSError(f"{answer.status} {answer.reason}: {content[:200].decode(errors='replace')}")
        finally:
            connection.close()


def ask_all(addresses: Sequence[str]) -> dict[str, Figures]:
    """Return the figures of tasks by their address, without those that do not answer."""
    found: dict[str, Figures] = {}
    todo = iter(addresses)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                address = next(todo, None)
            if address is None:
                return
            found[address] = ask(address)

    # Daemon threads, because a task that does not answer must not delay the end of this one.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(ASKED_AT_ONCE, len(addresses)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def ask(address: str) -> Figures:
    """Return the figures of a task; empty without an answer.

    Args:
        address: the task's address for TensorFlow.
    """
    host, port = contract.host_and_port(address)
    connection = http.client.HTTPConnection(host, status_port(port), timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", USAGE_PATH)
        answer = connection.getresponse()
        found = json.loads(answer.read()) if answer.status == 200 else {}
        return found if isinstance(found, dict) else {}
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()
