"""The few requests that commands make, with the user's own rights, cluster and identity, as kubectl has them."""

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol
from urllib.parse import quote

import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError, SSLError

from pstraining.api import names
from pstraining.cli.connection import access, kubeconfig
from pstraining.cli.connection.overrides import Overrides
from pstraining.cli.connection.session import HttpSession
from pstraining.cli.errors import AbsentError, RequestError, refusal

Object = dict[str, Any]
FIELD_MANAGER: Final = "kubectl-pstraining"
"""The manager, in managedFields, of the fields that commands write."""
PAGE: Final = 500
"""Objects in one answer of a list."""
CONNECT_SECONDS: Final = 10
READ_SECONDS: Final = 60


class ClusterClient(Protocol):
    """What commands ask of an API server."""

    namespace: str
    """The context's own."""

    def job(self, namespace: str, name: str) -> Object | None:
        """A PSTrainingJob; None if there is none."""

    def service(self, namespace: str, name: str) -> Object | None:
        """A Service; None if there is none."""

    def annotate(self, namespace: str, name: str, annotations: dict[str, str]) -> None:
        """Write annotations of a PSTrainingJob."""

    def jobs(self, namespace: str | None) -> list[Object]:
        """All PSTrainingJobs of a namespace; of all namespaces if it is None."""

    def pods(self, namespace: str, job: str) -> list[Object]:
        """The pods that carry the job's name as a label."""

    def events(self, namespace: str, uid: str) -> list[Object]:
        """The events of one object, in core/v1's shape and in no order."""

    def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        """The lines of a container's log, as they come.

        Args:
            namespace: the pod's.
            pod: its name.
            query: the parameters of the API's `log` subresource, such as container, follow and tailLines.

        Raises:
            RequestError: there are none (400 while the container has not started, 404 without the pod), or the
                connection broke (0).
        """

    def metrics(self, namespace: str, pod: str, port: int, seconds: float = CONNECT_SECONDS) -> str:
        """What a pod answers to a scrape of its metrics within some seconds, by way of the API server.

        Raises:
            RequestError: it answers nothing, or not what a scrape gets; its message says why.
        """

    def apply(self, job: Object, *, dry_run: bool = False, force: bool = False) -> Object:
        """Apply a PSTrainingJob server-side, strictly; what is stored then. Raises ConflictError unless forced."""

    def patch(self, namespace: str, name: str, change: Object) -> Object:
        """Change a PSTrainingJob by a merge patch; what is stored then."""

    def create(self, api: str, plural: str, body: Object) -> Object:
        """Create an object, strictly; what is stored then. Raises ConflictError if there is one of its name."""

    def delete(self, namespace: str, name: str) -> None:
        """Delete a PSTrainingJob; its children go after it."""

    def scale(self, namespace: str, name: str, workers: int) -> None:
        """Set a PSTrainingJob's number of workers, by the right to scale it."""

    def read(self, path: str) -> Any:
        """What is at a path of the API server, JSON or text; None if there is nothing. Raises DeniedError."""

    def listed(self, path: str, **query: str) -> list[Object]:
        """All objects of a collection. Raises DeniedError."""

    def allowed(self, verb: str, resource: str, namespace: str, subresource: str = "") -> bool:
        """Whether the user may do that to the PSTrainingJobs, or another resource of their group, of a namespace."""


