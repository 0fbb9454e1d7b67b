"""The resource usage of a job's pods, as the chief's launcher reports it. Pure.

A report has one item for each role, with the figures of the role's largest pod (launcher/usage.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from pydantic import Field, ValidationError

from pstraining.api import names
from pstraining.api.base import ApiModel

STALE_SECONDS: Final = 90.0
"""Seconds after which a report is outdated: launchers report every 30 seconds."""
SAME_KILL_SECONDS: Final = 5.0
"""Seconds below which two times belong to the same OOM kill, whose age is measured in another pod."""
NAME_MAX: Final = 253


class _RoleReport(ApiModel):
    """The figures of one role."""

    role: Literal["ps", "worker", "chief", "evaluator"]
    pod: str = Field(max_length=NAME_MAX)
    memory_bytes: int = Field(ge=0)
    peak_bytes: int = Field(ge=0)
    growth_bytes_per_second: int | None = Field(default=None, ge=0)
    cpu_millicores: int | None = Field(default=None, ge=0)
    mean_cpu_millicores: int | None = Field(default=None, ge=0)
    oom_pod: str = Field(default="", max_length=NAME_MAX)
    oom_age_seconds: float | None = Field(default=None, ge=0)


class _UsageReport(ApiModel):
    usage: list[_RoleReport] = Field(max_length=len(names.ROLES))


@dataclass(frozen=True)
class RoleUsage:
    """The resource usage of one role's pods; each figure is that of the pod with the highest one."""

    pod: str
    """The pod whose memory is nearest to its limit."""
    memory: int
    """The pod's working set in bytes."""
    peak: int
    """The largest working set in bytes since the containers started."""
    growth: int | None = None
    """Growth of the working set in bytes per second, over the last half minute; 0 if it shrinks, None while it is not
    known.
    """
    cpu: int | None = None
    """The 95th percentile of CPU use in millicores; None while it is not known."""
    mean_cpu: int | None = None
    """The mean of CPU use in millicores over the last five minutes; None while it is not known."""
    oom_pod: str = ""
    """The pod with the newest OOM kill that did not end its container."""
    oom_at: datetime | None = None
    """Time of that OOM kill."""


Usage = Mapping[str, RoleUsage]
"""The pods' resource usage by role."""


def read_usage(body: object, before: Usage, now: datetime) -> dict[str, RoleUsage] | str:
    """Return the content of a report, or the sentence with which it is refused.

    Args:
        body: the report, decoded from JSON.
        before: the content of the previous report.
        now: the time of the report's arrival.
    """
    try:
        report = _UsageReport.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}"
    return {item.role: _role_usage(item, before.get(item.role), now) for item in report.usage}


def _role_usage(item: _RoleReport, before: RoleUsage | None, now: datetime) -> RoleUsage:
    killed = None if item.oom_age_seconds is None else now - timedelta(seconds=min(item.oom_age_seconds, 1e8))
    known = None if before is None else before.oom_at
    if killed is not None and known is not None and abs((killed - known).total_seconds()) < SAME_KILL_SECONDS:
        killed = known
    return RoleUsage(
        pod=item.pod,
        memory=item.memory_bytes,
        peak=item.peak_bytes,
        growth=item.growth_bytes_per_second,
        cpu=item.cpu_millicores,
        mean_cpu=item.mean_cpu_millicores,
        oom_pod=item.oom_pod,
        oom_at=killed,
    )
