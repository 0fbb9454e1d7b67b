"""Notes when it was first seen that a worker's program has succeeded: its node's clock may differ from the operator's.

The pod of such a worker stays for its log. Its idle launcher repeats the success after a minute, so with the times of a
node whose clock is ahead, the pod would stay forever.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from pstraining.api import names
from pstraining.controller.clocks import SYSTEM
from pstraining.core.snapshot import Pod

Object = Mapping[str, Any]


class Successes:
    """The workers' pods whose program has ended with exit code 0."""

    def __init__(self, clock: Callable[[], datetime] = SYSTEM.time_of_day) -> None:
        """Create it without a success.

        Args:
            clock: the time of day.
        """
        self._clock = clock
        self._seen: dict[str, datetime] = {}
        """The time at which the success was first seen, by the pod's uid."""

    def vanished(self, pod: Object) -> None:
        """Forget a pod that no longer exists."""
        self._seen.pop(str(pod["metadata"]["uid"]), None)

    def timed(self, pod: Pod) -> Pod:
        """Return a pod with the time at which its success was first seen, if it has succeeded."""
        ends = (pod.container.terminated, pod.container.last)
        if pod.role != names.WORKER or not any(end is not None and end.exit_code == 0 for end in ends):
            return pod
        return replace(pod, success_seen=self._seen.setdefault(pod.uid, self._clock()))
