"""The loads: numbers of jobs, parameter servers and workers, on KWOK's fake nodes."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pstraining.api import names
from pstraining.core.actions import Create
from pstraining.core.facts import gather
from pstraining.core.observe import observe
from pstraining.core.planner import plan
from pstraining.launcher import launcher_files, launcher_version
from pstraining.resources.launcher import LauncherFiles

UID = "00000000-0000-4000-8000-000000000000"
"""Placeholder of a job's uid in children that are rendered before the job exists."""


@dataclass(frozen=True)
class Shape:
    """A number of jobs of equal size."""

    jobs: int
    ps: int
    workers: int

    @property
    def name(self) -> str:
        """Return the load as text."""
        return f"{self.jobs} x ({self.ps}+{self.workers})"

    @property
    def children(self) -> int:
        """Number of objects that the operator creates for the load."""
        return self.jobs * len(rendered(job("any", "any", self.ps, self.workers)))

    def manifests(self, namespace: str) -> list[dict[str, Any]]:
        """Return the jobs."""
        return [job(namespace, f"b-{number}", self.ps, self.workers) for number in range(self.jobs)]


def job(namespace: str, name: str, ps: int, workers: int, *, chief: bool = False) -> dict[str, Any]:
    """Return a job on fake nodes. A job that must keep running has no chief: KWOK completes a Job's pods at once."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "ps": {"replicas": ps},
            "chief": {"enabled": chief},
            "worker": {
                "replicas": workers,
                "template": {
                    "spec": {
                        "nodeSelector": {"type": "kwok"},
                        "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
                        "containers": [{"name": "tensorflow", "image": "fake", "command": ["fake"]}],
                    }
                },
            },
        },
    }


def rendered(manifest: dict[str, Any], uid: str = UID) -> list[Create]:
    """Return the objects that the operator would create for a job as stored by the API server."""
    found = {**manifest, "metadata": {**manifest["metadata"], "uid": uid, "generation": 1, "resourceVersion": "1"}}
    launcher = LauncherFiles(version=launcher_version(), files=launcher_files())
    made = plan(gather(observe(found, (), ()), datetime.now(UTC)), launcher).actions
    return [action for action in made if isinstance(action, Create)]
