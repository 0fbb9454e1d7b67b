"""Reads why the volumes of waiting pods cannot be mounted: Kubernetes reports it only in events of the pod.

Such events are not watched, because a watch can select only one reason, and the events of all pods of a cluster are
many. A pod's events are read once it has waited for a minute without a known cause, and again while it waits: a storage
that does not respond is reported only after minutes, and then the pod's status does not change.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from pstraining.api.text import printable
from pstraining.controller.failed_creates import MESSAGE_MAX, moment
from pstraining.controller.informer_cache import Key
from pstraining.core.snapshot import Pod
from pstraining.kube.errors import NotFound, Refused
from pstraining.kube.port import ApiPort, Object

REASONS: Final = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
REREAD_SECONDS: Final = 60.0
"""Seconds between two reads for one job."""
_SHORTEST: Final = 0.005
"""Seconds until a read that is due now: a timer may fire slightly early."""
PODS_MAX: Final = 3
"""Maximum number of a job's pods whose events are read at a time: the condition reports one pod."""


class MountFailures:
    """The newest message of each waiting pod, by its uid."""

    def __init__(self, port: ApiPort, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a reader.

        Args:
            port: the API server.
            clock: monotonic seconds.
        """
        self._port, self._clock = port, clock
        self._messages: dict[Key, dict[str, str]] = {}
        self._last_reads: dict[Key, float] = {}
        self._refused: set[Key] = set()
        """The jobs whose events may not be read."""

    def of(self, key: Key) -> Mapping[str, str]:
        """Return the messages about a job's pods, by uid."""
        return self._messages.get(key, {})

    def reread_delay(self, key: Key) -> float:
        """Return the seconds until a job's events are read again; 0 if no pod waits, or they may not be read."""
        if key not in self._last_reads or key in self._refused:
            return 0.0
        return max(_SHORTEST, self._last_reads[key] + REREAD_SECONDS - self._clock())

    def forget(self, key: Key) -> None:
        """Forget a job."""
        self._messages.pop(key, None)
        self._last_reads.pop(key, None)
        self._refused.discard(key)

    async def read(self, key: Key, waiting: Iterable[Pod]) -> bool:
        """Read the events of waiting pods if a read is due; return whether a message is new.

        Args:
            key: the job.
            waiting: the pods that wait without a known cause.

        Raises:
            Transient: the read failed and is worth a retry.
        """
        pods = list(waiting)[:PODS_MAX]
        if not pods:
            self.forget(key)
            return False
        if self._clock() < self._last_reads.get(key, -REREAD_SECONDS) + REREAD_SECONDS:
            return False
        self._last_reads[key] = self._clock()
        try:
            found = {pod.uid: newest(await self._port.warnings(key[0], pod.uid)) for pod in pods}
        except (Refused, NotFound):
            self._refused.add(key)
            return False  # without the right to read events, the cause stays unknown
        self._refused.discard(key)
        before, self._messages[key] = self.of(key), {uid: message for uid, message in found.items() if message}
        return before != self._messages[key]


def newest(events: Iterable[Object]) -> str:
    """Return the message of the newest event about a volume; empty without one."""
    about = [event for event in events if event.get("reason") in REASONS and event.get("message")]
    return printable(str(max(about, key=moment)["message"]))[:MESSAGE_MAX] if about else ""
