"""All that the watches have brought: jobs and their objects, nodes, refusals; and which jobs a piece of news is for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pstraining.controller import nodes, refusals
from pstraining.controller.cache import Cache, Key
from pstraining.controller.nodes import Nodes
from pstraining.controller.refusals import Refusals
from pstraining.core.actions import Kind
from pstraining.core.observe import observe
from pstraining.core.snapshot import Snapshot

Object = Mapping[str, Any]


@dataclass
class Known:
    """What is known, in three stores."""

    watches_nodes: bool = False
    cache: Cache = field(default_factory=Cache)
    nodes: Nodes = field(default_factory=Nodes)
    refusals: Refusals = field(default_factory=Refusals)

    def take(self, found: Object, event: str | None) -> Iterable[Key]:
        """Take in an object from a watch.

        Args:
            found: the object.
            event: ADDED, MODIFIED, DELETED, or None while it is listed.

        Returns:
            The jobs to look at again.
        """
        gone = event == "DELETED"
        match found.get("kind"):
            case nodes.KIND:
                changed = self.nodes.vanished(found) if gone else self.nodes.observed(found)
                return self.cache.on_node(found["metadata"]["name"]) if changed else ()
            case refusals.KIND:
                # Kubernetes forgets an event after an hour; what it said stays true until a pod is seen.
                new = not gone and self.refusals.observed(found)
                key = self.cache.job_of(found["involvedObject"]) if new else None
            case Kind.POD if event in ("ADDED", None):
                self.refusals.pod_seen(found)
                key = self.cache.observed(found)
            case _:
                key = self.cache.vanished(found) if gone else self.cache.observed(found)
        return () if key is None else (key,)

    def snapshot(self, key: Key) -> Snapshot:
        """A job as it is known.

        Raises:
            KeyError: there is no such job.
        """
        view = self.cache.view(key)
        if view.job is None:
            raise KeyError(key)
        known_nodes = self.nodes.of(view.pods) if self.watches_nodes else None
        return observe(view.job, view.children, view.pods, known_nodes, self.refusals.of(view.children))
