"""A small synchronous client for tests on a real cluster: objects as dicts, waiting on conditions with a deadline.

Tests use a cluster only if it was named: by PSTRAINING_CONTEXT and KUBECONFIG, or as the cluster of `localcluster`.
"""

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import urllib3
from kubernetes import client, config

Object = dict[str, Any]
T = TypeVar("T")
DEADLINE = 180.0
"""Default deadline of a condition, in seconds, on a busy machine."""

_PATHS = {
    "Namespace": ("/api/v1", "namespaces"),
    "Pod": ("/api/v1", "pods"),
    "Service": ("/api/v1", "services"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "PersistentVolume": ("/api/v1", "persistentvolumes"),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Event": ("/apis/events.k8s.io/v1", "events"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "Job": ("/apis/batch/v1", "jobs"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "PodGroup": ("/apis/scheduling.x-k8s.io/v1alpha1", "podgroups"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "Node": ("/api/v1", "nodes"),
    "PSTrainingJob": ("/apis/pstraining.dev/v1alpha1", "pstrainingjobs"),
    "Workload": ("/apis/kueue.x-k8s.io/v1beta2", "workloads"),
    "ClusterQueue": ("/apis/kueue.x-k8s.io/v1beta2", "clusterqueues"),
    "CustomResourceDefinition": ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
}
_CLUSTER_WIDE = {"Namespace", "PersistentVolume", "Node", "ClusterQueue", "CustomResourceDefinition"}
CHILD_KINDS = (
    "StatefulSet",
    "Deployment",
    "Job",
    "Service",
    "ConfigMap",
    "NetworkPolicy",
    "PersistentVolumeClaim",
    "Pod",
)


class ApiError(Exception):
    """The API server rejected a request."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        try:
            self.message = str(json.loads(text).get("message", text))
        except (ValueError, AttributeError):
            self.message = text


class DeadlineError(AssertionError):
    """A condition did not become true before its deadline."""


def wait_for(check: Callable[[], T | None], what: str, seconds: float = DEADLINE, every: float | None = None) -> T:
    """Return the first truthy result of `check`; fail with `what` after the deadline.

    The interval between two checks grows with the time, unless it is given, because requests load the API server.
    """
    began = time.monotonic()
    deadline = began + seconds
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > deadline:
            raise DeadlineError(f"not within {seconds:.0f} s: {what}")
        time.sleep(every or min(0.3, 0.1 + 0.02 * (time.monotonic() - began)))


def _text(answer: urllib3.BaseHTTPResponse) -> str:
    """Return the response's text; raises ApiError if the request was rejected."""
    text = answer.data.decode()
    if answer.status >= 400:
        raise ApiError(answer.status, text)
    return text


@dataclass(frozen=True)
class Target:
    """The cluster that tests may use."""

    kubeconfig: str
    context: str


class Kube:
    """Requests to one API server."""

    def __init__(self, target: Target) -> None:
        self.target = target
        configuration = client.Configuration()
        load: Any = config.load_kube_config  # untyped upstream
        load(target.kubeconfig, context=target.context, client_configuration=configuration)
        self.host = configuration.host
        self.configuration = configuration
        self._pool = urllib3.PoolManager(
            ca_certs=configuration.ssl_ca_cert,
            cert_file=configuration.cert_file,
            key_file=configuration.key_file,
            timeout=urllib3.Timeout(30),
            maxsize=8,
        )

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", **query: str
    ) -> Any:
        """Send one request, and return the decoded JSON."""
        answer = self._pool.request(
            method,
            self.host + path,
            fields=query or None if method in ("GET", "DELETE") else None,
            body=None if body is None else json.dumps(body),
            headers={"Content-Type": content_type, "Accept": "application/json"},
        )
        text = _text(answer)
        return json.loads(text) if text else {}

    def path(self, kind: str, namespace: str = "", name: str = "", sub: str = "") -> str:
        """Return the path of an object or a list."""
        base, plural = _PATHS[kind]
        where = "" if kind in _CLUSTER_WIDE or not namespace else f"/namespaces/{namespace}"
        return "/".join(p for p in (f"{base}{where}/{plural}", name, sub) if p)

    def create(self, body: Object, *, strict: bool = True) -> Object:
        """POST an object."""
        path = self.path(body["kind"], body["metadata"].get("namespace", ""))
        mode = "?fieldValidation=Strict" if strict else ""
        created: Object = self.request("POST", path + mode, body)
        return created

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return an object, or None."""
        try:
            found: Object = self.request("GET", self.path(kind, namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return found

    def list(self, kind: str, namespace: str = "", selector: str = "") -> list[Object]:
        """Return all objects of a kind."""
        query = {"labelSelector": selector} if selector else {}
        items: list[Object] = self.request("GET", self.path(kind, namespace), **query)["items"]
        return [{"kind": kind, **item} for item in items]

    def merge(self, kind: str, namespace: str, name: str, body: Object, sub: str = "") -> Object:
        """Apply a merge patch to an object."""
        path = self.path(kind, namespace, name, sub)
        patched: Object = self.request("PATCH", path, body, "application/merge-patch+json")
        return patched

    def delete(self, kind: str, namespace: str, name: str, *, grace: int | None = None) -> None:
        """Delete an object; it may be absent."""
        body = {"propagationPolicy": "Background"} | ({} if grace is None else {"gracePeriodSeconds": grace})
        try:
            self.request("DELETE", self.path(kind, namespace, name), body)
        except ApiError as error:
            if error.status != 404:
                raise

    def log(self, namespace: str, pod: str, *, previous: bool = False) -> str:
        """Return a pod's log."""
        query = "?previous=true" if previous else ""
        path = self.path("Pod", namespace, pod, "log") + query
        answer = self._pool.request("GET", self.host + path)
        return answer.data.decode(errors="replace")

    def scrape(self, namespace: str, pod: str, port: int) -> str:
        """Return a pod's metrics, scraped through the API server."""
        path = self.path("Pod", namespace, f"{pod}:{port}", "proxy/metrics")
        return _text(self._pool.request("GET", self.host + path))

    @contextmanager
    def namespace(self, prefix: str, *, pod_security: str = "restricted") -> Iterator[str]:
        """Create a namespace that enforces the Pod Security Standard `restricted`; it is deleted afterwards."""
        name = f"{prefix}-{uuid.uuid4().hex[:6]}"
        labels = {"pod-security.kubernetes.io/enforce": pod_security}
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        wait_for(lambda: self._has_account(name), f"the default service account of namespace {name}")
        try:
            yield name
        finally:
            self.delete("Namespace", "", name)
            # Volumes belong to no namespace; those that share() has created are named after theirs.
            for volume in self.list("PersistentVolume", selector="pstraining-test=true"):
                if volume["spec"]["claimRef"]["namespace"] == name:
                    self.delete("PersistentVolume", "", volume["metadata"]["name"])

    def _has_account(self, namespace: str) -> bool:
        try:
            self.request("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
        except ApiError:
            return False
        return True


def named_target() -> Target | None:
    """Return the cluster that was named, if any.

    Raises:
        RuntimeError: a kubeconfig without its context: no cluster is used by accident.
    """
    kubeconfig, context = os.environ.get("KUBECONFIG", ""), os.environ.get("PSTRAINING_CONTEXT", "")
    if context:
        if not kubeconfig:
            raise RuntimeError("PSTRAINING_CONTEXT is set without KUBECONFIG: set both or neither")
        return Target(kubeconfig, context)
    return None


def job_condition(job: Object | None, kind: str) -> Object:
    """Return a condition of a job, or an empty one."""
    conditions = ((job or {}).get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == kind), {"status": "", "reason": "", "message": ""})
