"""Caches every job and its objects: the objects that the watches deliver, and our own writes before their events.

A pass must never use objects that are older than its own last write. Otherwise it would create a child again, count a
failure twice or post an event twice. Every object that a write returns is therefore cached at once. Afterwards the
higher resourceVersion wins, whether the watch or a write delivered it. A deleted uid stays deleted: late events and
answers about it are ignored. An object that only lost the label by which the watch selects it is cached again with the
label, because its version is then later than that of its DELETED event. kopf fills the cache for every kind before it
calls the first handler (registration.py).

Objects are stored as JSON text: a Deployment takes 3 KB as text and 18 KB as dicts, and is parsed in about 20 us.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from pstraining.api import names
from pstraining.controller.transform import containers, transform
from pstraining.core.actions import Kind
from pstraining.core.observe import is_owned, is_task
from pstraining.kube.paths import RESOURCES
from pstraining.resources import kueue

Key = tuple[str, str]
"""Namespace and name of a job."""
Object = Mapping[str, Any]
ObjectRef = tuple[str, str, str]
"""Kind, namespace and name of an object."""

TOMBSTONES_MAX = 5_000
"""Maximum number of remembered uids of deleted objects; the watch is never that far behind."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """One cached object."""

    uid: str
    version: str
    body: bytes
    """The transformed object without its resourceVersion, as JSON."""

    def read(self) -> Object:
        """Return the object."""
        body = orjson.loads(self.body)
        return {**body, "metadata": {**body["metadata"], "resourceVersion": self.version}}


@dataclass
class _Entry:
    """All cached objects of one job's name."""

    job: _Stored | None = None
    children: dict[tuple[str, str], _Stored] = field(default_factory=dict)
    pods: dict[str, _Stored] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return self.job is None and not self.children and not self.pods


@dataclass(frozen=True)
class JobObjects:
    """A job and the objects whose labels name it."""

    job: Object | None
    children: tuple[Object, ...]
    pods: tuple[Object, ...]


