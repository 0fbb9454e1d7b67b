"""Remembers why Kubernetes' controllers could not create pods, from their FailedCreate events.

A Deployment reports this in a condition; a StatefulSet and a Job report it only in events. The message is dropped when
a pod of the workload is created, and recorded again with the controller's next attempt.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

KIND = "Event"
FIELD_SELECTOR = "reason=FailedCreate"
WORKLOADS_MAX = 5_000
"""Maximum number of remembered workloads of jobs."""
OTHERS_MAX = 256
"""Maximum number of other remembered workloads: events cannot be selected by label, and may precede their workload."""
MESSAGE_MAX = 1_024
"""Maximum characters of a kept message: the API server limits neither the length nor the authors of events."""
Object = Mapping[str, Any]


class FailedCreates:
    """The newest message of each workload, by its namespace and uid."""

    def __init__(self) -> None:
        self._ours: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._others: OrderedDict[tuple[str, str], str] = OrderedDict()

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
        is_new = self._get(key) != message
        self._forget(key)
        kept, limit = (self._ours, WORKLOADS_MAX) if is_ours else (self._others, OTHERS_MAX)
        kept[key] = message
        while len(kept) > limit:
            kept.popitem(last=False)
        return is_new

    def pod_seen(self, pod: Object) -> None:
        """Drop the messages of a created pod's workload."""
        for owner in pod["metadata"].get("ownerReferences") or ():
            self._forget((pod["metadata"]["namespace"], str(owner.get("uid"))))

    def of(self, children: Iterable[Object]) -> dict[str, str]:
        """Return the messages of these workloads, by uid."""
        keys = [(c["metadata"]["namespace"], c["metadata"]["uid"]) for c in children]
        return {key[1]: message for key in keys if (message := self._get(key)) is not None}

    def _get(self, key: tuple[str, str]) -> str | None:
        return self._ours.get(key, self._others.get(key))

    def _forget(self, key: tuple[str, str]) -> None:
        self._ours.pop(key, None)
        self._others.pop(key, None)
