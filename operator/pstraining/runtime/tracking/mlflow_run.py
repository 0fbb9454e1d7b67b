"""A run of MLflow, found again by the job's uid: a later chief continues it. The package is optional."""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pstraining.runtime.config.cluster import Cluster
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.tracking.tracker import TrackedPoint, Tracker, TrackerMissingError, newer

if TYPE_CHECKING:
    from mlflow.entities import Run as MlflowEntity

ENV_URI: Final = "MLFLOW_TRACKING_URI"
TAG: Final = "pstraining.job_uid"
TAG_TERM: Final = "pstraining.term"
"""The tag with the term of the newest chief. An earlier one, on a node that is cut off, does not end the run. Worker 0
of a job without a chief has no term; the time of its start takes its place."""
TAG_REFUSED: Final = "pstraining.refused_metrics"
"""The tag with the names of metrics that the run lacks, because its store refuses them."""
AT_ONCE: Final = 500
"""Metrics of one request; MLflow takes up to 1,000."""
PARAMETERS_AT_ONCE: Final = 100
"""The number of parameters that MLflow accepts in one request."""
TAG_MAX: Final = 500
"""The number of characters of a tag that every store of MLflow accepts."""
NAME_MAX: Final = 250
"""The number of characters that MLflow accepts in the name of a metric."""
_REFUSED: Final = re.compile(r"[^\w./ :-]")
"""Characters that MLflow refuses in the name of a metric."""


def tracker_of(
    cluster: Cluster, settings: Mapping[str, object], environ: Mapping[str, str] = os.environ
) -> Tracker | None:
    """Return a tracker for the chief of a job, or None if the environment names no server.

    Args:
        cluster: the job.
        settings: the settings in force, which become the run's parameters.
        environ: the program's environment; MLflow reads its other variables, such as MLFLOW_EXPERIMENT_NAME.
    """
    if not (environ.get(ENV_URI) and cluster.is_chief):
        return None
    parameters = dict(flat(settings)) | {"ps": str(len(cluster.ps)), "workers": str(cluster.workers)}
    tags = {TAG: cluster.job_uid, "pstraining.job": cluster.job, "pstraining.namespace": cluster.namespace}
    term = cluster.term if cluster.task.type == "chief" else time.time_ns()
    return Tracker(lambda: MlflowRun(tags, parameters, environ, term=term))


def flat(settings: Mapping[str, object], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path, such as training.compression.push, and the value of each setting that has a value."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{path}{name}.")
        elif value is not None:
            yield f"{path}{name}", str(value)


def accepted(name: str) -> str:
    """Return a metric's name as MLflow accepts it: a relative path without empty folders and dots, such as recall_10.

    MLflow refuses all metrics of a request if it refuses one.
    """
    folders = _REFUSED.sub("_", name)[:NAME_MAX].split("/")
    return "/".join(folder for folder in folders if folder.strip(".")) or "_"


def _only(points: Iterable[TrackedPoint], is_kept: Callable[[str], bool]) -> list[TrackedPoint]:
    """Return points with the metrics of some names."""
    return [
        replace(point, metrics={name: value for name, value in point.metrics.items() if is_kept(name)})
        for point in points
    ]


def _last_steps(run: "MlflowEntity") -> dict[str, int]:
    """Return the last step of each metric of a run, which has them without further requests.

    The run's message has the metrics with their steps; `run.data.metrics` has the values alone.
    """
    return {metric.key: int(metric.step) for metric in run.data.to_proto().metrics}