class InformerCache:
    """Holds transformed objects by job."""

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}
        self._keys: dict[ObjectRef, Key] = {}
        self._tombstones: OrderedDict[str, int | None] = OrderedDict()
        """The version of the DELETED event by uid; None if the object certainly no longer exists."""

    def __len__(self) -> int:
        return len(self._keys)

    def jobs(self) -> tuple[Key, ...]:
        """Return the keys of all jobs."""
        return tuple(key for key, entry in self._entries.items() if entry.job is not None)

    def has_job(self, key: Key) -> bool:
        """Whether the job is cached."""
        return self.job_uid(key) is not None

    def view(self, key: Key) -> JobObjects:
        """Return a job and its objects; the job is None if only its objects are cached."""
        entry = self._entries.get(key) or _Entry()
        return JobObjects(
            entry.job.read() if entry.job is not None else None,
            tuple(child.read() for child in entry.children.values()),
            tuple(pod.read() for pod in entry.pods.values()),
        )

    def on_node(self, name: str) -> tuple[Key, ...]:
        """Return the jobs that have a pod on a node."""
        # The JSON text is searched, not parsed: there may be many pods, and node changes are rare.
        field = b'"nodeName":' + orjson.dumps(name)
        return tuple(
            key for key, entry in self._entries.items() if any(field in pod.body for pod in entry.pods.values())
        )

    def belongs(self, raw: Object) -> bool:
        """Whether an object is a job, was sent for one, or belongs to the cached job that its labels name.

        Copies with a job's labels, such as the pods that `kubectl debug --keep-labels` makes, do not belong to it.
        """
        if raw.get("kind") == Kind.PS_TRAINING_JOB or _is_sent(raw):
            return True
        key = _key_of(raw)
        uid = None if key is None else self.job_uid(key)
        if key is None or uid is None or (raw["metadata"].get("labels") or {}).get(names.LABEL_JOB_UID) != uid:
            return False
        return is_task(raw, key[1]) if raw.get("kind") == Kind.POD else is_owned(raw, {"name": key[1], "uid": uid})

    def has(self, raw: Object) -> bool:
        """Whether an object with this kind and name is cached."""
        return (str(raw["kind"]), raw["metadata"]["namespace"], raw["metadata"]["name"]) in self._keys

    def drop(self, raw: Object) -> Key | None:
        """Remove an object that no longer belongs to a job.

        Returns:
            The job that needs a pass; None if the object was not cached.
        """
        metadata = raw["metadata"]
        return self._remove((str(raw["kind"]), metadata["namespace"], metadata["name"]), metadata["uid"])

    def job_uid(self, key: Key) -> str | None:
        """Return the uid of the job; None if it is not cached."""
        entry = self._entries.get(key)
        return None if entry is None or entry.job is None else entry.job.uid

    def job_version(self, key: Key, uid: str) -> str | None:
        """Return the resourceVersion of the job with this uid; None if it is not cached."""
        entry = self._entries.get(key)
        return None if entry is None or entry.job is None or entry.job.uid != uid else entry.job.version

    def job_and_pod(self, key: Key, pod: str) -> tuple[Object | None, Object | None]:
        """Return the job, and its pod of this name; each is None if it is not cached. Any thread may call it."""
        entry = self._entries.get(key) or _Entry()
        stored = entry.job, entry.pods.get(pod)
        job, found = (None if item is None else item.read() for item in stored)
        return job, found

    def has_new_containers(self, pod: Object) -> bool:
        """Whether a cached pod has other states of its containers now, which only its kubelet reports."""
        ref = (str(Kind.POD), pod["metadata"]["namespace"], pod["metadata"]["name"])
        key = self._keys.get(ref)
        former = None if key is None else self._find(key, ref)
        if former is None or former.uid != pod["metadata"]["uid"]:
            return False
        before = former.read()["status"].get("containerStatuses") or []
        return bool(before != containers(pod.get("status") or {}))

    def drop_children(self, key: Key) -> None:
        """Remove all objects of a job, except the job itself and the Workload that MultiKueue sends before the job."""
        entry = self._entries.get(key) or _Entry()
        owned = [child for child, stored in entry.children.items() if not _is_sent(stored.read())]
        for kind, name in (*owned, *((Kind.POD, name) for name in entry.pods)):
            self._drop(key, (kind, key[0], name))

    def forget_versions(self, plural: str, namespace: str | None) -> None:
        """Accept any version of these objects from now on, and also deleted objects.

        Call this when the API server's store was restored from a backup: its versions restart below the cached ones.

        Args:
            plural: the kind's plural.
            namespace: the objects' namespace; None for all namespaces.
        """
        self._tombstones.clear()
        kinds = {kind for kind, resource in RESOURCES.items() if resource.plural == plural}
        for ref, key in list(self._keys.items()):
            stored = self._find(key, ref)
            if stored is not None and ref[0] in kinds and namespace in (None, ref[1]):
                self._set(key, ref, replace(stored, version=""))

    def job_of(self, namespace: str, reference: Object) -> Key | None:
        """Return the job that owns the object of an ObjectReference; None if no object with its uid is cached."""
        ref = str(reference.get("kind")), namespace, str(reference.get("name"))
        key = self._keys.get(ref)
        stored = None if key is None else self._find(key, ref)
        return key if stored is not None and stored.uid == reference.get("uid") else None

    def observed(self, raw: Object) -> Key | None:
        """Cache an object from the watch.

        Returns:
            The job that needs a pass; None if nothing has changed.
        """
        key = _key_of(raw)
        return key if key is not None and self._put(key, raw) else None

    def vanished(self, raw: Object) -> Key | None:
        """Remove an object that the watch reports as deleted.

        Returns:
            The job that needs a pass; None if the object was not cached.
        """
        metadata = raw["metadata"]
        version = str(metadata.get("resourceVersion", ""))
        self._add_tombstone(metadata["uid"], int(version) if version.isdigit() else None)
        return self._remove((raw["kind"], metadata["namespace"], metadata["name"]), metadata["uid"])

    def freed(self, raw: Object) -> Key | None:
        """Return the cached job that the labels of another's object name, such as a former job's; None without one."""
        key = _key_of(raw)
        theirs = (raw["metadata"].get("labels") or {}).get(names.LABEL_JOB_UID)
        return None if key is None or theirs is None or not self.has_job(key) or self.belongs(raw) else key

    def version(self, kind: Kind, namespace: str, name: str) -> str:
        """Return the resourceVersion of an object; empty if it is not cached."""
        ref = (str(kind), namespace, name)
        key = self._keys.get(ref)
        stored = None if key is None else self._find(key, ref)
        return "" if stored is None else stored.version

    def wrote(self, namespace: str, job: str, written: Object) -> None:
        """Cache the object that our own write returned."""
        self._put((namespace, job), written)

    def deleted(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Remove an object that our own delete has removed from the API server."""
        self._add_tombstone(uid, None)
        self._remove((kind, namespace, name), uid)

    def _add_tombstone(self, uid: str, version: int | None) -> None:
        known = self._tombstones.get(uid, 0)
        self._tombstones[uid] = None if known is None or version is None else max(known, version)
        while len(self._tombstones) > TOMBSTONES_MAX:
            self._tombstones.popitem(last=False)

    def _put(self, key: Key, raw: Object) -> bool:
        """Store an object unless it or a newer one is cached; return whether more than its resourceVersion has changed.

        Each of our writes arrives twice: as its answer and as its event. The second one is only compared by version.
        """
        metadata = raw["metadata"]
        ref = (Kind.of(raw), metadata["namespace"], metadata["name"])
        old_key = self._keys.get(ref)
        old = self._find(old_key, ref) if old_key is not None else None
        version = str(metadata.get("resourceVersion", ""))
        if old is not None and old_key == key and version and (old.uid, old.version) == (metadata["uid"], version):
            return False
        new = _store(transform(raw))
        if new.uid in self._tombstones:
            if not _is_later(new.version, self._tombstones[new.uid]):
                return False
            del self._tombstones[new.uid]
        if old is not None and not _supersedes(new, old):
            return False
        if old_key is not None and old_key != key:
            self._drop(old_key, ref)
        self._keys[ref] = key
        self._set(key, ref, new)
        return old is None or old_key != key or (old.uid, old.body) != (new.uid, new.body)

    def _remove(self, ref: ObjectRef, uid: str) -> Key | None:
        key = self._keys.get(ref)
        stored = self._find(key, ref) if key is not None else None
        if key is None or stored is None or stored.uid != uid:
            return None
        self._drop(key, ref)
        return key

    def _find(self, key: Key, ref: ObjectRef) -> _Stored | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        kind, _, name = ref
        match kind:
            case Kind.PS_TRAINING_JOB:
                return entry.job
            case Kind.POD:
                return entry.pods.get(name)
        return entry.children.get((kind, name))

    def _set(self, key: Key, ref: ObjectRef, new: _Stored) -> None:
        entry = self._entries.setdefault(key, _Entry())
        kind, _, name = ref
        match kind:
            case Kind.PS_TRAINING_JOB:
                entry.job = new
            case Kind.POD:
                entry.pods[name] = new
            case _:
                entry.children[kind, name] = new

    def _drop(self, key: Key, ref: ObjectRef) -> None:
        entry = self._entries[key]
        kind, _, name = ref
        match kind:
            case Kind.PS_TRAINING_JOB:
                entry.job = None
            case Kind.POD:
                entry.pods.pop(name, None)
            case _:
                entry.children.pop((kind, name), None)
        self._keys.pop(ref, None)
        if entry.is_empty:
            del self._entries[key]


def _key_of(raw: Object) -> Key | None:
    """Return the job that an object belongs to, by its kind or label; None without one."""
    metadata = raw["metadata"]
    if raw.get("kind") == Kind.PS_TRAINING_JOB:
        return metadata["namespace"], metadata["name"]
    job = (metadata.get("labels") or {}).get(names.LABEL_JOB)
    return (metadata["namespace"], job) if job else None


def _is_sent(raw: Object) -> bool:
    """Whether MultiKueue has sent an object; it has the uid of the job in the other cluster."""
    return raw.get("kind") == Kind.WORKLOAD and kueue.LABEL_ORIGIN in (raw["metadata"].get("labels") or {})


def _store(transformed: Object) -> _Stored:
    metadata = dict(transformed["metadata"])
    version = str(metadata.pop("resourceVersion", ""))
    # Sorted: a list and a watch return an object's fields in different orders.
    body = orjson.dumps({**transformed, "metadata": metadata}, option=orjson.OPT_SORT_KEYS)
    return _Stored(metadata["uid"], version, body)


def _is_later(version: str, deleted: int | None) -> bool:
    """Whether an object's version is later than its DELETED event, so that the object still exists."""
    return deleted is not None and version.isdigit() and int(version) > deleted


def _supersedes(new: _Stored, old: _Stored) -> bool:
    """Whether the new object is at least as new. In practice, a cluster's resourceVersions are ordered integers."""
    both_numbers = new.version.isdigit() and old.version.isdigit()
    return not both_numbers or int(new.version) >= int(old.version)
