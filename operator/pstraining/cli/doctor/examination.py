"""Runs the checks of `doctor` in order: reads the data of each and passes it to `checks`.

A missing right becomes a warning that names it; the other checks still run.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TypeVar

from pstraining.api import names
from pstraining.cli.client import ClusterClient, Object, quoted
from pstraining.cli.doctor import checks
from pstraining.cli.doctor.checks import Amount, Check, CheckResult, Unavailable
from pstraining.cli.errors import DEFINITION, CommandError, DeniedError, RequestError

Found = TypeVar("Found")

OPERATORS = "app.kubernetes.io/part-of=pstraining,app.kubernetes.io/component=operator"
USUAL_NAMESPACE = "pstraining-system"
"""The usual namespace of operators."""
LIVE = "status.phase!=Succeeded,status.phase!=Failed"


def examine(cluster: ClusterClient, namespace: str, need: Amount, now: datetime) -> Iterator[Check]:
    """Yield the results of all checks.

    Args:
        cluster: the cluster.
        namespace: the namespace of the jobs.
        need: the requests of a parameter server.
        now: the present time.

    Raises:
        CommandError: the namespace's name is not one.
    """
    path = f"/api/v1/namespaces/{quoted(namespace)}"
    try:
        version = cluster.read("/version")
    except CommandError as error:
        yield Check("api server", CheckResult.FAIL, str(error), "Check the kubeconfig's context, and the network.")
        return
    yield checks.version(version or {})
    yield definition(cluster)
    yield from operators(cluster, namespace, now)
    yield _rights(cluster, namespace, path)
    pods = attempted(lambda: cluster.listed("/api/v1/pods", fieldSelector=LIVE))
    nodes = attempted(lambda: cluster.listed("/api/v1/nodes"))
    yield _checked("nodes", nodes, lambda found: checks.nodes(found, pods, need))
    classes = attempted(lambda: cluster.listed("/apis/storage.k8s.io/v1/storageclasses"))
    yield _checked("storage", classes, checks.storage)
    daemon_sets = attempted(lambda: cluster.listed("/apis/apps/v1/daemonsets"))
    yield _checked("network", daemon_sets, checks.network)


def _rights(cluster: ClusterClient, namespace: str, path: str) -> Check:
    # Roles can exist for namespaces that do not. If namespaces may not be read, only the rights are checked.
    if attempted(lambda: cluster.read(path)) is None:
        return checks.no_namespace(namespace)
    allowed = attempted(lambda: {r: cluster.allowed(r[0], names.PLURAL, namespace, r[1]) for r in checks.RIGHTS})
    return _checked("rights", allowed, lambda found: checks.rights(found, namespace))


def definition(cluster: ClusterClient) -> Check:
    """Check the CRD. For users who may not read CRDs, check that its API is served."""
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{DEFINITION}"
    found = attempted(lambda: cluster.read(path))
    if isinstance(found, Unavailable):
        # Every authenticated user may read the list of APIs.
        served = attempted(lambda: _is_served(cluster))
        if isinstance(served, Unavailable):
            return served.as_check("crd")
        return found.as_check("crd") if served else checks.definition(None)
    return checks.definition(found)


def _is_served(cluster: ClusterClient) -> bool:
    try:
        return cluster.read(f"/apis/{names.API_VERSION}") is not None
    except RequestError as error:
        if error.status == 404:
            return False
        raise


def operators(cluster: ClusterClient, namespace: str, now: datetime) -> Iterator[Check]:
    """Check that an operator watches a namespace, holds its Lease and serves metrics."""
    found = attempted(lambda: operator_deployments(cluster))
    if isinstance(found, Unavailable):
        yield found.as_check("operator")
        return
    yield from checks.operators(found, namespace)
    for deployment in found:
        yield from _at_work(cluster, deployment, now)


def operator_deployments(cluster: ClusterClient) -> list[Object]:
    """Return the cluster's operators, or those of the usual namespace if the user may not read others.

    Raises:
        DeniedError: the user may not read either.
    """
    try:
        return cluster.listed("/apis/apps/v1/deployments", labelSelector=OPERATORS)
    except DeniedError:
        return cluster.listed(f"/apis/apps/v1/namespaces/{USUAL_NAMESPACE}/deployments", labelSelector=OPERATORS)


def _at_work(cluster: ClusterClient, deployment: Object, now: datetime) -> Iterator[Check]:
    """Check that an operator holds its Lease and serves metrics."""
    settings = checks.environment(deployment)
    home = deployment["metadata"]["namespace"]
    where = settings.get("PSTRAINING_LEASE_NAMESPACE") or home
    name = settings.get("PSTRAINING_LEASE_NAME") or "pstraining-operator"
    lease = attempted(lambda: cluster.read(f"/apis/coordination.k8s.io/v1/namespaces/{where}/leases/{name}"))
    yield _checked("lease", lease, lambda found: checks.lease(found, f"{where}/{name}", now))
    holder = "" if isinstance(lease, Unavailable) or lease is None else lease["spec"].get("holderIdentity")
    port = settings.get("PSTRAINING_METRICS_PORT") or "8080"
    if holder and port != "0":
        text = attempted(lambda: cluster.read(f"/api/v1/namespaces/{home}/pods/{holder}:{port}/proxy/metrics"))
        yield _checked("metrics", text, checks.metrics)


def attempted(request: Callable[[], Found]) -> Found | Unavailable:
    """Return the result of a request, or the reason of its failure."""
    try:
        return request()
    except CommandError as error:
        return Unavailable(str(error))


def _checked(name: str, found: Found | Unavailable, check: Callable[[Found], Check]) -> Check:
    return found.as_check(name) if isinstance(found, Unavailable) else check(found)
