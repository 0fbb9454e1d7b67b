"""Holds the cluster's nodes: their Ready condition and out-of-service taint, without fields that heartbeats change.

The silence of a node counts from its first report here, because the node controller's clock may differ from the
operator's.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from pstraining.controller.clocks import SYSTEM
from pstraining.core.snapshot import OUT_OF_SERVICE

KIND = "Node"
_KEPT = ("type", "status", "lastTransitionTime")
Object = Mapping[str, Any]


class Nodes:
    """Nodes by name."""

    def __init__(self, clock: Callable[[], datetime] = SYSTEM.time_of_day) -> None:
        """Create the nodes.

        Args:
            clock: the time of day.
        """
        self._clock = clock
        self._nodes: dict[str, Object] = {}
        self._silent_since: dict[str, datetime] = {}
        self._last_reports: dict[str, datetime] = {}

    def observed(self, raw: Object) -> bool:
        """Record a node from the watch; return whether the jobs of its pods need a pass."""
        new = _trim(raw)
        name = new["metadata"]["name"]
        old = self._nodes.get(name)
        self._nodes[name] = new
        if _is_ready(new):
            self._last_reports.pop(name, None)
        if not _is_silent(new):
            self._silent_since.pop(name, None)
        elif old is None or old["status"] != new["status"]:
            self._silent_since[name] = self._clock()
        # A new healthy node changes nothing for any job.
        return new != old and not (old is None and _is_healthy(new))

    def vanished(self, raw: Object) -> bool:
        """Remove a node; return whether the jobs of its pods need a pass."""
        name = raw["metadata"]["name"]
        node = self._nodes.get(name)
        if node is None or node["metadata"]["uid"] != raw["metadata"]["uid"]:
            return False
        del self._nodes[name]
        self._silent_since.pop(name, None)
        self._last_reports.pop(name, None)
        return True

    def silent_since(self, name: str) -> datetime | None:
        """Return when it was first seen that a node does not report; None if it reports."""
        return self._silent_since.get(name)

    def pod_reported(self, name: str) -> None:
        """Record that the kubelet of a node has reported on containers of a pod that is being deleted."""
        self._last_reports[name] = self._clock()

    def last_reports(self, pods: Iterable[Object]) -> dict[str, datetime]:
        """Return the times of these reports, by the nodes of pods, since the nodes were last ready."""
        if not self._last_reports:
            return {}
        names = {(p.get("spec") or {}).get("nodeName") for p in pods}
        return {name: at for name, at in self._last_reports.items() if name in names}

    def of(self, pods: Iterable[Object]) -> tuple[Object, ...]:
        """Return the existing nodes of these pods."""
        names = {(p.get("spec") or {}).get("nodeName") for p in pods}
        return tuple(self._nodes[n] for n in sorted(n for n in names if n in self._nodes))


def _trim(raw: Object) -> dict[str, Any]:
    taints = (raw.get("spec") or {}).get("taints") or ()
    conditions = (raw.get("status") or {}).get("conditions") or ()
    return {
        "metadata": {"name": raw["metadata"]["name"], "uid": raw["metadata"]["uid"]},
        "spec": {"taints": [{"key": OUT_OF_SERVICE} for t in taints if t.get("key") == OUT_OF_SERVICE]},
        "status": {"conditions": [{k: c[k] for k in _KEPT if k in c} for c in conditions if c["type"] == "Ready"]},
    }


def _is_silent(node: Object) -> bool:
    return all(c.get("status") == "Unknown" for c in node["status"]["conditions"])


def _is_ready(node: Object) -> bool:
    return [c["status"] for c in node["status"]["conditions"]] == ["True"]


def _is_healthy(node: Object) -> bool:
    return _is_ready(node) and not node["spec"]["taints"]
