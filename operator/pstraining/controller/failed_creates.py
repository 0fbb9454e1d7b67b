"""Remembers why Kubernetes' controllers could not create pods, by their FailedCreate events.

A Deployment reports this in a condition; a StatefulSet and a Job report it only in events. The message is dropped when
a pod of the workload is created, and recorded again with the controller's next attempt.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

KIND = "Event"
FIELD_SELECTOR = "reason=FailedCreate"
WORKLOADS_MAX = 5_000
"""Workloads that are remembered. They include other users' workloads, as events cannot be selected by label."""
Object = Mapping[str, Any]


class FailedCreates:
    """The newest message of each workload, by its uid."""

    def __init__(self) -> None:
        self._messages: OrderedDict[str, str] = OrderedDict()

    def observed(self, event: Object) -> bool:
        """Record an event from the watch; return whether its message is new."""
        uid = str((event.get("involvedObject") or {}).get("uid") or "")
        message = str(event.get("message") or "")
        is_new = bool(uid and message) and self._messages.get(uid) != message
        if uid and message:
            self._messages[uid] = message
            self._messages.move_to_end(uid)
            while len(self._messages) > WORKLOADS_MAX:
                self._messages.popitem(last=False)
        return is_new

    def pod_seen(self, pod: Object) -> None:
        """Drop the messages of a created pod's workload."""
        for owner in pod["metadata"].get("ownerReferences") or ():
            self._messages.pop(str(owner.get("uid")), None)

    def of(self, children: Iterable[Object]) -> dict[str, str]:
        """Return the messages of these workloads, by uid."""
        uids = (str(c["metadata"]["uid"]) for c in children)
        return {uid: self._messages[uid] for uid in uids if uid in self._messages}
