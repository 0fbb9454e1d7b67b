"""What is known of every job: the watch's word, and our own writes until the watch has caught up with them.

A pass must never act on a view that is older than its own last write: a child that was just created would be posted
again, a failure counted twice, an event told twice. So every object that a write returns goes in here at once, and from
then on the higher resourceVersion wins, whoever brings it. A uid that is gone stays gone, whether our delete or the
watch said so first: an answer or an event that comes late does not raise the dead. kopf fills the cache for every kind
before it calls the first handler (registration.py).

Objects are held as JSON text: a Deployment takes 3 KB so, against 18 KB as dicts, and about 20 us to read in a pass.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from pstraining.api import names
from pstraining.controller.trim import trim
from pstraining.core.actions import Kind

Key = tuple[str, str]
"""Namespace and name of a job."""
Object = Mapping[str, Any]
Place = tuple[str, str, str]
"""Kind, namespace and name of any object."""

MAX_TOMBSTONES = 5_000
"""Uids remembered as gone; the watch is never that far behind."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """One object."""

    uid: str
    version: str
    body: bytes | Object
    """The trimmed object without its resourceVersion: as JSON, or as it is where its texts are shared."""

    def read(self) -> Object:
        """The object."""
        body = orjson.loads(self.body) if isinstance(self.body, bytes) else self.body
        return {**body, "metadata": {**body["metadata"], "resourceVersion": self.version}}


@dataclass
class _Entry:
    """Everything that is known of one job's name."""

    job: _Stored | None = None
    children: dict[tuple[str, str], _Stored] = field(default_factory=dict)
    pods: dict[str, _Stored] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return self.job is None and not self.children and not self.pods


@dataclass(frozen=True)
class JobObjects:
    """A job and the objects that name it by their labels, as of now."""

    job: Object | None
    children: tuple[Object, ...]
    pods: tuple[Object, ...]


class Cache:
    """Trimmed objects by job."""

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}
        self._places: dict[Place, Key] = {}
        self._tombstones: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def jobs(self) -> tuple[Key, ...]:
        """The jobs."""
        return tuple(key for key, entry in self._entries.items() if entry.job is not None)

    def has_job(self, key: Key) -> bool:
        """Whether there is such a job."""
        entry = self._entries.get(key)
        return entry is not None and entry.job is not None

    def view(self, key: Key) -> JobObjects:
        """What is known of a job."""
        entry = self._entries.get(key) or _Entry()
        return JobObjects(
            entry.job.read() if entry.job is not None else None,
            tuple(child.read() for child in entry.children.values()),
            tuple(pod.read() for pod in entry.pods.values()),
        )

    def on_node(self, name: str) -> tuple[Key, ...]:
        """The jobs that have a pod on this node."""
        # Texts are searched, not read: nodes are lost rarely, and there may be many pods.
        mark = b'"nodeName":' + orjson.dumps(name)
        return tuple(
            key
            for key, entry in self._entries.items()
            if any(isinstance(pod.body, bytes) and mark in pod.body for pod in entry.pods.values())
        )

    def job_of(self, reference: Object) -> Key | None:
        """The job that the object of this kind, namespace and name belongs to."""
        return self._places.get((str(reference["kind"]), str(reference.get("namespace")), str(reference["name"])))

    def observed(self, raw: Object) -> Key | None:
        """Take in an object from the watch.

        Returns:
            The job to look at again; None if nothing is new.
        """
        key = _key_of(raw)
        return key if key is not None and self._put(key, trim(raw)) else None

    def vanished(self, raw: Object) -> Key | None:
        """The watch says that an object is gone.

        Returns:
            The job to look at again; None if that was known.
        """
        metadata = raw["metadata"]
        self._bury(metadata["uid"])
        return self._remove((raw["kind"], metadata["namespace"], metadata["name"]), metadata["uid"])

    def wrote(self, namespace: str, job: str, written: Object) -> None:
        """A write of ours returned this object."""
        self._put((namespace, job), trim(written))

    def deleted(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """A delete of ours left no such object behind."""
        self._bury(uid)
        self._remove((kind, namespace, name), uid)

    def _bury(self, uid: str) -> None:
        self._tombstones[uid] = None
        while len(self._tombstones) > MAX_TOMBSTONES:
            self._tombstones.popitem(last=False)

    def _put(self, key: Key, trimmed: Object) -> bool:
        """Store an object unless a newer one is known; whether anything but its resourceVersion changed."""
        metadata, new = trimmed["metadata"], _store(trimmed)
        if new.uid in self._tombstones:
            return False
        place = (Kind.of(trimmed), metadata["namespace"], metadata["name"])
        old_key = self._places.get(place)
        old = self._find(old_key, place) if old_key is not None else None
        if old is not None and not _supersedes(new, old):
            return False
        if old_key is not None and old_key != key:
            self._drop(old_key, place)
        self._places[place] = key
        self._set(key, place, new)
        return old is None or old_key != key or (old.uid, old.body) != (new.uid, new.body)

    def _remove(self, place: Place, uid: str) -> Key | None:
        key = self._places.get(place)
        found = self._find(key, place) if key is not None else None
        if key is None or found is None or found.uid != uid:
            return None
        self._drop(key, place)
        return key

    def _find(self, key: Key, place: Place) -> _Stored | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        kind, _, name = place
        match kind:
            case Kind.PS_TRAINING_JOB:
                return entry.job
            case Kind.POD:
                return entry.pods.get(name)
        return entry.children.get((kind, name))

    def _set(self, key: Key, place: Place, new: _Stored) -> None:
        entry = self._entries.setdefault(key, _Entry())
        kind, _, name = place
        match kind:
            case Kind.PS_TRAINING_JOB:
                entry.job = new
            case Kind.POD:
                entry.pods[name] = new
            case _:
                entry.children[kind, name] = new

    def _drop(self, key: Key, place: Place) -> None:
        entry = self._entries[key]
        kind, _, name = place
        match kind:
            case Kind.PS_TRAINING_JOB:
                entry.job = None
            case Kind.POD:
                entry.pods.pop(name, None)
            case _:
                entry.children.pop((kind, name), None)
        self._places.pop(place, None)
        if entry.empty:
            del self._entries[key]


def _key_of(raw: Object) -> Key | None:
    """The job that an object belongs to by its kind or label."""
    metadata = raw["metadata"]
    if raw.get("kind") == Kind.PS_TRAINING_JOB:
        return metadata["namespace"], metadata["name"]
    job = (metadata.get("labels") or {}).get(names.LABEL_JOB)
    return (metadata["namespace"], job) if job else None


def _store(trimmed: Object) -> _Stored:
    metadata = dict(trimmed["metadata"])
    version = str(metadata.pop("resourceVersion", ""))
    body = {**trimmed, "metadata": metadata}
    shared = trimmed["kind"] == Kind.CONFIG_MAP
    # Sorted, as a list and a watch put an object's fields in different orders.
    packed = body if shared else orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    return _Stored(metadata["uid"], version, packed)


def _supersedes(new: _Stored, old: _Stored) -> bool:
    """Whether the new object is not older; resourceVersions of one cluster are ordered integers in all practice."""
    both_numbers = new.version.isdigit() and old.version.isdigit()
    return not both_numbers or int(new.version) >= int(old.version)
