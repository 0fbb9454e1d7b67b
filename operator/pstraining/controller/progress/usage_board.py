"""The newest report of the resource usage of each measured job's pods. A report lost in a crash is sent again."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from pstraining.controller.informer_cache import Key
from pstraining.core.usage import STALE_SECONDS, Usage, read_usage

_NONE: Final[Usage] = MappingProxyType({})


@dataclass(frozen=True)
class _KeptUsage:
    uid: str
    usage: Usage
    received: float


class UsageBoard:
    """Receives reports of the pods' resource usage."""

    def __init__(
        self,
        enqueue: Callable[[Key], None],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Create an empty board.

        Args:
            enqueue: requests a pass over a job.
            clock: monotonic seconds.
            now: the time of day.
        """
        self._enqueue, self._clock, self._now = enqueue, clock, now
        self._reports: dict[Key, _KeptUsage] = {}
        """In the order in which they were received."""

    def note(self, key: Key, uid: str, body: object) -> str:
        """Receive a report for the job with this uid; return why it is refused, or an empty text.

        Launchers report twice a minute, and at once if a decision may follow, so each report causes a pass.
        """
        found = read_usage(body, self.of(key, uid), self._now())
        if isinstance(found, str):
            return found
        now = self._clock()
        self._reports.pop(key, None)
        self._reports[key] = _KeptUsage(uid, found, now)
        while now - self._reports[oldest := next(iter(self._reports))].received >= STALE_SECONDS:
            del self._reports[oldest]
        self._enqueue(key)
        return ""

    def of(self, key: Key, uid: str) -> Usage:
        """Return the resource usage of the pods of the job with this uid, by role; empty without a recent report."""
        report = self._reports.get(key)
        is_current = report is not None and report.uid == uid and self._clock() - report.received < STALE_SECONDS
        return report.usage if report is not None and is_current else _NONE
