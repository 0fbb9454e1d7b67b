"""The replacement of a child's owner references."""

from collections.abc import Mapping, Sequence
from typing import Any

from pstraining.core.snapshot import Child


def replaced_owners(child: Child, job_uid: str, own: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the parts of a `Replace` that sets a child's owners to its present ones without this job, and `own`.

    The whole list is replaced; the version ensures that no other client has changed it since.
    """
    metadata = child.manifest["metadata"]
    others = [o for o in metadata.get("ownerReferences") or () if o.get("uid") != job_uid]
    version = metadata.get("resourceVersion", "")
    return {"/metadata/resourceVersion": version, "/metadata/ownerReferences": [*others, *own]}
