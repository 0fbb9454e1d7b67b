"""An API server in memory, behind the operator's ports, with the rules on which the operator relies.

Uids, resourceVersions, generations, AlreadyExists, uid and resourceVersion preconditions, field ownership by
server-side apply, status as a subresource, garbage collection by owner on demand. The contract suite (tests/contract)
holds it to what a real API server does. What it doesn't know: schemas, defaults, admission; `failures` plays those.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pstraining.api import names
from pstraining.controller.informer_cache import InformerCache
from pstraining.core.actions import Kind, Manifest
from pstraining.core.observe import controller_uid
from pstraining.kube.errors import Conflict, NotFound, Refused
from pstraining.kube.port import Object
from tests.support.copying import copied

Place = tuple[str, str, str]
Failure = Callable[[str, str, str, str], Exception | None]
"""Returns the error with which a request fails, or None; takes its verb, kind, namespace and name."""
UNKNOWN_FIELD = "unknownField"
"""A field name that this server's strict validation rejects."""


class FakeKube:
    """ApiPort and LeasePort in memory."""

    def __init__(self) -> None:
        self.objects: dict[Place, Object] = {}
        self.events: list[Object] = []
        self.requests: list[tuple[str, str, str]] = []
        """Verb, kind and name of every write that was made or attempted."""
        self.changes: list[tuple[str, Object]] = []
        """Unread events of the watch."""
        self.failures: Failure = lambda verb, kind, namespace, name: None
        self.serves_queues = True
        """Whether Kueue's CRDs are installed, and not being deleted."""
        self._applied: dict[str, dict[str, Manifest]] = {}
        self._versions = itertools.count(100)
        self._uids = itertools.count(1)

    # The port.

    async def create(self, kind: Kind, namespace: str, body: Manifest) -> Object:
        name = str(body["metadata"]["name"])
        self._request("create", kind, namespace, name)
        unknown = next(_paths(body, UNKNOWN_FIELD), None)
        if unknown:
            raise Refused(f'strict decoding error: unknown field "{unknown}"', status=400, reason="BadRequest")
        return self._create(str(kind), namespace, body)

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        self._fail("get", kind, namespace, name)
        return copied(self._find(kind, namespace, name))

    async def owned(self, kind: Kind, namespace: str, uid: str) -> list[Object]:
        self._fail("list", kind, namespace, "")
        found = (o for (k, n, _), o in self.objects.items() if (k, n) == (str(kind), namespace))
        return [{"metadata": copied(o["metadata"])} for o in found if controller_uid(o) == uid]

    async def queues_are_served(self) -> bool:
        return self.serves_queues

    async def apply(self, kind: Kind, namespace: str, name: str, body: Manifest) -> Object:
        self._request("apply", kind, namespace, name)
        if (str(kind), namespace, name) not in self.objects:
            raise Conflict("uid mismatch: the object is absent", status=409, reason="Conflict")
        return self._apply(kind, namespace, name, body, names.FIELD_MANAGER)

    async def replace(self, kind: Kind, namespace: str, name: str, uid: str, parts: Mapping[str, Any]) -> Object:
        self._request("replace", kind, namespace, name)
        found = self._find(kind, namespace, name)
        self._same_uid(found, uid)
        self._same_version(found, {"metadata": {"resourceVersion": parts.get("/metadata/resourceVersion")}})
        before = copied(found)
        for place, value in parts.items():
            *path, last = (step.replace("~1", "/") for step in place.strip("/").split("/"))
            target = found
            for step in path:
                target = target[step]
            target[last] = copied(value)
            if value is None:
                del target[last]
        if found.get("spec") != before.get("spec"):
            found["metadata"]["generation"] = found["metadata"].get("generation", 1) + 1
        return self._changed("MODIFIED", found) if found != before else before

    async def resize(self, namespace: str, name: str, uid: str, container: str, resources: Mapping[str, Any]) -> Object:
        self._request("resize", Kind.POD, namespace, name)
        found = self._find(Kind.POD, namespace, name)
        self._same_uid(found, uid)
        (target,) = (c for c in found["spec"]["containers"] if c["name"] == container)
        before = target.get("resources") or {}
        target["resources"] = before | {k: (before.get(k) or {}) | copied(v) for k, v in resources.items()}
        if target["resources"] == before:
            return copied(found)
        found["metadata"]["generation"] = found["metadata"].get("generation", 1) + 1
        return self._changed("MODIFIED", found)

    async def delete(
        self, kind: Kind, namespace: str, name: str, uid: str, grace_seconds: int | None = None
    ) -> Object | None:
        self._request("delete", kind, namespace, name)
        found = self._find(kind, namespace, name)
        self._same_uid(found, uid)
        on_a_node = kind is Kind.POD and bool((found.get("spec") or {}).get("nodeName"))
        if found["metadata"].get("finalizers") or (on_a_node and grace_seconds != 0):
            found["metadata"].setdefault("deletionTimestamp", "2030-01-01T12:00:00Z")
            return self._changed("MODIFIED", found)
        self.remove(kind, namespace, name)
        return None

    async def patch_status(self, namespace: str, name: str, body: Manifest) -> Object:
        self._request("patch_status", Kind.PS_TRAINING_JOB, namespace, name)
        self._find(Kind.PS_TRAINING_JOB, namespace, name)
        return self._apply(Kind.PS_TRAINING_JOB, namespace, name, body, names.STATUS_FIELD_MANAGER)

    async def merge_status(self, kind: Kind, namespace: str, name: str, version: str, status: Manifest) -> Object:
        self._request("merge_status", kind, namespace, name)
        stored = self._find(kind, namespace, name)
        self._same_version(stored, {"metadata": {"resourceVersion": version}})
        before = stored.get("status") or {}
        merged = {**before, **copied(dict(status))}
        stored["status"] = {key: value for key, value in merged.items() if value is not None}
        return self._changed("MODIFIED", stored) if stored["status"] != before else copied(stored)

    async def patch_progress(self, namespace: str, name: str, version: str, progress: Manifest) -> Object:
        self._request("patch_progress", Kind.PS_TRAINING_JOB, namespace, name)
        stored = self._find(Kind.PS_TRAINING_JOB, namespace, name)
        if stored["metadata"]["resourceVersion"] != version:
            raise Conflict("the object has been modified", status=409, reason="Conflict")
        known = {**((stored.get("status") or {}).get("training") or {}), **progress}
        training = {key: value for key, value in known.items() if value is not None}
        stored["status"] = {**(stored.get("status") or {}), "training": training}
        return self._changed("MODIFIED", stored)

    async def warnings(self, namespace: str, uid: str) -> list[Object]:
        self._fail("warnings", "Event", namespace, uid)
        return [copied(e) for e in self.events if (e.get("involvedObject") or {}).get("uid") == uid]

    async def create_event(self, namespace: str, body: Manifest) -> None:
        self._request("create", "Event", namespace, str(body["metadata"]["name"]))
        self.events.append(copied(dict(body)))

    async def get_lease(self, namespace: str, name: str) -> Object:
        self._fail("get", "Lease", namespace, name)
        return copied(self._find("Lease", namespace, name))

    async def create_lease(self, namespace: str, body: Mapping[str, Any]) -> Object:
        self._request("create", "Lease", namespace, body["metadata"]["name"])
        return self._create("Lease", namespace, body)

    async def replace_lease(self, namespace: str, name: str, body: Mapping[str, Any]) -> Object:
        self._request("replace", "Lease", namespace, name)
        found = self._find("Lease", namespace, name)
        self._same_version(found, body)
        found["spec"] = copied(body["spec"])
        return self._changed("MODIFIED", found)

    # The cluster's state, for tests.

    @property
    def world(self) -> set[tuple[str, str]]:
        """Return the kind and name of every object except Leases."""
        return {(kind, name) for kind, _, name in self.objects if kind != "Lease"}

    def writes(self) -> list[tuple[str, str, str]]:
        """Return the writes since the last call, without those of Leases."""
        found = [r for r in self.requests if r[1] != "Lease"]
        self.requests.clear()
        return found

    def put(self, body: Manifest, **status: Any) -> Object:
        """Create or replace an object as another client would, with its status if given."""
        kind, namespace = str(body["kind"]), body["metadata"].get("namespace", "default")
        place = (kind, namespace, body["metadata"]["name"])
        if place not in self.objects:
            made = self._create(kind, namespace, body)
            if status:
                self.objects[place]["status"] = copied(status)
                self.changes[-1] = ("ADDED", copied(self.objects[place]))
            return made
        found, new = self.objects[place], copied(dict(body))
        for field in set(found) | set(new):
            if field in ("metadata", "kind", "apiVersion"):
                continue
            if field == "spec" and found.get("spec") != new.get("spec"):
                found["metadata"]["generation"] = found["metadata"].get("generation", 1) + 1
            if field in new:
                found[field] = new[field]
        for field in ("labels", "annotations", "ownerReferences", "finalizers", "deletionTimestamp"):
            if field in new["metadata"]:
                found["metadata"][field] = new["metadata"][field]
        if status:
            found["status"] = copied(status)
        return self._changed("MODIFIED", found)

    def remove(self, kind: Kind | str, namespace: str, name: str) -> None:
        """Delete an object, as any other client would."""
        found = self.objects.pop((str(kind), namespace, name))
        found["metadata"]["resourceVersion"] = str(next(self._versions))
        self._applied.pop(found["metadata"]["uid"], None)
        self.changes.append(("DELETED", copied(found)))

    def collect_garbage(self) -> int:
        """Delete the objects whose owners are all deleted; return their number."""
        removed = 0
        while True:
            uids = {o["metadata"]["uid"] for o in self.objects.values()}
            orphans = [
                place
                for place, o in self.objects.items()
                if (owners := o["metadata"].get("ownerReferences")) and not any(w["uid"] in uids for w in owners)
            ]
            if not orphans:
                return removed
            for place in orphans:
                self.remove(*place)
            removed += len(orphans)

    def deliver(self, cache: InformerCache, limit: int | None = None) -> set[tuple[str, str]]:
        """Deliver the watch's events, oldest first; return the jobs to reconcile."""
        keys = set()
        for _ in range(len(self.changes) if limit is None else limit):
            kind, found = self.changes.pop(0)
            if found["kind"] == "Lease":
                continue
            key = cache.vanished(found) if kind == "DELETED" else cache.observed(found)
            if key is not None:
                keys.add(key)
        return keys

    # Internals.

    def _request(self, verb: str, kind: str, namespace: str, name: str) -> None:
        self.requests.append((verb, str(kind), name))
        self._fail(verb, kind, namespace, name)

    def _fail(self, verb: str, kind: str, namespace: str, name: str) -> None:
        error = self.failures(verb, str(kind), namespace, name)
        if error is not None:
            raise error

    def _find(self, kind: str, namespace: str, name: str) -> Object:
        try:
            return self.objects[str(kind), namespace, name]
        except KeyError:
            raise NotFound(f'{str(kind).lower()}s "{name}" not found', status=404, reason="NotFound") from None

    def _create(self, kind: str, namespace: str, body: Mapping[str, Any]) -> Object:
        name = body["metadata"]["name"]
        if (kind, namespace, name) in self.objects:
            raise Conflict(f'{kind.lower()}s "{name}" already exists', status=409, reason="AlreadyExists")
        made = copied({k: v for k, v in body.items() if k != "status"})
        made.setdefault("kind", kind)
        made["metadata"] |= {
            "namespace": namespace,
            "uid": f"uid-{next(self._uids)}",
            "creationTimestamp": "2030-01-01T12:00:00Z",
            "generation": 1,
        }
        self.objects[kind, namespace, name] = made
        return self._changed("ADDED", made)

    def _apply(self, kind: Kind, namespace: str, name: str, body: Manifest, manager: str) -> Object:
        found = self._find(kind, namespace, name)
        uid, status_only = body["metadata"].get("uid"), manager == names.STATUS_FIELD_MANAGER
        if not status_only:
            self._same_uid(found, uid)
        self._same_version(found, body)
        new = {k: v for k, v in body.items() if (k == "status") is status_only or k == "metadata"}
        meta = {k: v for k, v in body["metadata"].items() if k in ("labels", "annotations", "ownerReferences")}
        new["metadata"] = {} if status_only else meta
        last = self._applied.setdefault(found["metadata"]["uid"], {})
        before = copied(found)
        for field in set(new) | (set(last.get(manager, {})) - {"apiVersion", "kind"}):
            if field in ("apiVersion", "kind"):
                continue
            owned = last.get(manager, {}).get(field)
            if field == "metadata" and isinstance(owned, dict):
                owned = {k: v for k, v in owned.items() if k in ("labels", "annotations", "ownerReferences")}
            merged = _merge(found.get(field), owned, new.get(field))
            if merged is None:
                found.pop(field, None)
            else:
                found[field] = merged
        last[manager] = copied(new)
        if found == before:
            return copied(found)
        if found.get("spec") != before.get("spec"):
            found["metadata"]["generation"] = found["metadata"].get("generation", 1) + 1
        return self._changed("MODIFIED", found)

    def _same_uid(self, found: Object, uid: str | None) -> None:
        there = found["metadata"]["uid"]
        if uid != there:
            words = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {there}"
            raise Conflict(words, status=409, reason="Conflict")

    def _same_version(self, found: Object, body: Mapping[str, Any]) -> None:
        version = body["metadata"].get("resourceVersion")
        if version and version != found["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified; please apply your changes", status=409, reason="Conflict")

    def _changed(self, kind: str, found: Object) -> Object:
        found["metadata"]["resourceVersion"] = str(next(self._versions))
        self.changes.append((kind, copied(found)))
        return copied(found)


