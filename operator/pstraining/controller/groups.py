"""The PodGroups of gangs: read where a job has one, never watched.

Their kind may not be installed, and kopf cannot begin to watch a kind later; jobs without a gang must cost nothing. A
group matters only while a pod waits for a place: so it is read once when this operator first sees the job, and again
while pods wait, which finds one that somebody has changed or deleted. Our own writes are in the cache as all others.
"""

from datetime import datetime, timedelta

from pstraining.api import names
from pstraining.controller.cache import Cache, Key
from pstraining.core.observe import controller_uid
from pstraining.core.policies.gang import kind_of_group
from pstraining.core.snapshot import Snapshot
from pstraining.kube.errors import NotFound, Refused
from pstraining.kube.port import ApiPort

AGAIN = timedelta(seconds=10)
"""Between two looks at the group of a job whose pods wait."""


class Groups:
    """Reads them into the cache."""

    def __init__(self, port: ApiPort, cache: Cache) -> None:
        self._port = port
        self._cache = cache
        self._looked: dict[Key, tuple[str, datetime]] = {}
        """Uid of the job, and when its group was read last."""

    def forget(self, key: Key) -> None:
        """The job is gone, or what is known of its group does not hold: it is read before the next pass."""
        self._looked.pop(key, None)

    async def read(self, snapshot: Snapshot, now: datetime) -> bool:
        """Read a job's group if it is time to.

        Returns:
            Whether it was read; what is known may be new then.

        Raises:
            Transient: try again later.
        """
        kind = kind_of_group(snapshot.job)
        if kind is None or not self._is_due(snapshot, now):
            return False
        name = names.pod_group(snapshot.name)
        try:
            found = await self._port.get(kind, snapshot.namespace, name)
        except NotFound:
            if (known := snapshot.child(kind, name)) is not None:
                self._cache.deleted(kind, snapshot.namespace, name, known.uid)
        except Refused:
            pass  # told when it is to be created
        else:
            if controller_uid(found) == snapshot.uid:
                self._cache.wrote(snapshot.namespace, snapshot.name, found)
        self._looked[snapshot.namespace, snapshot.name] = (snapshot.uid, now)
        return True

    def _is_due(self, snapshot: Snapshot, now: datetime) -> bool:
        uid, last = self._looked.get((snapshot.namespace, snapshot.name), ("", now))
        waits = any(not (p.node or p.over or p.deleting) for p in snapshot.pods)
        return uid != snapshot.uid or (waits and now >= last + AGAIN)
