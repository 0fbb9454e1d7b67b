"""The few requests that commands make, with the user's own rights: in the current context, as kubectl plugins do."""

import json
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from pstraining.api import names
from pstraining.cli.errors import AbsentError, CommandError, explained

Object = dict[str, Any]
Found = TypeVar("Found")

FIELD_MANAGER = "kubectl-pstraining"
"""Who has set what commands write, in managedFields."""
PAGE = 500
"""Objects that are asked for at a time."""
PATIENCE = (5, 30)
"""Seconds until a connection is made, and until an answer comes."""


class Cluster(Protocol):
    """What commands ask of an API server."""

    namespace: str
    """The context's own."""

    def job(self, namespace: str, name: str) -> Object | None:
        """A PSTrainingJob; None if there is none."""

    def service(self, namespace: str, name: str) -> Object | None:
        """A Service; None if there is none."""

    def annotate(self, namespace: str, name: str, annotations: dict[str, str]) -> None:
        """Write annotations of a PSTrainingJob."""

    def apply(self, job: Object, *, dry_run: bool = False, force: bool = False) -> Object:
        """Apply a PSTrainingJob server-side, strictly; what is stored then. Raises ConflictError unless forced."""

    def patch(self, namespace: str, name: str, change: Object) -> Object:
        """Change a PSTrainingJob by a merge patch; what is stored then."""

    def scale(self, namespace: str, name: str, workers: int) -> None:
        """Set a PSTrainingJob's number of workers, by the right to scale it."""

    def read(self, path: str) -> Any:
        """What is at a path of the API server, JSON or text; None if there is nothing. Raises DeniedError."""

    def listed(self, path: str, **query: str) -> list[Object]:
        """All objects of a collection. Raises DeniedError."""

    def allowed(self, verb: str, resource: str, namespace: str, subresource: str = "") -> bool:
        """Whether the user may do that to the PSTrainingJobs, or another resource of their group, of a namespace."""


