"""Fake clusters for tests of commands: answers that a test does not set are empty."""

from collections.abc import Iterator, Mapping
from typing import Any

from pstraining.cli.errors import RequestError

Object = dict[str, Any]


class Nowhere:
    """Answers every question with nothing; a test's own cluster overrides the questions of its command."""

    namespace = "default"

    def job(self, namespace: str, name: str) -> Object | None:
        raise NotImplementedError

    def jobs(self, namespace: str | None) -> list[Object]:
        raise NotImplementedError

    def service(self, namespace: str, name: str) -> Object | None:
        raise NotImplementedError

    def annotate(self, namespace: str, name: str, annotations: dict[str, str]) -> None:
        raise NotImplementedError

    def pods(self, namespace: str, job: str) -> list[Object]:
        raise NotImplementedError

    def events(self, namespace: str, uid: str) -> list[Object]:
        raise NotImplementedError

    def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        raise NotImplementedError

    def metrics(self, namespace: str, pod: str, port: int, seconds: float = 10) -> str:
        raise NotImplementedError

    def apply(self, job: Object, *, dry_run: bool = False, force: bool = False) -> Object:
        raise NotImplementedError

    def patch(self, namespace: str, name: str, change: Object) -> Object:
        raise NotImplementedError

    def create(self, api: str, plural: str, body: Object) -> Object:
        raise NotImplementedError

    def delete(self, namespace: str, name: str, uid: str) -> None:
        raise NotImplementedError

    def scale(self, namespace: str, name: str, workers: int, version: str = "") -> None:
        raise NotImplementedError

    def read(self, path: str) -> Any:
        raise NotImplementedError

    def listed(self, path: str, **query: str) -> list[Object]:
        raise NotImplementedError

    def allowed(self, verb: str, resource: str, namespace: str, subresource: str = "") -> bool:
        raise NotImplementedError


class WithJobs(Nowhere):
    """Has jobs and their pods, events by their object's uid, and metrics by pod name."""

    def __init__(self, *jobs: Object, pods: list[Object] | None = None) -> None:
        self.there = list(jobs)
        self.there_pods = pods or []
        self.there_events: dict[str, list[Object]] = {}
        self.there_metrics: dict[str, str | RequestError] = {}

    def job(self, namespace: str, name: str) -> Object | None:
        found = (j for j in self.there if (j["metadata"]["namespace"], j["metadata"]["name"]) == (namespace, name))
        return next(found, None)

    def jobs(self, namespace: str | None) -> list[Object]:
        return [j for j in self.there if namespace in (None, j["metadata"]["namespace"])]

    def pods(self, namespace: str, job: str) -> list[Object]:
        return self.there_pods

    def events(self, namespace: str, uid: str) -> list[Object]:
        return self.there_events.get(uid, [])

    def metrics(self, namespace: str, pod: str, port: int, seconds: float = 10) -> str:
        found = self.there_metrics.get(pod, RequestError("connect: connection refused", 503))
        if isinstance(found, RequestError):
            raise found
        return found
