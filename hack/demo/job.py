"""Follows one job from `kubectl apply` to its end: pure functions of its objects, and the loop that waits."""

import json
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hack.test_cluster import Target
from localcluster.errors import ClusterError
from localcluster.progress import Progress

POLL_S = 1.0
UNSEEN_S = 60.0
"""Seconds after which the operator must have processed a new job."""
PRINT_EVERY_S = 5.0
"""Seconds between two printed lines of the chief's log."""
Object = Mapping[str, Any]


class JobFailedError(ClusterError):
    """The job has failed, or has not ended in time."""


def condition(job: Object, kind: str) -> Object | None:
    """Return the condition of a type if it is true."""
    for found in (job.get("status") or {}).get("conditions") or ():
        if found.get("type") == kind and found.get("status") == "True":
            return dict(found)
    return None


def summary(job: Object) -> str:
    """Return the job's state in one line, with the columns of `kubectl get`."""
    status = job.get("status") or {}
    parts = [status.get("phase") or "Pending"]
    for label, role in (("PS", "ps"), ("Workers", "worker"), ("Chief", "chief")):
        if counts := (status.get(role) or {}).get("summary"):
            parts.append(f"{label} {counts}")
    return ", ".join([*parts, f"Restarts {status.get('restarts', 0)}"])


def read_events(log: str) -> list[Object]:
    """Return the JSON lines with an "event" in a log; other lines are for people."""
    found: list[Object] = []
    for line in log.splitlines():
        if line.startswith("{"):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and "event" in entry:
                found.append(entry)
    return found


def read_accuracy(log: str) -> float | None:
    """Return the test accuracy in the chief's last result; None without one."""
    for entry in reversed(read_events(log)):
        if entry["event"] == "result" and isinstance(entry.get("test_accuracy"), int | float):
            return float(entry["test_accuracy"])
    return None


def newest_chief(pods: Sequence[Object]) -> str | None:
    """Return the name of the newest attempt's pod: of the chief, or of worker 0 in a job without a chief."""

    def term(pod: Object) -> int:
        return int(pod["metadata"]["labels"].get("pstraining.dev/term") or 0)

    def role(pod: Object, name: str) -> bool:
        return bool(pod["metadata"]["labels"].get("pstraining.dev/role") == name)

    chiefs = sorted((p for p in pods if role(p, "chief")), key=term)
    first = [p for p in pods if role(p, "worker") and p["metadata"]["labels"].get("pstraining.dev/index") == "0"]
    found = chiefs or first
    return str(found[-1]["metadata"]["name"]) if found else None


class ChiefLog:
    """Follows the newest chief's log in a thread, keeps it after the pod's end, and prints some lines."""

    def __init__(self, job: "Job", progress: Progress) -> None:
        self._lines: list[str] = []
        self._seen: dict[str, int] = {}
        self._job = job
        self._progress = progress
        self._told = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    @property
    def text(self) -> str:
        """Return the text so far, in which lines may occur twice."""
        return "".join(self._lines)

    def close(self) -> None:
        """Read the rest of the log after the job's end."""
        self._ended.set()
        self._thread.join(timeout=30)

    def _follow(self) -> None:
        while True:
            ended = self._ended.is_set()
            try:
                pod = newest_chief(self._job.pods())
            except ClusterError:
                pod = None
            if pod:
                self._read(pod)
            if ended:
                return
            self._ended.wait(POLL_S)

    def _read(self, pod: str) -> None:
        """Read until the log ends, which it does with its container; the container may restart or be followed by
        another pod's.
        """
        command = self._job.command("logs", "--follow", pod, "-c", "tensorflow")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            for number, line in enumerate(process.stdout):
                self._lines.append(line)
                if number >= self._seen.get(pod, 0):
                    self._seen[pod] = number + 1
                    self._tell(pod, line.rstrip())

    def _tell(self, pod: str, line: str) -> None:
        if line.startswith("step ") and time.monotonic() - self._told >= PRINT_EVERY_S:
            self._told = time.monotonic()
            self._progress.say(f"{pod}: {line}")


class Job:
    """One job on a cluster."""

    def __init__(self, target: Target, namespace: str, name: str) -> None:
        self.target = target
        self.namespace = namespace
        self.name = name

    def command(self, *args: str) -> list[str]:
        """Return the command line of kubectl in the job's namespace."""
        return self.target.kubectl_command("--namespace", self.namespace, *args)

    def kubectl(self, *args: str, check: bool = True) -> str:
        """Run kubectl in the job's namespace, and return its standard output."""
        return self.target.kubectl("--namespace", self.namespace, *args, check=check)

    def read(self) -> Object:
        """Return the job from the API server."""
        return dict(json.loads(self.kubectl("get", "pstj", self.name, "-o", "json")))

    def pods(self) -> list[Object]:
        """Return the job's pods."""
        text = self.kubectl("get", "pods", "-l", f"pstraining.dev/job-name={self.name}", "-o", "json")
        return list(json.loads(text)["items"])

    def wait(self, progress: Progress, deadline_s: float) -> None:
        """Show every change until the job has ended.

        Raises:
            JobFailedError: the job has failed, or has not ended in time.
        """
        started, shown = time.monotonic(), ""
        while True:
            job = self.read()
            if (now := summary(job)) != shown:
                progress.say(f"{self.name}: {now}")
                shown = now
            if condition(job, "Succeeded"):
                return
            if failed := condition(job, "Failed"):
                raise JobFailedError(f"the job failed: {failed.get('reason')}: {failed.get('message')}")
            waited = time.monotonic() - started
            if waited > UNSEEN_S and not job.get("status"):
                raise JobFailedError(f"no operator has looked at the job; does it watch namespace {self.namespace}?")
            if waited > deadline_s:
                raise JobFailedError(f"the job has not ended within {deadline_s:.0f} s")
            time.sleep(POLL_S)

    def diagnosis(self) -> str:
        """Return the information on a failure."""
        parts = [
            self.kubectl("describe", "pstj", self.name, check=False),
            self.kubectl("get", "pods,sts,deploy,job,svc", "-o", "wide", check=False),
            self.kubectl("get", "events", "--sort-by=.lastTimestamp", check=False),
        ]
        for pod in self.pods():
            name = pod["metadata"]["name"]
            parts.append(
                f"--- log of {name}\n" + self.kubectl("logs", name, "--all-containers", "--tail=40", check=False)
            )
        return "\n".join(parts)
