"""Curves of a job, of which memory holds a bounded number of points, however long it is watched. Pure."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC
from typing import Any, Final

from pstraining.cli.client import Object
from pstraining.core.observe import parse_time

POINTS: Final = 720
"""Points of one job: an hour at five seconds each; of more time every second point, then every fourth, and so on."""


@dataclass(frozen=True)
class Point:
    """A job at one moment; None where it is not known."""

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
    """The points of one job, in the order of their time."""

    limit: int = POINTS
    _points: list[Point] = field(default_factory=list)
    _spacing: float = 0.0
    """Seconds between two points at least."""

    def add(self, point: Point) -> None:
        """Take a point, unless it is older than the last one or too close behind it."""
        if self._points and point.at - self._points[-1].at <= self._spacing:
            return
        self._points.append(point)
        if len(self._points) >= self.limit:
            self._points = self._points[::2]
            span = self._points[-1].at - self._points[0].at
            self._spacing = 0.9 * span / len(self._points)  # below the mean, for the time of points varies a little

    def columns(self) -> dict[str, list[Any]]:
        """All points, as a list for each of their fields."""
        rows = [asdict(point) for point in self._points]
        return {name: [row[name] for row in rows] for name in Point.__dataclass_fields__}


def measured_point(job: Object, rates: Mapping[str, Any], at: float) -> Point | None:
    """The point of what `top` has measured; None if no task reports the job's step.

    Args:
        job: the job.
        rates: what `top` prints for programs.
        at: when it was measured, in seconds since 1970.
    """
    if not (whole := rates["job"]):
        return None
    return Point(
        at, whole["step"], whole["loss"], whole["stepsPerSecond"], rates["examplesPerSecond"], *_interruptions(job)
    )


def unknown_point(job: Object, at: float) -> Point:
    """The point of a moment at which no task reports the job's step: a break in its curves."""
    return Point(at, None, None, None, None, *_interruptions(job))


def reported_point(job: Object) -> Point | None:
    """The point of the progress that the program has reported last; None if it has reported none."""
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
    """A number that a program has reported; None if it is none, or not finite."""
    try:
        found = float(text or "")
    except ValueError:
        return None
    return found if math.isfinite(found) else None
