"""Pods that a controller of Kubernetes could not create, in its own words.

A Deployment has a condition that says so; a StatefulSet and a Job have only events (reason FailedCreate). What they say
is forgotten when a pod of the workload is seen, and told again with the controller's next try.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

KIND = "Event"
FIELD_SELECTOR = "reason=FailedCreate"
MAX_REFUSALS = 5_000
"""Workloads remembered; of everybody's in the cluster, as events cannot be selected by label."""
Object = Mapping[str, Any]


class Refusals:
    """The newest refusal of each workload, by its uid."""

    def __init__(self) -> None:
        self._words: OrderedDict[str, str] = OrderedDict()

    def observed(self, event: Object) -> bool:
        """Take in an event from the watch; whether it says anything new."""
        uid = str((event.get("involvedObject") or {}).get("uid") or "")
        words = str(event.get("message") or "")
        new = bool(uid and words) and self._words.get(uid) != words
        if uid and words:
            self._words[uid] = words
            self._words.move_to_end(uid)
            while len(self._words) > MAX_REFUSALS:
                self._words.popitem(last=False)
        return new

    def pod_seen(self, pod: Object) -> None:
        """A pod has just come to be: what refused it is over."""
        for owner in pod["metadata"].get("ownerReferences") or ():
            self._words.pop(str(owner.get("uid")), None)

    def of(self, children: Iterable[Object]) -> dict[str, str]:
        """What is known of these workloads, by uid."""
        uids = (str(c["metadata"]["uid"]) for c in children)
        return {uid: self._words[uid] for uid in uids if uid in self._words}
