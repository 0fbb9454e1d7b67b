"""Curves of a job with a bounded number of points, however long the job is watched. Pure."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC
from typing import Any, Final

from pstraining.cli.client import Object
from pstraining.core.observe import parse_time

POINTS: Final = 720
"""Maximum number of points of one job: an hour with a point every 5 s. When it is reached, half of them are dropped."""


@dataclass(frozen=True)
class Point:
    """A job at one moment. None is an unknown value."""

    at: float
    """Seconds since 1970."""
    step: int | None = None
    loss: float | None = None
    steps_per_second: float | None = None
    examples_per_second: float | None = None
    failovers: int = 0
    restarts: int = 0


@dataclass
class Curve:
    """The points of one job, in order of time."""

    limit: int = POINTS
    _points: list[Point] = field(default_factory=list)
    _spacing: float = 0.0
    """Minimum seconds between two points."""

    def add(self, point: Point) -> None:
        """Add a point, unless it is older than the last one or too close to it."""
        if self._points and point.at - self._points[-1].at <= self._spacing:
            return
        self._points.append(point)
        if len(self._points) >= self.limit:
            self._points = self._points[::2]
            span = self._points[-1].at - self._points[0].at
            self._spacing = 0.9 * span / len(self._points)  # below the mean, because the times of points vary

    def columns(self) -> dict[str, list[Any]]:
        """Return all points as one list per field."""
        rows = [asdict(point) for point in self._points]
        return {name: [row[name] for row in rows] for name in Point.__dataclass_fields__}


def measured_point(job: Object, rates: Mapping[str, Any], at: float) -> Point | None:
    """Return the point of a measurement by `top`; None if no task reports the job's step.

    Args:
        job: the job.
        rates: the output of `top` for programs.
        at: time of the measurement, in seconds since 1970.
    """
    if not (whole := rates["job"]):
        return None
    return Point(
        at, whole["step"], whole["loss"], whole["stepsPerSecond"], rates["examplesPerSecond"], *_interruptions(job)
    )


def unknown_point(job: Object, at: float) -> Point:
    """Return a point without values, a gap in the curves, for a time when no task reports the job's step."""
    return Point(at, None, None, None, None, *_interruptions(job))


def reported_point(job: Object) -> Point | None:
    """Return the point of the program's last reported progress; None if it has reported none."""
    progress = (job.get("status") or {}).get("training") or {}
    moment = parse_time(progress.get("lastUpdatedTime"))
    if moment is None:
        return None
    at = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    loss, samples = _number(progress.get("loss")), _number(progress.get("samplesPerSecond"))
    return Point(at, progress.get("step"), loss, None, samples, *_interruptions(job))


def _interruptions(job: Object) -> tuple[int, int]:
    reported = job.get("status") or {}
    return int(reported.get("takeovers") or 0), int(reported.get("restarts") or 0)


def _number(text: str | None) -> float | None:
    """Parse a number that a program reported; None if it is not a finite number."""
    try:
        found = float(text or "")
    except ValueError:
        return None
    return found if math.isfinite(found) else None
