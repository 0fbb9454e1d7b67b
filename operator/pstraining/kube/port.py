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
        """POST with strict field validation; raises Conflict (`already_exists`) if the name is taken."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Read one object; for cluster-scoped kinds the namespace is ignored."""

    async def owned(self, kind: Kind, namespace: str, uid: str) -> list[Object]:
        """Read the metadata of all objects of a kind whose controller has this uid, whatever their labels."""

    async def queues_are_served(self) -> bool:
        """Whether Kueue is installed, and not being uninstalled: the API server serves Workloads and creates them."""

    async def apply(self, kind: Kind, namespace: str, name: str, body: Manifest) -> Object:
        """Forced server-side apply.

        The body has metadata.uid: for an absent or replaced object the call raises Conflict or NotFound, so that no
        object is created or adopted. Fields of an earlier body that this body lacks are removed. Fields of `create`
        that no body has named do not change. A body may therefore contain a part of the created object, provided that
        it is always the same part.
        """

    async def replace(self, kind: Kind, namespace: str, name: str, uid: str, parts: Mapping[str, Any]) -> Object:
        """Set all values or none, including those of absent members (JSON Patch, RFC 6902).

        Args:
            kind: the object's kind.
            namespace: the object's namespace.
            name: the object's name.
            uid: the object's uid.
            parts: the values by JSON pointer; None removes a member.

        Raises:
            Conflict: the object has another uid.
        """

    async def resize(self, namespace: str, name: str, uid: str, container: str, resources: Mapping[str, Any]) -> Object:
        """Change requests and limits of one container of a pod (subresource `resize`, strategic merge patch).

        Args:
            namespace: the pod's namespace.
            name: the pod's name.
            uid: the pod's uid.
            container: the container's name.
            resources: the new requests and limits; resources that are not named do not change.

        Raises:
            Conflict: the pod has another uid.
        """

    async def delete(
        self, kind: Kind, namespace: str, name: str, uid: str, grace_seconds: int | None = None
    ) -> Object | None:
        """Delete in the background if the uid matches; raises Conflict (`precondition_failed`) if it does not.

        With a grace period of 0 seconds a pod is removed at once, whether or not its node has stopped it.

        Returns:
            The object while it is still being deleted; None if it was removed at once.
        """

    async def patch_status(self, namespace: str, name: str, body: Manifest) -> Object:
        """Server-side apply a PSTrainingJob's status.

        metadata.resourceVersion in the body is the version of the job from which the status was computed. The call
        raises Conflict if the job has changed since. (The status subresource of a custom resource ignores
        metadata.uid.)
        """

    async def merge_status(self, kind: Kind, namespace: str, name: str, version: str, status: Manifest) -> Object:
        """Change the status of another program's object (JSON merge patch: null removes a field).

        Raises Conflict if the object has another resourceVersion.
        """

    async def patch_progress(self, namespace: str, name: str, version: str, progress: Manifest) -> Object:
        """Set `status.training` of a PSTrainingJob (JSON merge patch: null removes a field).

        Raises Conflict if the job has another resourceVersion.
        """

    async def warnings(self, namespace: str, uid: str) -> list[Object]:
        """Read the events of type Warning about one object; their number is bounded."""

    async def create_event(self, namespace: str, body: Manifest) -> None:
        """POST an event of events.k8s.io/v1."""


class LeasePort(Protocol):
    """The Lease that lets one operator act at a time."""

    async def get_lease(self, namespace: str, name: str) -> Object:
        """Read the Lease."""

    async def create_lease(self, namespace: str, body: Mapping[str, Any]) -> Object:
        """Create the Lease; raises Conflict if it exists already."""

    async def replace_lease(self, namespace: str, name: str, body: Mapping[str, Any]) -> Object:
        """Replace the Lease; raises Conflict if its resourceVersion differs from the body's."""