class MlflowRun:
    """The job's run.

    Args:
        tags: the run's tags; TAG identifies the run.
        parameters: the run's parameters; existing ones are not changed.
        environ: the environment with MLflow's variables.
        term: the chief's term, or a number that orders it and other leaders of its job likewise.

    Raises:
        TrackerMissingError: MLflow is not installed.
    """

    def __init__(
        self, tags: Mapping[str, str], parameters: Mapping[str, str], environ: Mapping[str, str], *, term: int
    ) -> None:
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise TrackerMissingError(
                f"{ENV_URI} is set, but the package of MLflow cannot be imported ({error}): install mlflow-skinny, or "
                "mlflow, in the image"
            ) from None
        self._client = MlflowClient(environ[ENV_URI])
        self._uid, self._term = tags[TAG], term
        run = self._found(tags, environ)
        self._id = run.info.run_id
        self._last = _last_steps(run)
        self._refused: set[str] = set()
        """Metrics that the store refuses; they are not sent again."""
        self._names: dict[str, str] = {}
        """The name in MLflow of each metric."""
        self._begin(run, parameters)

    def log(self, points: Sequence[TrackedPoint]) -> None:
        """Log the metrics that the run does not have yet, and report those that the store refuses.

        A store refuses all metrics of a request with one that it does not take, such as `loss/cls` beside `loss` in
        MLflow's file store. If it takes others, another attempt would also fail.
        """
        named = [replace(point, metrics=self._named(point.metrics)) for point in points]
        try:
            self._send(_only(named, lambda name: name not in self._refused))
        except Exception:  # noqa: BLE001 - any error of the tracker's client; an unavailable one fails again below
            self._send_apart(named)

    def _named(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return metrics by their names in MLflow, which differ: a name that MLflow accepts comes first."""
        for name in sorted(metrics.keys() - self._names.keys(), key=lambda name: (accepted(name) != name, name)):
            found = accepted(name)
            if found in self._names.values():  # such as recall@10 beside recall_10
                digest = hashlib.sha256(name.encode()).hexdigest()[:6]
                found = f"{found[: NAME_MAX - 7]}_{digest}"
            self._names[name] = found
        return {self._names[name]: value for name, value in metrics.items()}

    def _send(self, points: Sequence[TrackedPoint]) -> None:
        from mlflow.entities import Metric

        fresh = ((point, newer(point, self._last)) for point in points)
        metrics = iter(
            Metric(name, value, int(point.time * 1000), point.step)
            for point, values in fresh
            for name, value in values.items()
        )
        while some := list(islice(metrics, AT_ONCE)):
            self._client.log_batch(self._id, metrics=some)
            for metric in some:
                self._last[metric.key] = max(metric.step, self._last.get(metric.key, -1))

    def _send_apart(self, points: Sequence[TrackedPoint]) -> None:
        """Log points again, after a request that may have stored some of them, and find what the store refuses."""
        self._last = _last_steps(self._client.get_run(self._id))
        names = dict.fromkeys(name for point in points for name in point.metrics if name not in self._refused)
        if not (failed := self._failing(points, list(names))):
            return
        # A store that takes this tag, and fails again, is available.
        tag = ", ".join(sorted(self._refused | failed.keys()))[:TAG_MAX]
        self._client.set_tag(self._id, TAG_REFUSED, tag)
        for name, reason in self._failing(points, list(failed)).items():
            self._refused.add(name)
            event("metric_refused", metric=name, reason=reason)

    def _failing(self, points: Sequence[TrackedPoint], names: Sequence[str]) -> dict[str, str]:
        """Log these metrics in one request, and in halves if it fails; return the error of each one that fails alone.

        Few requests find few refused metrics among many.
        """
        try:
            self._send(_only(points, names.__contains__))
        except Exception as error:  # noqa: BLE001 - any error of the tracker's client
            if len(names) == 1:
                return {names[0]: f"{type(error).__name__}: {error}".partition("\n")[0]}
        else:
            return {}
        self._last = _last_steps(self._client.get_run(self._id))  # the request may have stored some of them
        half = len(names) // 2
        return self._failing(points, names[:half]) | self._failing(points, names[half:])

    def finish(self, artifacts: Sequence[Path]) -> None:
        """Log the files that exist, and end the run, also if the store of artifacts refuses them."""
        try:
            for path in artifacts:
                if path.exists():
                    self._client.log_artifact(self._id, str(path))
        finally:
            self._terminate("FINISHED")

    def fail(self) -> None:
        """End the run as failed; a later chief may continue it."""
        self._terminate("FAILED")

    def stop(self) -> None:
        """End the run as stopped from outside; a later chief may continue it."""
        self._terminate("KILLED")

    def _terminate(self, status: str) -> None:
        if self._is_newest(self._client.get_run(self._id).data.tags):
            self._client.set_terminated(self._id, status)

    def _is_newest(self, tags: Mapping[str, str]) -> bool:
        """Whether no chief of a later term has continued the run. A run given by its ID may have another job's tag."""
        uid, _, term = tags.get(TAG_TERM, "").partition(" ")
        return uid != self._uid or int(term) <= self._term

    def _found(self, tags: Mapping[str, str], environ: Mapping[str, str]) -> Any:
        if given := environ.get("MLFLOW_RUN_ID"):
            return self._client.get_run(given)
        experiment = self._experiment(environ)
        runs = self._client.search_runs([experiment], f"tags.`{TAG}` = '{tags[TAG]}'", max_results=1)
        if runs:
            return runs[0]
        return self._client.create_run(experiment, tags=dict(tags), run_name=tags["pstraining.job"])

    def _experiment(self, environ: Mapping[str, str]) -> str:
        if given := environ.get("MLFLOW_EXPERIMENT_ID"):
            return given
        name = environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def _begin(self, run: Any, parameters: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        missing = iter([Param(name, value) for name, value in parameters.items() if name not in run.data.params])
        while some := list(islice(missing, PARAMETERS_AT_ONCE)):
            self._client.log_batch(self._id, params=some)
        if not self._is_newest(run.data.tags):
            return
        self._client.set_tag(self._id, TAG_TERM, f"{self._uid} {self._term}")
        if run.info.status != "RUNNING":
            self._client.update_run(self._id, status="RUNNING")
