"""The API server's audit log: each write with its client, to the microsecond."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from localcluster.auditlog import AuditFiles, Mark

OPERATOR = "pstraining-operator"
FLOOR = "bench-floor"
LOADER = "bench-loader"
CHILDREN = frozenset({"deployments", "statefulsets", "jobs", "services", "configmaps", "networkpolicies"})


@dataclass(frozen=True)
class Write:
    """One finished request."""

    agent: str
    """The first part of the client's user agent."""
    verb: str
    resource: str
    name: str
    code: int
    accepted: float
    """Time of the request's end, in seconds since 1970."""

    @property
    def ok(self) -> bool:
        """Whether the API server accepted the request."""
        return self.code < 300


class AuditLog(AuditFiles):
    """The writes in the log of one API server."""

    def since(self, mark: Mark, namespace: str) -> list[Write]:
        """Return the writes in a namespace since a mark."""
        return [_write(json.loads(line)) for line in self.lines(mark) if namespace.encode() in line]

    async def quiet(self, namespace: str, seconds: float, limit: float, agent: str = "") -> None:
        """Wait until a namespace had no writes, or none by one agent, for a given time.

        Raises:
            TimeoutError: writes have not stopped in time.
        """
        mark, since, loop = self.mark(), 0.0, asyncio.get_running_loop()
        end = loop.time() + limit
        while since < seconds:
            if loop.time() > end:
                raise TimeoutError(f"namespace {namespace} is not quiet after {limit} s")
            await asyncio.sleep(0.5)
            busy = agent.encode()
            found = any(namespace.encode() in line and busy in line for line in self.lines(mark))
            since, mark = (0.0, self.mark()) if found else (since + 0.5, mark)


def counts(writes: list[Write], agent: str) -> Counter[str]:
    """Return the numbers of an agent's accepted writes by verb and resource, without those of the Lease."""
    mine = [w for w in writes if w.agent == agent and w.ok and w.resource != "leases"]
    return Counter(f"{w.verb} {w.resource}" for w in mine)


def time_to_children(writes: list[Write], agent: str) -> float:
    """Return the seconds from the first accepted job to the last accepted child."""
    jobs = [w.accepted for w in writes if w.verb == "create" and w.resource == "pstrainingjobs" and w.ok]
    made = [w.accepted for w in writes if w.agent == agent and w.verb == "create" and w.resource in CHILDREN and w.ok]
    return max(made) - min(jobs)


def job_times(writes: list[Write], agent: str) -> dict[str, float]:
    """Return for each job the seconds from its acceptance to that of its last child."""
    start = {w.name: w.accepted for w in writes if w.verb == "create" and w.resource == "pstrainingjobs" and w.ok}
    end: dict[str, float] = {}
    for write in writes:
        if write.agent == agent and write.verb == "create" and write.resource in CHILDREN and write.ok:
            job = "-".join(write.name.split("-")[:2])
            end[job] = max(end.get(job, 0.0), write.accepted)
    return {job: end[job] - at for job, at in start.items() if job in end}


def _write(entry: dict[str, object]) -> Write:
    target = entry.get("objectRef")
    status = entry.get("responseStatus")
    assert isinstance(target, dict)
    resource, sub = str(target.get("resource", "")), str(target.get("subresource", ""))
    return Write(
        agent=str(entry.get("userAgent", "")).split("/")[0],
        verb=str(entry["verb"]),
        resource=f"{resource}/{sub}" if sub else resource,
        name=str(target.get("name", "")),
        code=int(status.get("code", 0)) if isinstance(status, dict) else 0,
        accepted=_seconds(str(entry["stageTimestamp"])),
    )


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
