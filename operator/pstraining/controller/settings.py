"""Reads the operator's settings from the environment; an invalid one ends the start with a one-line message."""

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from pstraining.resources.security import PodIds

PREFIX = "PSTRAINING_"
ELSEWHERE = ("PSTRAINING_CONTEXT",)
"""Variables that kube/connection.py reads."""
SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_.+)?)$")
"""Variables that Kubernetes sets in a pod for a Service whose name starts with `pstraining`."""


class OperatorSettingsError(ValueError):
    """A setting is invalid; the message names the variable."""


class LogFormat(StrEnum):
    """The format of log lines."""

    JSON = "json"
    TEXT = "text"


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty")
    return value.strip()


def _names(value: str) -> tuple[str, ...]:
    namespaces = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    for name in namespaces:
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
            raise ValueError(f"{name!r} is not the name of a namespace")
    return namespaces


def _level(value: str) -> str:
    level = value.strip().upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ValueError("must be DEBUG, INFO, WARNING or ERROR")
    return level


def _format(value: str) -> LogFormat:
    try:
        return LogFormat(value.strip().lower())
    except ValueError:
        raise ValueError("must be json or text") from None


def _pod_ids(value: str) -> PodIds:
    try:
        return PodIds(value.strip().lower())
    except ValueError:
        raise ValueError("must be auto, set or platform") from None


def _switch(value: str) -> bool:
    switch = {"true": True, "false": False}.get(value.strip().lower())
    if switch is None:
        raise ValueError(f"must be true or false, not {value!r}")
    return switch


def _between(low: int, high: int) -> Callable[[str], int]:
    def read(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError(f"is not a whole number: {value!r}") from None
        if not low <= number <= high:
            raise ValueError(f"must be {low} to {high}, not {number}")
        return number

    return read


def _url(value: str) -> str:
    parts = urlsplit(value.strip())
    if parts.scheme != "https" or not parts.hostname or parts.path not in ("", "/"):
        raise ValueError("must be https://HOST[:PORT]")
    return value.strip()


def _setting(name: str, read: Callable[[str], Any], default: Any) -> Any:
    return field(default=default, metadata={"env": name, "read": read})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings. Each field's metadata has the name of its variable."""

    pod_name: str = _setting("POD_NAME", _text, "")
    """The operator's identity as the Lease's holder and in events; by default the hostname. A new process of the same
    name acquires the Lease at once, so operators that run at the same time must have different names."""

    pod_namespace: str = _setting("POD_NAMESPACE", _text, "default")
    """The operator's namespace."""

    namespaces: tuple[str, ...] = _setting("PSTRAINING_NAMESPACES", _names, ())
    """The namespaces whose jobs are managed, separated by commas; empty for all."""

    watch_nodes: bool = _setting("PSTRAINING_WATCH_NODES", _switch, True)
    """Whether to watch nodes, which requires a ClusterRole. Otherwise a pod on a lost node counts as lost only
    after its own grace period."""

    lease_name: str = _setting("PSTRAINING_LEASE_NAME", _text, "pstraining-operator")
    """The Lease that lets one operator act at a time."""

    lease_namespace: str = _setting("PSTRAINING_LEASE_NAMESPACE", _text, "")
    """The Lease's namespace; by default the operator's own."""

    lease_duration_seconds: int = _setting("PSTRAINING_LEASE_DURATION_SECONDS", _between(3, 600), 15)
    """Seconds after the last renewal of the Lease until another operator may acquire it."""

    metrics_port: int = _setting("PSTRAINING_METRICS_PORT", _between(0, 65535), 8080)
    """TCP port of /metrics; 0 turns it off."""

    health_port: int = _setting("PSTRAINING_HEALTH_PORT", _between(0, 65535), 8081)
    """TCP port of /livez and /readyz; 0 turns them off."""

    progress_url: str = _setting("PSTRAINING_PROGRESS_URL", _url, "")
    """The URL at which training pods reach the endpoint for their progress; empty: no progress is accepted."""

    progress_port: int = _setting("PSTRAINING_PROGRESS_PORT", _between(1, 65535), 8443)
    """TCP port of the progress endpoint."""

    log_level: str = _setting("PSTRAINING_LOG_LEVEL", _level, "INFO")
    """Lowest severity of logged messages."""

    log_format: LogFormat = _setting("PSTRAINING_LOG_FORMAT", _format, LogFormat.JSON)  # noqa: RUF009
    """Format of the log: one JSON object per line, or plain text."""

    pod_ids: PodIds = _setting("PSTRAINING_POD_IDS", _pod_ids, PodIds.AUTO)  # noqa: RUF009
    """Whether the operator sets the user and group IDs of pods whose template has none (set), or the platform assigns
    them (platform). With auto, the platform assigns them if the API server serves OpenShift's
    SecurityContextConstraints."""

    kueue: bool = _setting("PSTRAINING_KUEUE", _switch, False)
    """Whether jobs with the label kueue.x-k8s.io/queue-name wait for Kueue's admission; requires rights to Kueue's
    Workloads."""

    workers: int = _setting("PSTRAINING_WORKERS", _between(1, 64), 32)
    """Number of jobs that are reconciled at a time. A pass mostly waits for the API server."""

    resync_seconds: int = _setting("PSTRAINING_RESYNC_SECONDS", _between(0, 7 * 86400), 10 * 3600)
    """Seconds between two passes over every job without an event; 0 for never. A pass writes only differences."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Settings":
        """Read the settings.

        Raises:
            OperatorSettingsError: a value is invalid, or a PSTRAINING_ variable is unknown.
        """
        values: dict[str, Any] = {}
        known = {f.metadata["env"]: f for f in fields(cls)}
        for name, setting in known.items():
            text = environ.get(name)
            if text is None or (text == "" and setting.default in ("", ())):
                continue
            try:
                values[setting.name] = setting.metadata["read"](text)
            except ValueError as error:
                raise OperatorSettingsError(f"{name} {error}{_hint(text)}") from None
        for name in environ:
            if name.startswith(PREFIX) and name not in known and name not in ELSEWHERE and not SERVICE_LINK.match(name):
                raise OperatorSettingsError(f"{name} is not a setting; the settings are {', '.join(known)}")
        values["pod_name"] = values.get("pod_name") or socket.gethostname()
        values["lease_namespace"] = values.get("lease_namespace") or values.get("pod_namespace", "default")
        return cls(**values)


def _hint(value: str) -> str:
    return " (a Service's link: set enableServiceLinks: false)" if value.startswith("tcp://") else ""