def _merge(live: Any, owned: Any, new: Any) -> Any:
    """Merge one field by server-side apply; `owned` is what this manager applied before, and None removes it."""
    if isinstance(new, dict) and (live is None or isinstance(live, dict)):
        merged, had = dict(live or {}), owned if isinstance(owned, dict) else {}
        for key in had.keys() - new.keys():
            rest = _merge(merged.get(key), had[key], {} if isinstance(had[key], dict) else None)
            if rest is None or rest == {}:
                merged.pop(key, None)
            else:
                merged[key] = rest
        for key, value in new.items():
            # Server-side apply treats a selector as one value, although it looks like a map.
            atomic = key in ("selector", "podSelector")
            merged[key] = copied(value) if atomic else _merge(merged.get(key), had.get(key), value)
        return merged
    if _named(new) and (live is None or live == [] or _named(live)):
        # Owners are identified by their uid.
        key = "uid" if all("uid" in i for i in (*new, *(live or ()))) else "name"
        had = {i[key]: i for i in owned} if _named(owned) else {}
        wanted, kept = {i[key]: i for i in new}, {i[key]: i for i in live or ()}
        order = [n for n in kept if n in wanted or n not in had] + [n for n in wanted if n not in kept]
        return [_merge(kept.get(n), had.get(n), wanted[n]) if n in wanted else kept[n] for n in order]
    return copied(new)


def _named(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(i, dict) and "name" in i for i in value)


def _paths(value: Any, name: str, path: str = "") -> Iterator[str]:
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        here = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}".lstrip(".")
        if key == name:
            yield here
        yield from _paths(inner, name, here)
