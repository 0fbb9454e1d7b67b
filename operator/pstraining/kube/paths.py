"""Maps the kinds that the operator reads and writes to their API paths."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from pstraining.api import names
from pstraining.core.actions import Kind
from pstraining.resources import kueue


@dataclass(frozen=True)
class Resource:
    """The API path of a kind."""

    api: str
    """The part of the path before the namespace."""
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The apiVersion of the kind's objects; items of lists have none."""
        return self.api.removeprefix("apis/").removeprefix("api/")

    def path(self, namespace: str, name: str | None = None, subresource: str | None = None) -> str:
        """Return the path of the collection, of one object, or of a subresource."""
        place = ("namespaces", namespace) if self.namespaced else ()
        parts = [self.api, *place, self.plural, *(p for p in (name, subresource) if p)]
        return "/" + "/".join(quote(part, safe="/") for part in parts)


RESOURCES: Final[Mapping[Kind, Resource]] = {
    Kind.POD: Resource("api/v1", "pods"),
    Kind.SERVICE: Resource("api/v1", "services"),
    Kind.CONFIG_MAP: Resource("api/v1", "configmaps"),
    Kind.CLAIM: Resource("api/v1", "persistentvolumeclaims"),
    Kind.DEPLOYMENT: Resource("apis/apps/v1", "deployments"),
    Kind.STATEFUL_SET: Resource("apis/apps/v1", "statefulsets"),
    Kind.JOB: Resource("apis/batch/v1", "jobs"),
    Kind.POD_DISRUPTION_BUDGET: Resource("apis/policy/v1", "poddisruptionbudgets"),
    Kind.NETWORK_POLICY: Resource("apis/networking.k8s.io/v1", "networkpolicies"),
    Kind.POD_GROUP: Resource("apis/scheduling.x-k8s.io/v1alpha1", "podgroups"),
    Kind.VOLCANO_POD_GROUP: Resource("apis/scheduling.volcano.sh/v1beta1", "podgroups"),
    Kind.WORKLOAD: Resource(f"apis/{kueue.API_VERSION}", "workloads"),
    Kind.RESOURCE_FLAVOR: Resource(f"apis/{kueue.API_VERSION}", "resourceflavors", namespaced=False),
    Kind.WORKLOAD_PRIORITY_CLASS: Resource(f"apis/{kueue.API_VERSION}", "workloadpriorityclasses", namespaced=False),
    Kind.PRIORITY_CLASS: Resource("apis/scheduling.k8s.io/v1", "priorityclasses", namespaced=False),
    Kind.LOCAL_QUEUE: Resource(f"apis/{kueue.API_VERSION}", "localqueues"),
    Kind.PS_TRAINING_JOB: Resource(f"apis/{names.API_VERSION}", names.PLURAL),
}
EVENTS: Final = Resource("apis/events.k8s.io/v1", "events")
SECRETS: Final = Resource("api/v1", "secrets")
LEASES: Final = Resource("apis/coordination.k8s.io/v1", "leases")
