"""Defines the calls that the operator makes to an API server, on plain JSON objects.

The client implements them over HTTP, tests/support/fakekube.py in memory; one contract suite runs against both. Every
call raises only the errors of `kube.errors`.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from pstraining.core.actions import Kind, Manifest

Object = dict[str, Any]
"""A Kubernetes object as JSON, as the API server returned it."""


class ApiPort(Protocol):
    """Reads and writes the objects of jobs."""

    async def create(self, kind: Kind, namespace: str, body: Manifest) -> Object:
        """POST with strict field validation; Conflict (`already_exists`) if the name is taken."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Read one object; one of the cluster ignores the namespace."""

    async def apply(self, kind: Kind, namespace: str, name: str, body: Manifest) -> Object:
        """Forced server-side apply.

        The body has metadata.uid: an absent or replaced object is a Conflict (or NotFound), and is never created or
        adopted. Fields of an earlier body that this one lacks are removed. Fields of `create` that no body has named
        stay, so a body may hold a part of the created object, provided that it is always the same part.
        """

    async def replace(self, kind: Kind, namespace: str, name: str, uid: str, parts: Mapping[str, Any]) -> Object:
        """Set values, those of absent members as well (JSON Patch, RFC 6902), all or none.

        An object of another uid is a Conflict.

        Args:
            kind: the object's.
            namespace: the object's.
            name: the object's.
            uid: the object's.
            parts: the values by JSON pointer.
        """

    async def resize(self, namespace: str, name: str, uid: str, container: str, resources: Mapping[str, Any]) -> Object:
        """Change requests and limits of one container of a pod (subresource `resize`, strategic merge patch).

        A pod of another uid is a Conflict.

        Args:
            namespace: the pod's.
            name: the pod's.
            uid: the pod's.
            container: the container's name.
            resources: its requests and limits; those that are not named stay.
        """

    async def delete(
        self, kind: Kind, namespace: str, name: str, uid: str, grace_seconds: int | None = None
    ) -> Object | None:
        """Delete in the background if the uid matches; Conflict (`precondition_failed`) if it does not.

        With a grace period of 0 seconds a pod is removed at once, whether or not its node has stopped it.

        Returns:
            The object while it is still being deleted; None if it was removed at once.
        """

    async def patch_status(self, namespace: str, name: str, body: Manifest) -> Object:
        """Server-side apply a PSTrainingJob's status.

        metadata.resourceVersion in the body is the version of the job that the status was computed from; Conflict if
        the job has changed since. (The status subresource of a custom resource ignores metadata.uid.)
        """

    async def merge_status(self, kind: Kind, namespace: str, name: str, version: str, status: Manifest) -> Object:
        """Change the status of another program's object (JSON merge patch: null removes a field).

        Conflict if the object's resourceVersion is another one.
        """

    async def patch_progress(self, namespace: str, name: str, version: str, progress: Manifest) -> Object:
        """Set `status.training` of a PSTrainingJob (JSON merge patch: null removes a field).

        Conflict if the job's resourceVersion is another one.
        """

    async def warnings(self, namespace: str, uid: str) -> list[Object]:
        """Read the events of type Warning about one object, a few at most."""

    async def create_event(self, namespace: str, body: Manifest) -> None:
        """POST an event of events.k8s.io/v1."""


class LeasePort(Protocol):
    """The Lease that lets one operator act at a time."""

    async def get_lease(self, namespace: str, name: str) -> Object:
        """Read the Lease."""

    async def create_lease(self, namespace: str, body: Mapping[str, Any]) -> Object:
        """Create the Lease; Conflict if it exists already."""

    async def replace_lease(self, namespace: str, name: str, body: Mapping[str, Any]) -> Object:
        """Replace the Lease; Conflict unless its resourceVersion is the body's."""
