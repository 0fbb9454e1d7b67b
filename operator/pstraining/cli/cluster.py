"""The few requests that commands make, with the user's own rights: in the current context, as kubectl plugins do."""

from typing import Any, Protocol

from pstraining.api import names
from pstraining.cli.errors import CommandError

Object = dict[str, Any]


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

        load: Any = config.load_kube_config  # untyped upstream
        contexts: Any = config.list_kube_config_contexts
        try:
            load(context=context)
            known, chosen = contexts()
        except config.ConfigException as error:
            raise CommandError(f"No cluster: {error}") from error
        if context is not None:
            chosen = next(c for c in known if c["name"] == context)
        self.namespace = str(chosen["context"].get("namespace") or "default")
        self._jobs: Any = client.CustomObjectsApi()
        self._core: Any = client.CoreV1Api()

    def job(self, namespace: str, name: str) -> Object | None:
        """A PSTrainingJob; None if there is none."""
        where = (names.GROUP, names.VERSION, namespace, names.PLURAL, name)
        found: Object | None = _told(lambda: self._jobs.get_namespaced_custom_object(*where))
        return found

    def service(self, namespace: str, name: str) -> Object | None:
        """A Service; None if there is none."""
        found = _told(lambda: self._core.read_namespaced_service(name, namespace))
        return None if found is None else dict(self._core.api_client.sanitize_for_serialization(found))

    def annotate(self, namespace: str, name: str, annotations: dict[str, str]) -> None:
        """Write annotations of a PSTrainingJob."""
        body = {"metadata": {"annotations": annotations}}
        where = (names.GROUP, names.VERSION, namespace, names.PLURAL, name)
        _told(lambda: self._jobs.patch_namespaced_custom_object(*where, body))


def _told(request: Any) -> Any:
    """The request's answer, None for 404."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        return request()
    except ApiException as error:
        if error.status == 404:
            return None
        raise CommandError(f"The API server refused: {error.status} {error.reason}") from error
    except HTTPError as error:
        raise CommandError(f"The API server does not answer: {error}") from error
