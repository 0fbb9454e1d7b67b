"""Notes when the watch shows that a pod is being deleted: the API server's clock may differ from the operator's.

A pod on a node that is not ready counts as lost some seconds after its grace period. With the times of its metadata, an
operator whose clock is ahead would delete it by force while it still saves its state. A pod that a list already returns
as being deleted keeps its times, because its deletion was not watched.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from pstraining.controller.clocks import SYSTEM
from pstraining.core.observe import parse_time
from pstraining.core.snapshot import Pod

Object = Mapping[str, Any]


class Deletions:
    """The watched deletions of pods."""

    def __init__(self, clock: Callable[[], datetime] = SYSTEM.time_of_day) -> None:
        """Create it without a deletion.

        Args:
            clock: the time of day.
        """
        self._clock = clock
        self._seen: dict[str, tuple[str, datetime | None]] = {}
        """The end of the grace period in the pod's metadata, and the time at which the watch showed it, by uid. The
        time is None if a list has shown it."""

    def observed(self, pod: Object, *, is_change: bool) -> None:
        """Record a pod.

        Args:
            pod: the pod, as it is now.
            is_change: whether the watch reports a change, and the pod was known before.
        """
        end, uid = pod["metadata"].get("deletionTimestamp"), str(pod["metadata"]["uid"])
        # A further deletion may change the grace period.
        if end and self._seen.get(uid, ("",))[0] != end:
            self._seen[uid] = str(end), self._clock() if is_change else None

    def vanished(self, pod: Object) -> None:
        """Forget a pod that no longer exists."""
        self._seen.pop(str(pod["metadata"]["uid"]), None)

    def timed(self, pod: Pod) -> Pod:
        """Return a pod with the end of its grace period by the operator's clock, if the watch has shown the deletion.

        The time of the deletion stays that of the API server, because it is compared with the times of kubelets.
        """
        end, seen = self._seen.get(pod.uid, (None, None))
        if seen is None or pod.ends_at is None or pod.deleted_at is None or pod.ends_at != parse_time(end):
            return pod
        return replace(pod, ends_at=seen + (pod.ends_at - pod.deleted_at))
