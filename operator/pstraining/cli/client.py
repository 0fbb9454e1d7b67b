"""The few requests that commands make, with the user's own rights: in the current context, as kubectl plugins do."""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol
from urllib.parse import quote

from pstraining.api import names
from pstraining.cli.errors import AbsentError, CommandError, RequestError, refusal

Object = dict[str, Any]
FIELD_MANAGER: Final = "kubectl-pstraining"
"""Who has set what commands write, in managedFields."""
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

    def scale(self, namespace: str, name: str, workers: int) -> None:
        """Set a PSTrainingJob's number of workers, by the right to scale it."""

    def read(self, path: str) -> Any:
        """What is at a path of the API server, JSON or text; None if there is nothing. Raises DeniedError."""

    def listed(self, path: str, **query: str) -> list[Object]:
        """All objects of a collection. Raises DeniedError."""

    def allowed(self, verb: str, resource: str, namespace: str, subresource: str = "") -> bool:
        """Whether the user may do that to the PSTrainingJobs, or another resource of their group, of a namespace."""


class KubeconfigClient:
    """The cluster of one of the kubeconfig's contexts."""

    def __init__(self, context: str | None = None) -> None:
        """Read the kubeconfig.

        Args:
            context: the context's name; the current one if not given.

        Raises:
            CommandError: there is no kubeconfig, or no such context in it.
        """
        from kubernetes import client
        from kubernetes.config import ConfigException, kube_config
        from yaml import YAMLError

        library: Any = kube_config  # untyped upstream
        configuration: Any = client.Configuration()
        # Each try that fails is logged as a warning; one more is enough for a connection that was closed meanwhile.
        configuration.retries = 1
        configuration.keep_alive = True  # who follows a log hears of an API server that is gone
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        path = library.KUBE_CONFIG_DEFAULT_LOCATION
        try:
            found = library.KubeConfigMerger(path)
            if found.config is None:
                raise CommandError(f"There is no kubeconfig at {path}. Set KUBECONFIG to use another file.")
            # No base path: relative paths of certificates are those of the file that they stand in.
            settings = {"config_base_path": None, "config_persister": found.save_changes}
            loader = library.KubeConfigLoader(found.config, active_context=context, **settings)
            loader.load_and_set(configuration)
        except (ConfigException, YAMLError, OSError, TypeError) as error:
            why = " ".join(str(error).split()).rstrip(".")
            raise CommandError(
                f"The kubeconfig {path} is not usable: {why}. Set KUBECONFIG, or select another --context."
            ) from error
        chosen = loader.current_context
        self.namespace = str(chosen["context"].get("namespace") or "default")
        self._where = f"{configuration.host} (context {chosen['name']})"
        self._client: Any = client.ApiClient(configuration)

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
        # Who follows waits for the next line as long as it takes.
        seconds = None if "follow" in query else READ_SECONDS
        answer = self._get(_core(namespace, f"pods/{pod}/log"), query, seconds)
        with self._reached():
            yield from lines(answer.stream())

    def metrics(self, namespace: str, pod: str, port: int, seconds: float = CONNECT_SECONDS) -> str:
        """What a pod answers to a scrape of its metrics within some seconds, by way of the API server."""
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

    def scale(self, namespace: str, name: str, workers: int) -> None:
        """Set a PSTrainingJob's number of workers, by the right to scale it."""
        self._merge(f"{_job(namespace, name)}/scale", {"spec": {"replicas": workers}})

    def read(self, path: str) -> Any:
        """What is at a path of the API server, JSON or text; None if there is nothing."""
        try:
            answer = self._get(path, {}, READ_SECONDS)
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
            page = self._json(self._get(path, query, READ_SECONDS))
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
        found: Object = self._json(self._request(method, path, query, READ_SECONDS, {"Content-Type": kind}, body))
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
    ) -> Any:
        """urllib3's answer, not read yet: the client's models cost more than what is looked at here."""
        accepted = {"Accept": "application/json, */*", **(headers or {})}
        with self._reached():
            request = self._client.param_serialize(
                method, path, query_params=dict(query), header_params=accepted, body=body, auth_settings=["BearerToken"]
            )
            answer = self._client.call_api(*request, _request_timeout=(CONNECT_SECONDS, seconds)).response
            if answer.status >= 400:
                raise refusal(answer.status, answer.data)
        return answer

    def _json(self, answer: Any) -> Any:
        with self._reached():
            try:
                return json.loads(answer.data)
            except ValueError as error:
                raise self._stranger() from error

    def _stranger(self) -> RequestError:
        return RequestError(f"{self._where} does not respond like a Kubernetes API server.")

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Tell that there was no answer, or not a whole one."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError, MaxRetryError

        try:
            yield
        except (HTTPError, ApiException) as error:
            if isinstance(error, ApiException) and error.status:
                raise
            why = error.reason if isinstance(error, (MaxRetryError, ApiException)) else error
            raise RequestError(
                f"The API server {self._where} did not respond: {_last_part(why)}. Check that this is the intended "
                "cluster and that it is running."
            ) from error


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
