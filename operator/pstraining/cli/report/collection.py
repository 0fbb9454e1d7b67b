"""Collects a job's objects, events and logs as files of a report, and lists the unreadable ones."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from pstraining.api import names
from pstraining.cli.client import ClusterClient, Object
from pstraining.cli.errors import DeniedError, RequestError
from pstraining.cli.output import yaml_text
from pstraining.core.actions import Kind
from pstraining.kube.paths import RESOURCES
from pstraining.redaction import Redactor

AT_ONCE: Final = 8
"""Maximum number of logs read concurrently."""
OPTIONAL: Final = (*Kind.pod_groups(), Kind.WORKLOAD)
"""Kinds that not every cluster has."""
_NO_CHILDREN: Final = {Kind.POD, Kind.PS_TRAINING_JOB, *Kind.of_queues()} - {Kind.WORKLOAD}
CHILDREN: Final = tuple(kind for kind in RESOURCES if kind not in _NO_CHILDREN)
"""Kinds of the objects that a job owns."""

Found = TypeVar("Found")
File = tuple[str, str]
"""A path in the report, and its text."""


@dataclass
class Collection:
    """Reads the files of one job's report.

    Args:
        cluster: the job's cluster.
        job: the job as it was read.
        tail: number of lines from the end of each log.
        operators: the Deployments of operators.
    """

    cluster: ClusterClient
    job: Object
    tail: int
    operators: Sequence[Object] = ()
    redactor: Redactor = field(default_factory=Redactor)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of an unreadable part and the reason."""
    _given_up: set[str] = field(default_factory=set)
    """Kinds of data that are not requested again, because a request was denied or not answered."""

    def files(self) -> Iterator[File]:
        """Yield the files. Objects come first, because their secret values are also redacted in the logs."""
        namespace, name = self._namespace, self.job["metadata"]["name"]
        children = [child for kind in CHILDREN for child in self._children(kind)]
        pods = self.tried("pods", "pods", lambda: self.cluster.pods(namespace, name)) or []
        pods = sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))
        for found in (self.job, *children, *pods, *self.operators):
            self.redactor.learn(found)
        yield "job.yaml", self._yaml(self.job)
        for child in children:
            yield f"children/{child['kind']}/{child['metadata']['name']}.yaml", self._yaml(child)
        events = self.tried("events", "events", lambda: self.cluster.listed(f"/api/v1/namespaces/{namespace}/events"))
        yield "events.yaml", self._yaml({"items": self._own_events(events or (), [*children, *pods])})
        yield from self._pods(pods, "pods")
        yield from self._nodes(pods)
        for operator in self.operators:
            yield from self._operator(operator)

    def tried(self, what: str, kind: str, request: Callable[[], Found]) -> Found | None:
        """Return the result of a request; note a failure and return None.

        Args:
            what: name of the requested data.
            kind: name of all data that requires the same right.
            request: sends the request.
        """
        if kind in self._given_up:
            return None
        try:
            return request()
        except RequestError as error:
            self._note(what, kind, error)
            return None

    def _note(self, what: str, kind: str, error: RequestError) -> None:
        if kind in self._given_up:
            return
        if isinstance(error, DeniedError) or not error.status:
            self._given_up.add(kind)
            what = f"{what} and all further {kind}"
        self.left_out.append((what, str(error)))

    @property
    def _namespace(self) -> str:
        return str(self.job["metadata"]["namespace"])

    def _yaml(self, found: Object) -> str:
        return yaml_text(self.redactor.redacted(found))

    def _children(self, kind: Kind) -> list[Object]:
        """Return the job's objects of a kind. Items of lists have no kind, which is added."""
        selector = f"{names.LABEL_JOB}={self.job['metadata']['name']}"
        resource = RESOURCES[kind]
        try:
            found = self.cluster.listed(resource.path(self._namespace), labelSelector=selector)
        except RequestError as error:
            if not (kind in OPTIONAL and error.status == 404):
                self.left_out.append((resource.plural, str(error)))
            return []
        shown = kind.partition(".")[0]
        children = [_without_launcher({"apiVersion": resource.api_version, "kind": shown, **child}) for child in found]
        return sorted(children, key=lambda child: str(child["metadata"]["name"]))

    def _own_events(self, events: Iterable[Object], objects: Sequence[Object]) -> list[Object]:
        """Return the events of the job, its objects and its pods, including deleted ones."""
        uids = {found["metadata"].get("uid") for found in (self.job, *objects)}

        def is_own(event: Object) -> bool:
            about = event.get("involvedObject") or {}
            return about.get("uid") in uids or _is_child(_name(self.job), str(about.get("name") or ""))

        own = (event for event in events if is_own(event))
        return sorted(own, key=lambda e: (str(e.get("lastTimestamp") or e.get("eventTime") or ""), _name(e)))

    def _pods(self, pods: Sequence[Object], folder: str) -> Iterator[File]:
        for pod in pods:
            yield f"{folder}/{_name(pod)}/pod.yaml", self._yaml({"apiVersion": "v1", "kind": "Pod", **pod})
        logs = [_Log(pod, *log) for pod in pods for log in _logs(pod)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            # In batches, because all logs of a large job would not fit into memory.
            for begin in range(0, len(logs), AT_ONCE):
                some = [log for log in logs[begin : begin + AT_ONCE] if log.kind not in self._given_up]
                for log, found in zip(some, pool.map(self._read, some), strict=True):
                    if isinstance(found, str):
                        yield f"{folder}/{log.path}", self.redactor.text(found)
                    else:
                        self._note(log.what, log.kind, found)

    def _read(self, log: "_Log") -> str | RequestError:
        query = {"container": log.container, "tailLines": str(self.tail), "timestamps": "true"}
        query |= {"previous": "true"} if log.previous else {}
        try:
            lines = list(self.cluster.log(log.pod["metadata"]["namespace"], _name(log.pod), query))
        except RequestError as error:
            return error
        return "".join(f"{line}\n" for line in lines)

    def _nodes(self, pods: Iterable[Object]) -> Iterator[File]:
        for name in sorted({str((pod.get("spec") or {}).get("nodeName") or "") for pod in pods} - {""}):
            node = self.tried(f"node {name}", "nodes", partial(self.cluster.read, f"/api/v1/nodes/{name}"))
            if node:
                status = {k: v for k, v in (node.get("status") or {}).items() if k != "images"}
                yield f"nodes/{name}.yaml", self._yaml({**node, "status": status})

    def _operator(self, deployment: Object) -> Iterator[File]:
        namespace, name = deployment["metadata"]["namespace"], _name(deployment)
        folder = f"operators/{namespace}/{name}"
        yield f"{folder}/deployment.yaml", self._yaml(deployment)
        labels = (deployment["spec"].get("selector") or {}).get("matchLabels") or {}
        selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        path = f"/api/v1/namespaces/{namespace}/pods"
        asked = partial(self.cluster.listed, path, labelSelector=selector)
        pods = self.tried(f"the operator's pods in {namespace}", f"pods in {namespace}", asked) or []
        yield from self._pods(sorted(pods, key=_name), folder)


@dataclass(frozen=True)
class _Log:
    """One container's log."""

    pod: Object
    container: str
    previous: bool

    @property
    def what(self) -> str:
        """A description of the log, for messages."""
        return f"{'the previous log' if self.previous else 'the log'} of {_name(self.pod)}, container {self.container}"

    @property
    def kind(self) -> str:
        """The name of all logs that require the same right."""
        return f"logs in {self.pod['metadata']['namespace']}"

    @property
    def path(self) -> str:
        """The log's path below the folder of pods."""
        return f"{_name(self.pod)}/{self.container}{'.previous' if self.previous else ''}.log"


def _is_child(job: str, name: str) -> bool:
    """Return whether the name is that of a child of the job, or of such a child's pod."""
    parts = name.split("-")
    return any(
        names.is_child(job, "-".join(parts[:end])) for end in range(len(parts), 0, -1) if end > job.count("-") + 1
    )


def _without_launcher(child: Object) -> Object:
    """Return the object. The files in the launcher's ConfigMap are replaced by their lengths."""
    if child["kind"] != Kind.CONFIG_MAP or "-launcher-" not in _name(child):
        return child
    data = {file: f"{len(text)} characters" for file, text in (child.get("data") or {}).items()}
    return {**child, "data": data, "binaryData": {}}


def _name(found: Object) -> str:
    return str(found["metadata"]["name"])


def _logs(pod: Object) -> Iterator[tuple[str, bool]]:
    """Yield the started containers of a pod, each with whether the log is that of the previous run."""
    status = pod.get("status") or {}
    for kind in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
        for container in status.get(kind) or ():
            state = container.get("state") or {}
            if state.get("running") is not None or state.get("terminated") or container.get("restartCount"):
                yield str(container["name"]), False
            if container.get("restartCount"):
                yield str(container["name"]), True
