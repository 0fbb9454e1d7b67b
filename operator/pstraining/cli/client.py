"""The API client of the commands: the requests that they need, with the user's cluster, identity and rights."""

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final, Protocol
from urllib.parse import quote

import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError

from pstraining.api import names
from pstraining.api.container_logs import kubelet_error
from pstraining.cli.connection import access, kubeconfig
from pstraining.cli.connection.overrides import Overrides
from pstraining.cli.connection.session import HttpSession
from pstraining.cli.connection.unreachable import unreachable_message
from pstraining.cli.errors import AbsentError, ArgumentError, RequestError, refusal

Object = dict[str, Any]
FIELD_MANAGER: Final = "kubectl-pstraining"
"""The field manager of the commands' writes."""
PAGE: Final = 500
"""Maximum number of objects in one page of a list."""
CONNECT_SECONDS: Final = 10
READ_SECONDS: Final = 60


class ClusterClient(Protocol):
    """The API server's operations that commands use."""

    namespace: str
    """The namespace of the kubeconfig's context."""

    def job(self, namespace: str, name: str) -> Object | None:
        """Return a PSTrainingJob, or None if it does not exist."""

    def service(self, namespace: str, name: str) -> Object | None:
        """Return a Service, or None if it does not exist."""

    def annotate(self, namespace: str, name: str, annotations: dict[str, str]) -> None:
        """Write annotations of a PSTrainingJob."""

    def jobs(self, namespace: str | None) -> list[Object]:
        """Return the PSTrainingJobs of a namespace, or of all namespaces if it is None."""

    def pods(self, namespace: str, job: str) -> list[Object]:
        """Return the pods whose label names the job."""

    def events(self, namespace: str, uid: str) -> list[Object]:
        """Return one object's events in the shape of core/v1, unordered."""

    def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        """Yield the lines of a container's log as they arrive.

        Args:
            namespace: namespace of the pod.
            pod: name of the pod.
            query: parameters of the API's `log` subresource, such as container, follow and tailLines.

        Raises:
            RequestError: the log is not available; status 400 before the container starts, 404 without the pod,
                0 after a broken connection.
        """

    def metrics(self, namespace: str, pod: str, port: int, seconds: float = CONNECT_SECONDS) -> str:
        """Scrape a pod's metrics through the API server's proxy and return their text.

        Raises:
            RequestError: the pod did not respond within `seconds`, or the scrape failed.
        """

    def apply(self, job: Object, *, dry_run: bool = False, force: bool = False) -> Object:
        """Apply a PSTrainingJob server-side and return the stored object. Raises ConflictError unless forced."""

    def patch(self, namespace: str, name: str, change: Object) -> Object:
        """Change a PSTrainingJob with a merge patch and return the stored object.

        Raises:
            RequestError: for example, with status 422, the change has another metadata.uid than the job.
        """

    def create(self, api: str, plural: str, body: Object) -> Object:
        """Create an object and return the stored one. Raises ConflictError if the name is taken."""

    def delete(self, namespace: str, name: str, uid: str) -> None:
        """Delete a PSTrainingJob; its children are deleted in the background.

        Raises:
            ConflictError: the job with the name has another uid.
        """

    def scale(self, namespace: str, name: str, workers: int, version: str = "") -> None:
        """Set a PSTrainingJob's number of workers through its scale subresource.

        Raises:
            ConflictError: `version` is given, and the job has another resourceVersion.
        """

    def read(self, path: str) -> Any:
        """Return the JSON or text at a path, or None if it does not exist. Raises DeniedError."""

    def listed(self, path: str, **query: str) -> list[Object]:
        """Return all objects of a collection. Raises DeniedError."""

    def allowed(self, verb: str, resource: str, namespace: str, subresource: str = "") -> bool:
        """Return whether the user may apply a verb to a resource of the PSTrainingJobs' API group in a namespace."""