class KubeconfigClient:
    """The cluster that kubectl would ask, with the same identity."""

    def __init__(self, overrides: Overrides | None = None) -> None:
        """Choose the cluster, and the identity of requests.

        Args:
            overrides: what the options say.

        Raises:
            CommandError: the kubeconfig is not usable.
        """
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        overrides = overrides or Overrides()
        config = kubeconfig.load(overrides, os.environ)
        self._access = access.chosen(config, overrides, access.Surroundings(os.environ, access.SERVICE_ACCOUNT))
        self._session = HttpSession(self._access)
        self.namespace = self._access.namespace
        limit = self._access.seconds
        self._seconds = READ_SECONDS if limit is None else limit or None
        """How long an answer may take; None for any time."""

    def job(self, namespace: str, name: str) -> Object | None:
        """A PSTrainingJob; None if there is none."""
        found: Object | None = self.read(_job(namespace, name))
        return found

    def service(self, namespace: str, name: str) -> Object | None:
        """A Service; None if there is none."""
        found: Object | None = self.read(_core(namespace, f"services/{_quoted(name)}"))
        return found

    def annotate(self, namespace: str, name: str, annotations: dict[str, str]) -> None:
        """Write annotations of a PSTrainingJob."""
        self._merge(_job(namespace, name), {"metadata": {"annotations": annotations}})

    def jobs(self, namespace: str | None) -> list[Object]:
        """All PSTrainingJobs of a namespace; of all namespaces if it is None."""
        where = "" if namespace is None else f"/namespaces/{_quoted(namespace)}"
        return self.listed(f"/apis/{names.API_VERSION}{where}/{names.PLURAL}")

    def pods(self, namespace: str, job: str) -> list[Object]:
        """The pods that carry the job's name as a label."""
        return self.listed(_core(namespace, "pods"), labelSelector=f"{names.LABEL_JOB}={job}")

    def events(self, namespace: str, uid: str) -> list[Object]:
        """The events of one object, in core/v1's shape and in no order."""
        return self.listed(_core(namespace, "events"), fieldSelector=f"involvedObject.uid={uid}")

    def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        """The lines of a container's log, as they come."""
        # A follower waits for the next line without a time limit.
        seconds = None if "follow" in query else self._seconds
        answer = self._get(_core(namespace, f"pods/{pod}/log"), query, seconds)
        with self._reached():
            yield from lines(answer.stream())

    def metrics(self, namespace: str, pod: str, port: int, seconds: float = CONNECT_SECONDS) -> str:
        """What a pod answers to a scrape of its metrics within some seconds, by way of the API server."""
        seconds = min(seconds, self._seconds or seconds)
        answer = self._get(_core(namespace, f"pods/{pod}:{port}/proxy/metrics"), {}, seconds)
        with self._reached():
            return str(answer.data.decode(errors="replace"))

    def apply(self, job: Object, *, dry_run: bool = False, force: bool = False) -> Object:
        """Apply a PSTrainingJob server-side, strictly; what is stored then."""
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        query |= ({"dryRun": "All"} if dry_run else {}) | ({"force": "true"} if force else {})
        path = _job(job["metadata"]["namespace"], job["metadata"]["name"])
        return self._sent("PATCH", path, job, "application/apply-patch+yaml", query)

    def patch(self, namespace: str, name: str, change: Object) -> Object:
        """Change a PSTrainingJob by a merge patch; what is stored then."""
        return self._merge(_job(namespace, name), change)

    def create(self, api: str, plural: str, body: Object) -> Object:
        """Create an object, strictly; what is stored then."""
        path = f"{api}/namespaces/{_quoted(body['metadata']['namespace'])}/{plural}"
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        return self._sent("POST", path, body, "application/json", query)

    def delete(self, namespace: str, name: str) -> None:
        """Delete a PSTrainingJob; its children go after it."""
        self._sent("DELETE", _job(namespace, name), {"propagationPolicy": "Background"}, "application/json", {})

    def scale(self, namespace: str, name: str, workers: int) -> None:
        """Set a PSTrainingJob's number of workers, by the right to scale it."""
        self._merge(f"{_job(namespace, name)}/scale", {"spec": {"replicas": workers}})

    def read(self, path: str) -> Any:
        """What is at a path of the API server, JSON or text; None if there is nothing."""
        try:
            answer = self._get(path, {}, self._seconds)
        except AbsentError:
            return None
        if str(answer.headers.get("Content-Type", "")).startswith("text/"):
            with self._reached():
                return answer.data.decode(errors="replace")
        return self._json(answer)

    def listed(self, path: str, **query: str) -> list[Object]:
        """All objects of a collection."""
        found: list[Object] = []
        query["limit"] = str(PAGE)
        while True:
            page = self._json(self._get(path, query, self._seconds))
            if not isinstance(page, dict) or "items" not in page:
                raise self._stranger()
            found += page["items"]
            query["continue"] = (page.get("metadata") or {}).get("continue", "")
            if not query["continue"]:
                return found

    def allowed(self, verb: str, resource: str, namespace: str, subresource: str = "") -> bool:
        """Whether the user may do that to the PSTrainingJobs, or another resource of their group, of a namespace."""
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
        """The answer, not read yet."""
        accepted = {"Accept": "application/json, */*", **(headers or {})}
        sent = None if body is None else json.dumps(body).encode()
        with self._reached():
            answer = self._session.request(method, path, query, seconds, accepted, sent)
            if answer.status >= 400:
                raise refusal(answer.status, answer.data)
        return answer

    def _json(self, answer: urllib3.BaseHTTPResponse) -> Any:
        with self._reached():
            try:
                return json.loads(answer.data)
            except ValueError as error:
                raise self._stranger() from error

    def _stranger(self) -> RequestError:
        return RequestError(f"{self._access} does not respond like a Kubernetes API server.")

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Report a missing or incomplete answer."""
        try:
            yield
        except HTTPError as error:
            why = error.reason if isinstance(error, MaxRetryError) else error
            raise RequestError(unreached(self._access, why)) from error


def unreached(where: access.Access, why: object) -> str:
    """What to say of an API server that has not answered.

    Args:
        where: the server.
        why: urllib3's error.
    """
    said = _last_part(why)
    if where.unnamed:
        return (
            f"{where.unnamed}. kubectl's default address {where.host} did not respond: {said}. Set KUBECONFIG or "
            "--kubeconfig."
        )
    if isinstance(why, SSLError):
        return f"The certificate of the API server {where} was not accepted: {said}. Correct the kubeconfig's cluster."
    return (
        f"The API server {where} did not respond: {said}. Check that this is the intended cluster and that it is "
        "running."
    )


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Whole lines, however they were cut into pieces; bytes that are no text are replaced."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def _job(namespace: str, name: str) -> str:
    """Where a PSTrainingJob is."""
    return f"/apis/{names.API_VERSION}/namespaces/{_quoted(namespace)}/{names.PLURAL}/{_quoted(name)}"


def _core(namespace: str, rest: str) -> str:
    """A path in a namespace of the core API."""
    return f"/api/v1/namespaces/{_quoted(namespace)}/{rest}"


def _quoted(name: str) -> str:
    """What a user wrote, as one part of a path."""
    return quote(name, safe="")


def _last_part(error: object) -> str:
    """What happened, without urllib3's names of its objects."""
    return str(error).rpartition(": ")[2].rstrip(".") or type(error).__name__