class KubeconfigCluster:
    """The cluster of one of the kubeconfig's contexts."""

    def __init__(self, context: str | None = None) -> None:
        """Read the kubeconfig.

        Args:
            context: the context's name; the current one if not given.

        Raises:
            CommandError: there is no kubeconfig, or no such context in it.
        """
        from kubernetes import client, config
        from yaml import YAMLError

        load: Any = config.load_kube_config  # untyped upstream
        contexts: Any = config.list_kube_config_contexts
        try:
            load(context=context)
            known, chosen = contexts()
        except (config.ConfigException, YAMLError) as error:
            why = " ".join(str(error).split()).rstrip(".")
            raise CommandError(f"No cluster: {why}. Set KUBECONFIG, or choose another --context.") from error
        if context is not None:
            chosen = next(c for c in known if c["name"] == context)
        self.namespace = str(chosen["context"].get("namespace") or "default")
        self._jobs: Any = client.CustomObjectsApi()
        self._core: Any = client.CoreV1Api()

    def job(self, namespace: str, name: str) -> Object | None:
        """A PSTrainingJob; None if there is none."""
        where = (names.GROUP, names.VERSION, namespace, names.PLURAL, name)
        found: Object | None = _told(lambda: self._jobs.get_namespaced_custom_object(*where, _request_timeout=PATIENCE))
        return found

    def service(self, namespace: str, name: str) -> Object | None:
        """A Service; None if there is none."""
        found = _told(lambda: self._core.read_namespaced_service(name, namespace, _request_timeout=PATIENCE))
        return None if found is None else dict(self._core.api_client.sanitize_for_serialization(found))

    def annotate(self, namespace: str, name: str, annotations: dict[str, str]) -> None:
        """Write annotations of a PSTrainingJob."""
        body = {"metadata": {"annotations": annotations}}
        where = (names.GROUP, names.VERSION, namespace, names.PLURAL, name)
        _told(lambda: self._jobs.patch_namespaced_custom_object(*where, body, _request_timeout=PATIENCE))

    def apply(self, job: Object, *, dry_run: bool = False, force: bool = False) -> Object:
        """Apply a PSTrainingJob server-side, strictly; what is stored then."""
        path = job_path(job["metadata"]["namespace"], job["metadata"]["name"])
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        query |= ({"dryRun": "All"} if dry_run else {}) | ({"force": "true"} if force else {})
        applied: Object = self._request("PATCH", path, query, job, "application/apply-patch+yaml")
        return applied

    def patch(self, namespace: str, name: str, change: Object) -> Object:
        """Change a PSTrainingJob by a merge patch; what is stored then."""
        patched: Object = self._merge(job_path(namespace, name), change)
        return patched

    def scale(self, namespace: str, name: str, workers: int) -> None:
        """Set a PSTrainingJob's number of workers, by the right to scale it."""
        self._merge(f"{job_path(namespace, name)}/scale", {"spec": {"replicas": workers}})

    def read(self, path: str) -> Any:
        """What is at a path of the API server, JSON or text; None if there is nothing."""
        return _told(lambda: self._request("GET", path))

    def listed(self, path: str, **query: str) -> list[Object]:
        """All objects of a collection."""
        found: list[Object] = []
        page: Object = {"metadata": {"continue": ""}}
        while True:
            page = self._request("GET", path, {"limit": str(PAGE), "continue": page["metadata"]["continue"], **query})
            found += page["items"]
            if not page["metadata"].get("continue"):
                return found

    def allowed(self, verb: str, resource: str, namespace: str, subresource: str = "") -> bool:
        """Whether the user may do that to the PSTrainingJobs of a namespace."""
        asked = {"verb": verb, "group": names.GROUP, "resource": resource, "subresource": subresource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**asked, "namespace": namespace}},
        }
        answer = self._request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {}, review)
        return bool(answer["status"]["allowed"])

    def _merge(self, path: str, change: Object) -> Any:
        return self._request("PATCH", path, {"fieldManager": FIELD_MANAGER}, change, "application/merge-patch+json")

    def _request(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Any:
        """One request, whose answer is read as it is: the client's models cost more than what is looked at here."""
        from kubernetes.client.exceptions import ApiException

        api = self._core.api_client
        headers = {"Accept": "application/json", "Content-Type": content_type}
        parts = {"query_params": list((query or {}).items()), "header_params": headers, "body": body}
        request = api.param_serialize(method=method, resource_path=path, auth_settings=["BearerToken"], **parts)

        def send() -> Any:
            answer = api.call_api(*request, _request_timeout=PATIENCE)
            text = answer.read().decode(errors="replace")
            if answer.status >= 400:
                raise ApiException(status=answer.status, reason=answer.reason, body=text)
            is_json = str(answer.headers.get("Content-Type", "")).startswith("application/json")
            return json.loads(text) if is_json else text

        return _asked(send)


def existing(cluster: Cluster, namespace: str, name: str) -> Object:
    """A PSTrainingJob that is there.

    Raises:
        CommandError: it is not.
    """
    job = cluster.job(namespace, name)
    if job is None:
        raise CommandError(f"There is no PSTrainingJob {name} in namespace {namespace}.")
    return job


def job_path(namespace: str, name: str) -> str:
    """Where a PSTrainingJob is."""
    return f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}/{name}"


def _asked(request: Callable[[], Found]) -> Found:
    """The request's answer; a refusal is an error that says what to do."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        return request()
    except ApiException as error:
        raise explained(error.status or 0, error.body or error.reason or "") from error
    except HTTPError as error:
        raise CommandError(f"The API server does not answer: {getattr(error, 'reason', None) or error}") from error


def _told(request: Callable[[], Found]) -> Found | None:
    """The request's answer, None where there is no such object."""
    try:
        return _asked(request)
    except AbsentError:
        return None
