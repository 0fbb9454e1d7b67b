"""`doctor`: what of the cluster and the install may keep jobs from running, and what to do about it.

It only reads. What the user may not read is a warning that names the right; the other checks go on.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from pstraining.api import names
from pstraining.cli import checks
from pstraining.cli.answers import DEFINITION
from pstraining.cli.checks import Amount, Check, Result, Unread
from pstraining.cli.cluster import Cluster, KubeconfigCluster, Object
from pstraining.cli.errors import CommandError, DeniedError
from pstraining.cli.options import Context, Format
from pstraining.cli.output import Output, show

Found = TypeVar("Found")

OPERATORS = "app.kubernetes.io/part-of=pstraining,app.kubernetes.io/component=operator"
HABIT = "pstraining-system"
"""Where operators usually are."""
LIVE = "status.phase!=Succeeded,status.phase!=Failed"


def doctor(
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Where jobs are to run; the context's own by default.")
    ] = None,
    context: Context = None,
    output: Format = Output.TEXT,
    cpu: Annotated[str, typer.Option(help="What a parameter server needs, to see whether nodes have room.")] = "500m",
    memory: Annotated[str, typer.Option(help="The same, of memory.")] = "1Gi",
) -> None:
    """Check cluster and install: each check says ok, warn or fail, and what to do next; exit status 1 if one fails.

    It looks at the API server's version, the CRD (is it this version's?), the operator and its Lease, your rights, room
    on nodes, storage for checkpoints, the network, and the operator's metrics. It changes nothing, and works with few
    rights: what you may not read is a warning.
    """
    try:
        need = Amount.of({"cpu": cpu, "memory": memory})
    except ValueError as error:
        raise CommandError(f"--cpu {cpu} --memory {memory}: these are no quantities, such as 500m and 1Gi") from error
    found = list(_all(context, namespace, need))
    show(report(found), output, lambda: picture(found))
    if any(c.result is Result.FAIL for c in found):
        raise typer.Exit(1)


def _all(context: str | None, namespace: str | None, need: Amount) -> Iterator[Check]:
    try:
        cluster = KubeconfigCluster(context)
    except CommandError as error:
        yield Check("kubeconfig", Result.FAIL, str(error))
        return
    yield from examine(cluster, namespace or cluster.namespace, need, datetime.now(UTC))


def examine(cluster: Cluster, namespace: str, need: Amount, now: datetime) -> Iterator[Check]:
    """Make all checks.

    Args:
        cluster: the cluster.
        namespace: where jobs are to run.
        need: what a parameter server needs.
        now: the present time.
    """
    try:
        version = cluster.read("/version")
    except CommandError as error:
        yield Check("api server", Result.FAIL, str(error), "Check the kubeconfig's context, and the network.")
        return
    yield checks.version(version or {})
    yield _definition(cluster)
    yield from _operators(cluster, namespace, now)
    yield _rights(cluster, namespace)
    pods = _read(lambda: cluster.listed("/api/v1/pods", fieldSelector=LIVE))
    nodes = _read(lambda: cluster.listed("/api/v1/nodes"))
    yield _checked("nodes", nodes, lambda found: checks.nodes(found, pods, need))
    classes = _read(lambda: cluster.listed("/apis/storage.k8s.io/v1/storageclasses"))
    yield _checked("storage", classes, checks.storage)
    daemon_sets = _read(lambda: cluster.listed("/apis/apps/v1/daemonsets"))
    yield _checked("network", daemon_sets, checks.network)


def _rights(cluster: Cluster, namespace: str) -> Check:
    # Rights may well be given in namespaces that are not there. Who may not look for one is told of the rights alone.
    if _read(lambda: cluster.read(f"/api/v1/namespaces/{namespace}")) is None:
        return checks.no_namespace(namespace)
    allowed = _read(lambda: {r: cluster.allowed(r[0], names.PLURAL, namespace, r[1]) for r in checks.RIGHTS})
    return _checked("rights", allowed, lambda found: checks.rights(found, namespace))


def _definition(cluster: Cluster) -> Check:
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{DEFINITION}"
    found = _read(lambda: cluster.read(path))
    if isinstance(found, Unread):
        # Who may read nothing else may still see which APIs there are.
        served = _read(lambda: cluster.read(f"/apis/{names.API_VERSION}"))
        if isinstance(served, Unread):
            return served.said_of("crd")
        return found.said_of("crd") if served is not None else checks.definition(None)
    return checks.definition(found)


def _operators(cluster: Cluster, namespace: str, now: datetime) -> Iterator[Check]:
    found = _read(lambda: _deployments(cluster))
    if isinstance(found, Unread):
        yield found.said_of("operator")
        return
    yield from checks.operators(found, namespace)
    for deployment in found:
        yield from _at_work(cluster, deployment, now)


def _deployments(cluster: Cluster) -> list[Object]:
    try:
        return cluster.listed("/apis/apps/v1/deployments", labelSelector=OPERATORS)
    except DeniedError:
        return cluster.listed(f"/apis/apps/v1/namespaces/{HABIT}/deployments", labelSelector=OPERATORS)


def _at_work(cluster: Cluster, deployment: Object, now: datetime) -> Iterator[Check]:
    """Whether an operator holds its Lease and serves metrics."""
    settings = checks.environment(deployment)
    home = deployment["metadata"]["namespace"]
    where = settings.get("PSTRAINING_LEASE_NAMESPACE") or home
    name = settings.get("PSTRAINING_LEASE_NAME") or "pstraining-operator"
    lease = _read(lambda: cluster.read(f"/apis/coordination.k8s.io/v1/namespaces/{where}/leases/{name}"))
    yield _checked("lease", lease, lambda found: checks.lease(found, f"{where}/{name}", now))
    holder = "" if isinstance(lease, Unread) or lease is None else lease["spec"].get("holderIdentity")
    port = settings.get("PSTRAINING_METRICS_PORT") or "8080"
    if holder and port != "0":
        text = _read(lambda: cluster.read(f"/api/v1/namespaces/{home}/pods/{holder}:{port}/proxy/metrics"))
        yield _checked("metrics", text, checks.metrics)


def _read(request: Callable[[], Found]) -> Found | Unread:
    try:
        return request()
    except CommandError as error:
        return Unread(str(error))


def _checked(name: str, found: Found | Unread, check: Callable[[Found], Check]) -> Check:
    return found.said_of(name) if isinstance(found, Unread) else check(found)


def report(found: list[Check]) -> dict[str, Any]:
    """The checks, for programs, with the worst result of all."""
    worst = max(found, key=lambda c: [*Result].index(c.result)).result
    said = [{"check": c.name, "result": str(c.result), "message": c.message, "todo": c.todo} for c in found]
    return {"result": str(worst), "checks": said}


def picture(found: list[Check]) -> RenderableType:
    """The checks, for people."""
    styles = {Result.OK: "green", Result.WARN: "yellow", Result.FAIL: "bold red"}
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for check in found:
        said = Text(check.message)
        if check.todo:
            said.append(f"\n-> {check.todo}", style="dim")
        table.add_row(Text(str(check.result), style=styles[check.result]), check.name, said)
    return table
