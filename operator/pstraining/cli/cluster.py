"""The few requests that commands make, with the user's own rights: in the current context, as kubectl plugins do."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol
from urllib.parse import quote

from pstraining.api import names
from pstraining.cli.answers import is_absent, refusal
from pstraining.cli.errors import CommandError, RequestError

Object = dict[str, Any]
PAGE: Final = 500
"""Objects in one answer of a list."""
CONNECT_SECONDS: Final = 10
READ_SECONDS: Final = 60


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

    def metrics(self, namespace: str, pod: str, port: int) -> str:
        """What a pod answers to a scrape of its metrics, by way of the API server.

        Raises:
            RequestError: it answers nothing, or not what a scrape gets; its message says why.
        """


class KubeconfigCluster:
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
                raise CommandError(f"No cluster: there is no kubeconfig at {path}. KUBECONFIG may name another.")
            # No base path: relative paths of certificates are those of the file that they stand in.
            settings = {"config_base_path": None, "config_persister": found.save_changes}
            loader = library.KubeConfigLoader(found.config, active_context=context, **settings)
            loader.load_and_set(configuration)
        except (ConfigException, YAMLError, OSError, TypeError) as error:
            raise CommandError(f"No cluster from the kubeconfig {path}: {error}") from error
        chosen = loader.current_context
        self.namespace = str(chosen["context"].get("namespace") or "default")
        self._where = f"{configuration.host} (context {chosen['name']})"
        self._client: Any = client.ApiClient(configuration)
        self._jobs: Any = client.CustomObjectsApi(self._client)
        self._core: Any = client.CoreV1Api(self._client)

    def job(self, namespace: str, name: str) -> Object | None:
        """A PSTrainingJob; None if there is none."""
        where = (names.GROUP, names.VERSION, namespace, names.PLURAL, name)
        found: Object | None = self._told(lambda: self._jobs.get_namespaced_custom_object(*where))
        return found

    def service(self, namespace: str, name: str) -> Object | None:
        """A Service; None if there is none."""
        found = self._told(lambda: self._core.read_namespaced_service(name, namespace))
        return None if found is None else dict(self._core.api_client.sanitize_for_serialization(found))

    def annotate(self, namespace: str, name: str, annotations: dict[str, str]) -> None:
        """Write annotations of a PSTrainingJob."""
        body = {"metadata": {"annotations": annotations}}
        where = (names.GROUP, names.VERSION, namespace, names.PLURAL, name)
        self._told(lambda: self._jobs.patch_namespaced_custom_object(*where, body))

    def jobs(self, namespace: str | None) -> list[Object]:
        """All PSTrainingJobs of a namespace; of all namespaces if it is None."""
        where = "" if namespace is None else f"/namespaces/{_quoted(namespace)}"
        return self._list(f"/apis/{names.API_VERSION}{where}/{names.PLURAL}")

    def pods(self, namespace: str, job: str) -> list[Object]:
        """The pods that carry the job's name as a label."""
        return self._list(_core(namespace, "pods"), labelSelector=f"{names.LABEL_JOB}={job}")

    def events(self, namespace: str, uid: str) -> list[Object]:
        """The events of one object, in core/v1's shape and in no order."""
        return self._list(_core(namespace, "events"), fieldSelector=f"involvedObject.uid={uid}")

    def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        """The lines of a container's log, as they come."""
        # Who follows waits for the next line as long as it takes.
        seconds = None if "follow" in query else READ_SECONDS
        answer = self._get(_core(namespace, f"pods/{pod}/log"), query, seconds)
        with self._reached():
            yield from lines(answer.stream())

    def metrics(self, namespace: str, pod: str, port: int) -> str:
        """What a pod answers to a scrape of its metrics, by way of the API server."""
        answer = self._get(_core(namespace, f"pods/{pod}:{port}/proxy/metrics"), {}, CONNECT_SECONDS)
        with self._reached():
            return str(answer.data.decode(errors="replace"))

    def _list(self, path: str, **query: str) -> list[Object]:
        found: list[Object] = []
        query["limit"] = str(PAGE)
        while True:
            answer = self._get(path, query, READ_SECONDS)
            with self._reached():
                try:
                    page = answer.json()
                    found += page["items"]
                except (ValueError, LookupError, TypeError) as error:
                    raise RequestError(f"{self._where} does not answer as a Kubernetes API server does.") from error
            query["continue"] = (page.get("metadata") or {}).get("continue", "")
            if not query["continue"]:
                return found

    def _get(self, path: str, query: Mapping[str, str], seconds: float | None) -> Any:
        """urllib3's answer, not read yet."""
        accept = {"Accept": "application/json, */*"}
        with self._reached():
            request = self._client.param_serialize(
                "GET", path, query_params=dict(query), header_params=accept, auth_settings=["BearerToken"]
            )
            answer = self._client.call_api(*request, _request_timeout=(CONNECT_SECONDS, seconds)).response
            if answer.status >= 400:
                raise refusal(answer.status, answer.data)
        return answer

    def _told(self, request: Callable[[], Any]) -> Any:
        """The request's answer, None if there is no such object."""
        from kubernetes.client.exceptions import ApiException

        try:
            with self._reached():
                return request()
        except ApiException as error:
            if is_absent(error.status, error.body or ""):
                return None
            raise refusal(error.status, error.body or error.reason or "") from error

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
                f"No answer from the API server {self._where}: {_last_part(why)}. Is this the cluster that is meant, "
                "and is it up?"
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


def _core(namespace: str, rest: str) -> str:
    """A path in a namespace of the core API."""
    return f"/api/v1/namespaces/{_quoted(namespace)}/{rest}"


def _quoted(name: str) -> str:
    """What a user wrote, as one part of a path."""
    return quote(name, safe="")


def _last_part(error: object) -> str:
    """What happened, without urllib3's names of its objects."""
    return str(error).rpartition(": ")[2].rstrip(".") or type(error).__name__
