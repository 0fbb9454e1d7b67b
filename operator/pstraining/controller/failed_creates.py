"""Remembers why Kubernetes' controllers could not create pods, from their FailedCreate events.

A Deployment reports this in a condition; a StatefulSet and a Job report it only in events. The message is dropped when
a pod of the workload is created, and recorded again with the controller's next attempt. Events and pods arrive in any
order, so times decide whether a pod was created later: an event remains for an hour, and a restarted operator reads it
again.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

KIND = "Event"
FIELD_SELECTOR = "reason=FailedCreate"
WORKLOADS_MAX = 5_000
"""Maximum number of remembered workloads of jobs."""
OTHERS_MAX = 256
"""Maximum number of other remembered workloads: events cannot be selected by label, and may precede their workload."""
MESSAGE_MAX = 1_024
"""Maximum characters of a kept message: the API server limits neither the length nor the authors of events."""
_SECONDS: Final = len("2026-01-01T00:00:00")
"""Characters of a time in UTC without the parts of a second, which pods do not have."""
Object = Mapping[str, Any]


class _FailedCreate(NamedTuple):
    message: str
    moment: str
    """When the event was last seen; empty if it does not tell."""


def moment(event: Object) -> str:
    """Return when an event was last seen, as RFC 3339 in UTC, which sorts by time."""
    series = (event.get("series") or {}).get("lastObservedTime")
    return str(series or event.get("lastTimestamp") or event.get("eventTime") or "")


class FailedCreates:
    """The newest message of each workload, by its namespace and uid."""

    def __init__(self) -> None:
        self._ours: OrderedDict[tuple[str, str], _FailedCreate] = OrderedDict()
        self._others: OrderedDict[tuple[str, str], _FailedCreate] = OrderedDict()

    def observed(self, event: Object, *, is_ours: bool) -> bool:
        """Record an event from the watch.

        Args:
            event: an event with the reason FailedCreate.
            is_ours: whether the event's workload belongs to a job.

        Returns:
            Whether the event's message is new.
        """
        uid = str((event.get("involvedObject") or {}).get("uid") or "")
        message = str(event.get("message") or "")[:MESSAGE_MAX]
        if not (uid and message):
            return False
        # An event is in the namespace of the object that it names, even if the object's own field has another one.
        key = (str((event.get("metadata") or {}).get("namespace")), uid)
        known, found = self._get(key), _FailedCreate(message, moment(event)[:_SECONDS])
        if known is not None and found.moment < known.moment:
            return False
        self._forget(key)
        kept, limit = (self._ours, WORKLOADS_MAX) if is_ours else (self._others, OTHERS_MAX)
        kept[key] = found
        while len(kept) > limit:
            kept.popitem(last=False)
        return known is None or known.message != message

    def pod_seen(self, pod: Object) -> None:
        """Drop the message of a created pod's workload, unless it is about a later attempt."""
        for owner in pod["metadata"].get("ownerReferences") or ():
            key = pod["metadata"]["namespace"], str(owner.get("uid"))
            if (found := self._get(key)) is not None and _created(pod) >= found.moment:
                self._forget(key)

    def of(self, children: Iterable[Object], pods: Iterable[Object] = ()) -> dict[str, str]:
        """Return the messages of workloads, by uid.

        Args:
            children: the workloads.
            pods: their pods. A message before the creation of a pod is no longer true, and dropped.
        """
        keys = [(c["metadata"]["namespace"], c["metadata"]["uid"]) for c in children]
        found = {key: refusal for key in keys if (refusal := self._get(key)) is not None}
        for pod in pods if found else ():
            for owner in pod["metadata"].get("ownerReferences") or ():
                key = pod["metadata"]["namespace"], str(owner.get("uid"))
                if key in found and _created(pod) > found[key].moment:
                    del found[key]
                    self._forget(key)
        return {key[1]: refusal.message for key, refusal in found.items()}

    def _get(self, key: tuple[str, str]) -> _FailedCreate | None:
        return self._ours.get(key, self._others.get(key))

    def _forget(self, key: tuple[str, str]) -> None:
        self._ours.pop(key, None)
        self._others.pop(key, None)


def _created(pod: Object) -> str:
    return str(pod["metadata"].get("creationTimestamp") or "")[:_SECONDS]
