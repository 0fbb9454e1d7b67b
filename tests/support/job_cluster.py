"""A cluster as commands see it: one job in a simulated world, whose operator acts while the command waits."""

from typing import Any

from pstraining.cli.errors import AbsentError, CommandError
from pstraining.cli.waiting import Patience
from pstraining.kube.events import CONTROLLER
from pstraining.kube.paths import RESOURCES
from tests.support.builders import UID, deep_merge
from tests.support.cli_cluster import Nowhere
from tests.support.copying import copied
from tests.support.simulation import World

Object = dict[str, Any]


class JobCluster(Nowhere):
    """A cluster in memory, which records requests in `asked`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.away = False
        """Whether the operator is stopped."""
        self.refusal: CommandError | None = None
        """The API server's answer to every write."""
        self.asked: list[tuple[str, Any]] = []
        self.reported: list[str] = []
        self.now = 0.0

    @property
    def patience(self) -> Patience:
        """Return a deadline of ten seconds, on a clock that only `sleep` moves."""
        return Patience(10, lambda: self.now, self.sleep, self.reported.append)

    def sleep(self, seconds: float) -> None:
        """Advance the clock, and let the operator act."""
        self.now += seconds
        if not self.away and self.world.job is not None:
            self.world.settle()

    def job(self, namespace: str, name: str) -> Object | None:
        """Return the job."""
        found = self.world.job
        if found is None or (namespace, name) != ("default", found["metadata"]["name"]):
            return None
        return copied(found)

    def jobs(self, namespace: str | None) -> list[Object]:
        """Return a list of the job only."""
        return [self.world.job] if self.world.job and namespace == "default" else []

    def events(self, namespace: str, uid: str) -> list[Object]:
        """Return the job's events, which outlive it."""
        of_operator = {"reportingComponent": CONTROLLER}
        return [{**of_operator, "reason": e.reason, "message": e.message} for e in self.world.reported]

    def service(self, namespace: str, name: str) -> Object | None:
        """Return a Service of the job."""
        return self.world.children.get(("Service", name))

    def annotate(self, namespace: str, name: str, annotations: dict[str, str]) -> None:
        """Write annotations to the job."""
        self._existing()["metadata"]["annotations"] = annotations

    def apply(self, job: Object, *, dry_run: bool = False, force: bool = False) -> Object:
        """Replace the job's whole spec by the applied one."""
        self._write("apply", {"dry_run": dry_run, "force": force})
        fresh = {"metadata": {"uid": UID, "generation": 0}}
        before = self.job("default", job["metadata"]["name"]) or fresh
        stored = copied(deep_merge(before, job))
        stored["spec"] = copied(job["spec"])
        stored["metadata"]["generation"] += stored["spec"] != before.get("spec")
        if not dry_run:
            self.world.job = stored
        return copied(stored)

    def patch(self, namespace: str, name: str, change: Object) -> Object:
        """Patch the job's spec."""
        self._write("patch", change)
        self.world.edit(change["spec"])
        return copied(self._existing())

    def scale(self, namespace: str, name: str, workers: int, version: str = "") -> None:
        """Change the number of workers."""
        self._write("scale", workers)
        self.world.edit({"worker": {"replicas": workers}})

    def read(self, path: str) -> Any:
        """Return nothing: no other object exists."""
        return None

    def listed(self, path: str, **query: str) -> list[Object]:
        """Return the job's objects of a kind; like the API server's, the items have no kind of their own."""
        kinds = {kind for kind, place in RESOURCES.items() if place.path("default") == path}
        found = (body for (kind, _), body in self.world.children.items() if kind in kinds)
        return [copied({k: v for k, v in body.items() if k not in ("apiVersion", "kind")}) for body in found]

    def pods(self, namespace: str, job: str) -> list[Object]:
        """Return the job's pods."""
        return copied(list(self.world.pods.values()))

    def allowed(self, verb: str, resource: str, namespace: str, subresource: str = "") -> bool:
        """Return that everything is allowed."""
        return True

    def _write(self, verb: str, what: Any) -> None:
        self.asked.append((verb, what))
        if self.refusal is not None:
            raise self.refusal

    def _existing(self) -> Object:
        if self.world.job is None:
            raise AbsentError("there is no such job", 404)
        return self.world.job