class KubeconfigClient:
    """A client of the cluster that kubectl would use, with the same identity."""

    def __init__(self, overrides: Overrides | None = None) -> None:
        """Select the cluster and the identity of requests.

        Args:
            overrides: the values of the connection's options.

        Raises:
            CommandError: the kubeconfig cannot be used.
        """
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        overrides = overrides or Overrides()
        config = kubeconfig.load(overrides, os.environ)
        self._access = access.chosen(config, overrides, access.Surroundings(os.environ, access.SERVICE_ACCOUNT))
        self._session = HttpSession(self._access)
        self.namespace = self._access.namespace
        limit = self._access.seconds
        self._seconds = READ_SECONDS if limit is None else limit or None
        """Maximum time of one response; None without a limit."""

    def job(self, namespace: str, name: str) -> Object | None:
        """Return a PSTrainingJob, or None if it does not exist."""
        found: Object | None = self.read(_job(namespace, name))
        return found

    def service(self, namespace: str, name: str) -> Object | None:
        """Return a Service, or None if it does not exist."""
        found: Object | None = self.read(_core(namespace, f"services/{quoted(name)}"))
        return found

    def annotate(self, namespace: str, name: str, annotations: dict[str, str]) -> None:
        """Write annotations of a PSTrainingJob."""
        self._merge(_job(namespace, name), {"metadata": {"annotations": annotations}})

    def jobs(self, namespace: str | None) -> list[Object]:
        """Return the PSTrainingJobs of a namespace, or of all namespaces if it is None."""
        where = "" if namespace is None else f"/namespaces/{quoted(namespace)}"
        return self.listed(f"/apis/{names.API_VERSION}{where}/{names.PLURAL}")

    def pods(self, namespace: str, job: str) -> list[Object]:
        """Return the pods whose label names the job."""
        return self.listed(_core(namespace, "pods"), labelSelector=f"{names.LABEL_JOB}={job}")

    def events(self, namespace: str, uid: str) -> list[Object]:
        """Return one object's events in the shape of core/v1, unordered."""
        return self.listed(_core(namespace, "events"), fieldSelector=f"involvedObject.uid={uid}")

    def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        """Yield the lines of a container's log as they arrive.

        Raises:
            RequestError: the request failed, or the kubelet does not find the log.
        """
        # `follow` waits for the next line without a time limit.
        seconds = None if "follow" in query else self._seconds
        answer = self._get(_core(namespace, f"pods/{pod}/log"), query, seconds)
        with self._reported_errors():
            yield from _checked(lines(answer.stream()))

    def metrics(self, namespace: str, pod: str, port: int, seconds: float = CONNECT_SECONDS) -> str:
        """Scrape a pod's metrics through the API server's proxy and return their text."""
        seconds = min(seconds, self._seconds or seconds)
        answer = self._get(_core(namespace, f"pods/{pod}:{port}/proxy/metrics"), {}, seconds)
        with self._reported_errors():
            return str(answer.data.decode(errors="replace"))

    def apply(self, job: Object, *, dry_run: bool = False, force: bool = False) -> Object:
        """Apply a PSTrainingJob server-side, with strict validation, and return the stored object."""
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        query |= ({"dryRun": "All"} if dry_run else {}) | ({"force": "true"} if force else {})
        path = _job(job["metadata"]["namespace"], job["metadata"]["name"])
        return self._sent("PATCH", path, job, "application/apply-patch+yaml", query)

    def patch(self, namespace: str, name: str, change: Object) -> Object:
        """Change a PSTrainingJob with a merge patch and return the stored object."""
        return self._merge(_job(namespace, name), change)

    def create(self, api: str, plural: str, body: Object) -> Object:
        """Create an object, with strict validation, and return the stored one."""
        path = f"{api}/namespaces/{quoted(body['metadata']['namespace'])}/{plural}"
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        return self._sent("POST", path, body, "application/json", query)

    def delete(self, namespace: str, name: str, uid: str) -> None:
        """Delete a PSTrainingJob; its children are deleted in the background."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        self._sent("DELETE", _job(namespace, name), body, "application/json", {})

    def scale(self, namespace: str, name: str, workers: int, version: str = "") -> None:
        """Set a PSTrainingJob's number of workers through its scale subresource."""
        change: Object = {"spec": {"replicas": workers}}
        if version:  # the subresource ignores the uid
            change["metadata"] = {"resourceVersion": version}
        self._merge(f"{_job(namespace, name)}/scale", change)

    def read(self, path: str) -> Any:
        """Return the JSON or text at a path, or None if it does not exist."""
        try:
            answer = self._get(path, {}, self._seconds)
        except AbsentError:
            return None
        if str(answer.headers.get("Content-Type", "")).startswith("text/"):
            with self._reported_errors():
                return answer.data.decode(errors="replace")
        return self._json(answer)

    def listed(self, path: str, **query: str) -> list[Object]:
        """Return all objects of a collection, page by page; all at once if the state of the first page is compacted."""
        found, paged = list[Object](), {**query, "limit": str(PAGE)}
        while True:
            try:
                page = self._json(self._get(path, paged, self._seconds))
            except RequestError as error:
                if error.status != 410 or not paged.get("continue"):
                    raise
                page, found = self._json(self._get(path, query, self._seconds)), []
            if not isinstance(page, dict) or "items" not in page:
                raise self._not_kubernetes()
            found += page["items"]
            paged["continue"] = (page.get("metadata") or {}).get("continue", "")
            if not paged["continue"]:
                return found

    def allowed(self, verb: str, resource: str, namespace: str, subresource: str = "") -> bool:
        """Return whether the user may apply a verb to a resource of the PSTrainingJobs' API group in a namespace."""
        asked = {"verb": verb, "group": names.GROUP, "resource": resource, "subresource": subresource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**asked, "namespace": namespace}},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return bool(self._sent("POST", path, review, "application/json", {})["status"]["allowed"])

    def _merge(self, path: str, change: Object) -> Object:
        return self._sent("PATCH", path, change, "application/merge-patch+json", {"fieldManager": FIELD_MANAGER})

    def _sent(self, method: str, path: str, body: Object, kind: str, query: Mapping[str, str]) -> Object:
        found: Object = self._json(self._request(method, path, query, self._seconds, {"Content-Type": kind}, body))
        return found

    def _get(self, path: str, query: Mapping[str, str], seconds: float | None) -> Any:
        return self._request("GET", path, query, seconds)

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        seconds: float | None,
        headers: Mapping[str, str] | None = None,
        body: Object | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """Send a request and return its response, whose body is not read yet."""
        accepted = {"Accept": "application/json, */*", **(headers or {})}
        sent = None if body is None else json.dumps(body).encode()
        with self._reported_errors():
            answer = self._session.request(method, path, query, seconds, accepted, sent)
            if answer.status >= 400:
                raise refusal(answer.status, answer.data, path)
        return answer

    def _json(self, answer: urllib3.BaseHTTPResponse) -> Any:
        with self._reported_errors():
            try:
                return json.loads(answer.data)
            except ValueError as error:
                raise self._not_kubernetes() from error

    def _not_kubernetes(self) -> RequestError:
        return RequestError(f"{self._access} does not respond like a Kubernetes API server.")

    @contextmanager
    def _reported_errors(self) -> Iterator[None]:
        """Turn urllib3's errors into a RequestError for users."""
        try:
            yield
        except HTTPError as error:
            why = error.reason if isinstance(error, MaxRetryError) else error
            raise RequestError(unreachable_message(self._access, why)) from error


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield whole lines from chunks of any size. Bytes that are not UTF-8 are replaced."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def _checked(log: Iterator[str]) -> Iterator[str]:
    """Yield the lines of a log; raise RequestError if the only one is an error of the kubelet."""
    first = next(log, None)
    if first is None:
        return
    if kubelet_error(first):
        second = next(log, None)
        if second is None:
            raise RequestError(f"the kubelet does not find the log: {first}", 404)
        log = chain([second], log)
    yield first
    yield from log


def _job(namespace: str, name: str) -> str:
    """Return the path of a PSTrainingJob."""
    return f"/apis/{names.API_VERSION}/namespaces/{quoted(namespace)}/{names.PLURAL}/{quoted(name)}"


def _core(namespace: str, rest: str) -> str:
    """Return a path in a namespace of the core API."""
    return f"/api/v1/namespaces/{quoted(namespace)}/{rest}"


def quoted(name: str) -> str:
    """Return user input, quoted as one segment of a path. Bytes that are not UTF-8 stay, as in kubectl.

    Raises:
        ArgumentError: the input would change the path. The rule is kubectl's.
    """
    if name in (".", "..") or "/" in name or "%" in name:
        raise ArgumentError(f"{name!r} is not a name: a name is not . or .., and has no / and no %.")
    return quote(name, safe="", errors="surrogateescape")
