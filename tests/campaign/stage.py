"""The environment of a workload: one namespace, one job, and pods whose life cycle the test controls.

The pods request a scheduler that does not exist, so no scheduler or kubelet touches them. The test writes their status,
and the API server removes them as soon as they are deleted. All other controllers are real.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pstraining.api import names
from pstraining.resources import kueue
from tests.campaign.api import QUEUE_API, Api, Object, Watched
from tests.campaign.queues import QUEUE, quota
from tests.support.builders import stamp

JOB = "job"
STEP_SECONDS = 120.0
"""Seconds that a step of a workload may take, including its faults."""


@dataclass
class Stage:
    """A namespace with one job."""

    api: Api
    watched: Watched
    namespace: str
    begun: Callable[[], None]
    """Called when the job is up and the workload's own part begins."""

    def path(self, plural: str, name: str = "", sub: str = "") -> str:
        """Return a path in this namespace."""
        return "/".join(p for p in (f"{self.api.bases[plural]}/namespaces/{self.namespace}/{plural}", name, sub) if p)

    async def submit(self, *, workers: int = 1, queue: bool = False, **spec: Any) -> None:
        """Create the job, and wait until all of its children exist; a job with a queue may have to wait for its
        admission.
        """
        labels = {kueue.LABEL_QUEUE: QUEUE} if queue else {}
        container = {"name": "tensorflow", "image": "none", "command": ["python"]}
        template = {"spec": {"schedulerName": "nobody", "containers": [container]}}
        worker = {"replicas": workers, "template": template}
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": JOB, "namespace": self.namespace, "labels": labels},
            "spec": {"worker": worker, "ps": {"replicas": 1}, **spec},
        }
        await self.api.ask("POST", self.path(names.PLURAL) + "?fieldValidation=Strict", body)
        if not queue:
            await self.until(lambda: self.condition("Created") == "True", "Created")

    async def change(self, spec: Object) -> None:
        """Change the job as a user does."""
        await self.api.merge(self.path(names.PLURAL, JOB), {"spec": spec})

    async def scale(self, replicas: int) -> None:
        """Scale the workers as a user does."""
        await self.api.merge(self.path(names.PLURAL, JOB, "scale"), {"spec": {"replicas": replicas}})

    async def bring_up(self, workers: int = 1, standbys: int = 0) -> None:
        """Start all programs in sequence; the status reports each of them before the next one starts."""
        await self.run(names.PS)
        await self.until(lambda: self.role(names.PS).get("ready") == 1, "the PS is ready")
        if standbys:
            await self.run(names.PS, member=1)
            await self.until(lambda: self.shard.get("readyStandbys") == 1, "the standby is ready")
        for index in range(workers):
            await self.run(names.WORKER, index)
            await self.until(lambda i=index: self.role(names.WORKER).get("ready") == i + 1, f"worker {index} runs")  # type: ignore[misc]
        await self.run(names.CHIEF)
        await self.until(lambda: self.phase == "Running", "the job runs")

    async def run(self, role: str, index: int = 0, *, term: int = 0, member: int = 0, restarts: int = 0) -> None:
        """Start a pod's container."""
        pod = await self.pod(role, index, term, member)
        await self.write_status(pod, "Running", {"running": {"startedAt": _now()}}, restarts=restarts)

    async def crash(self, role: str, index: int = 0, code: int = 137) -> None:
        """End a pod's container, which the kubelet is about to restart."""
        terminated = {"exitCode": code, "reason": "Error", "finishedAt": _now(), "startedAt": _now(), "message": "test"}
        await self.write_status(await self.pod(role, index), "Running", {"terminated": terminated}, ready=False)

    async def end(self, role: str, index: int = 0, code: int = 0) -> None:
        """End a pod's container for good."""
        pod = await self.pod(role, index)
        reason = "Error" if code else "Completed"
        terminated = {"exitCode": code, "reason": reason, "finishedAt": _now(), "startedAt": _now(), "message": "test"}
        await self.write_status(pod, "Failed" if code else "Succeeded", {"terminated": terminated})

    async def write_status(
        self, pod: Object, phase: str, state: Object, *, ready: bool | None = None, restarts: int = 0
    ) -> None:
        """Write a pod's status as the kubelet does."""
        ready = phase == "Running" if ready is None else ready
        on = "True" if ready else "False"
        kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        status = {
            "phase": phase,
            "conditions": [{"type": k, "status": on, "lastTransitionTime": _now()} for k in kinds],
            "containerStatuses": [
                {
                    "name": c["name"],
                    "image": c["image"],
                    "imageID": "",
                    "ready": ready,
                    "restartCount": restarts,
                    "state": state,
                }
                for c in pod["spec"]["containers"]
            ],
        }
        await self.api.merge(self.path("pods", pod["metadata"]["name"], "status"), {"status": status})

    async def pod(self, role: str, index: int = 0, term: int = 0, member: int = 0) -> Object:
        """Return the newest pod of a task, once there is one that has not ended."""
        await self.until(lambda: self._pod(role, index, term, member) is not None, f"a pod of {role} {index} exists")
        found = self._pod(role, index, term, member)
        assert found is not None
        return found

    async def until(self, check: Callable[[], bool], what: str) -> None:
        """Wait until the condition holds for the watched objects."""
        await self.watched.until(check, what, STEP_SECONDS)

    async def stop_queue(self, policy: str) -> None:
        """Stop or resume the namespace's ClusterQueue, as an administrator does."""
        path = f"{QUEUE_API}/clusterqueues/{self.namespace}"
        await self.api.merge(path, {"spec": {"stopPolicy": policy}})

    @property
    def quota(self) -> Counter[str]:
        """Return the number of pods of each pod set that have quota."""
        return quota(self.watched.workloads(self.namespace))

    @property
    def status(self) -> Object:
        """Return the job's status."""
        return (self.watched.job(self.namespace) or {}).get("status") or {}

    @property
    def phase(self) -> str:
        """Return the job's phase."""
        return str(self.status.get("phase", ""))

    @property
    def shard(self) -> Object:
        """Return the status of the first shard."""
        return next(iter(self.status.get("shards") or ()), {})

    def role(self, role: str) -> Object:
        """Return a role's status."""
        return self.status.get(role) or {}

    def condition(self, kind: str) -> str:
        """Return the status of a condition."""
        return next((c["status"] for c in self.status.get("conditions") or () if c["type"] == kind), "")

    def pods(self, role: str = "") -> list[Object]:
        """Return the pods of a role."""
        return [p for p in self.watched.pods(self.namespace) if role in ("", p["metadata"]["labels"][names.LABEL_ROLE])]

    def _pod(self, role: str, index: int, term: int, member: int) -> Object | None:
        found = [
            p
            for p in self.pods(role)
            if int(identity(p)[1]) == index
            and term in (0, int(identity(p)[2]))
            and int(identity(p)[3]) == member
            and p.get("status", {}).get("phase") in (None, "Pending", "Running")
            and not p["metadata"].get("deletionTimestamp")
        ]
        return max(found, key=lambda p: int(p["metadata"]["resourceVersion"]), default=None)


def identity(pod: Object) -> tuple[str, str, str, str]:
    """Return role, index, term and member of a pod."""
    labels = pod["metadata"].get("labels") or {}
    index = labels.get(names.LABEL_INDEX) or labels.get(names.LABEL_POD_INDEX) or "0"
    return (
        labels.get(names.LABEL_ROLE, ""),
        index,
        labels.get(names.LABEL_TERM, "0"),
        labels.get(names.LABEL_MEMBER, "0"),
    )


def _now() -> str:
    return stamp(datetime.now(UTC))
