"""Fake clusters for tests of `doctor`: an operator is installed, and parts of it cannot be read."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

from pstraining import __version__
from pstraining.api.crd import custom_resource_definition
from pstraining.cli.errors import DeniedError
from tests.support.job_cluster import JobCluster
from tests.support.simulation import World

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)


def definition() -> dict[str, Any]:
    made = copy.deepcopy(custom_resource_definition())
    made["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
    return made


def deployment(namespaces: str = "", ready: int = 1, version: str = __version__) -> dict[str, Any]:
    settings = {
        "PSTRAINING_NAMESPACES": namespaces,
        "PSTRAINING_LEASE_NAME": "the-lease",
        "PSTRAINING_METRICS_PORT": "8080",
    }
    container = {
        "name": "operator",
        "image": f"pstraining/operator:{version}",
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            *({"name": n, "value": v} for n, v in settings.items()),
        ],
    }
    return {
        "metadata": {"name": "op", "namespace": "sys", "labels": {"app.kubernetes.io/version": version}},
        "spec": {"template": {"spec": {"containers": [container]}}},
        "status": {"readyReplicas": ready},
    }


def lease(ago: float = 3, holder: str = "op-1") -> dict[str, Any]:
    renewed = (NOW - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}}


def node(name: str, cpu: str = "4", memory: str = "8Gi", ready: str = "True", **spec: Any) -> dict[str, Any]:
    status = {"allocatable": {"cpu": cpu, "memory": memory}, "conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"name": name}, "spec": spec, "status": status}


class Installation(JobCluster):
    """A cluster that answers a few paths; it rejects some requests, and leaves others without an answer."""

    def __init__(self, denied: tuple[str, ...] = ()) -> None:
        super().__init__(World(None))
        self.denied = denied
        self.paths: dict[str, Any] = {
            "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.1"},
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pstrainingjobs.pstraining.dev": definition(),
            "/apis/pstraining.dev/v1alpha1": {"kind": "APIResourceList"},
            "/apis/apps/v1/deployments": [deployment()],
            "/apis/apps/v1/namespaces/pstraining-system/deployments": [deployment()],
            "/apis/coordination.k8s.io/v1/namespaces/sys/leases/the-lease": lease(),
            "/api/v1/namespaces/sys/pods/op-1:8080/proxy/metrics": "pstraining_jobs 1",
            "/api/v1/namespaces/team": {"kind": "Namespace"},
            "/api/v1/nodes": [node("a"), node("b")],
            "/apis/storage.k8s.io/v1/storageclasses": [],
        }

    def read(self, path: str) -> Any:
        if any(word in path for word in self.denied):
            raise DeniedError(f"eve may not read {path}")
        return self.paths.get(path)

    def listed(self, path: str, **query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.read(path) or []
        return found
