"""What the operator asks of an API server: a handful of calls on plain JSON objects.

The client implements it over HTTP, tests/support/fakekube.py in memory; one contract suite runs against both. Every
call raises the errors of `kube.errors` and nothing else.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from pstraining.core.actions import Kind, Manifest

Object = dict[str, Any]
"""A Kubernetes object as JSON, as the API server returned it."""


class ApiPort(Protocol):
    """The objects of jobs."""

    async def create(self, kind: Kind, namespace: str, body: Manifest) -> Object:
        """POST with strict field validation; Conflict (`already_exists`) if the name is taken."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Read one object."""

    async def apply(self, kind: Kind, namespace: str, name: str, body: Manifest) -> Object:
        """Forced server-side apply.

        The body carries metadata.uid: an absent or replaced object is a Conflict (or NotFound), never created and never
        adopted. Fields that an earlier body held and this one does not are removed; what `create` wrote and no body has
        named stays, so that a body may hold a part, always the same one, of what was created.
        """

    async def replace(self, kind: Kind, namespace: str, name: str, uid: str, parts: Mapping[str, Any]) -> Object:
        """Put values in the places of those that are there (JSON Patch, RFC 6902), all or none.

        An object of another uid is a Conflict.

        Args:
            kind: the object's.
            namespace: the object's.
            name: the object's.
            uid: the object's.
            parts: the values by their places, JSON pointers.
        """

    async def delete(
        self, kind: Kind, namespace: str, name: str, uid: str, grace_seconds: int | None = None
    ) -> Object | None:
        """Delete in the background if the uid matches; Conflict (`precondition_failed`) if it does not.

        With a grace of 0 seconds a pod goes at once, whether or not its node has ended it.

        Returns:
            The object while it is still being deleted, None if it is gone at once.
        """

    async def patch_status(self, namespace: str, name: str, body: Manifest) -> Object:
        """Server-side apply a PSTrainingJob's status.

        metadata.resourceVersion in the body says from which version of which job the status was made; Conflict if it
        has changed since. (The status subresource of a custom resource does not look at metadata.uid.)
        """

    async def create_event(self, namespace: str, body: Manifest) -> None:
        """POST an event of events.k8s.io/v1."""


class LeasePort(Protocol):
    """The Lease that lets one operator act at a time."""

    async def get_lease(self, namespace: str, name: str) -> Object:
        """Read the Lease."""

    async def create_lease(self, namespace: str, body: Mapping[str, Any]) -> Object:
        """Create the Lease; Conflict if somebody was faster."""

    async def replace_lease(self, namespace: str, name: str, body: Mapping[str, Any]) -> Object:
        """Replace the Lease; Conflict unless its resourceVersion is the body's."""
