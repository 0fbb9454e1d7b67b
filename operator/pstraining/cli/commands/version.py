"""`version`: print the versions of the plugin, the cluster's operators and the CRD, and their differences."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from pstraining import __version__
from pstraining.api import names
from pstraining.cli.client import ClusterClient, KubeconfigClient
from pstraining.cli.doctor.checks import Check, CheckResult, Object, Unavailable, operator_version
from pstraining.cli.doctor.examination import attempted, definition, operator_deployments
from pstraining.cli.errors import CommandError
from pstraining.cli.options import Context, Format
from pstraining.cli.output import Output, PrintedKind, show


def version(
    client: Annotated[
        bool, typer.Option("--client", help="Print only the plugin's version, without a cluster.")
    ] = False,
    context: Context = None,
    output: Format = Output.TEXT,
) -> None:
    """Print the versions of the plugin, of the operators and the CRD in the cluster, and of Kubernetes.

    If the versions of plugin, operator and CRD differ, the command names the difference and what to upgrade. If the
    cluster cannot be reached, it prints the plugin's version and then fails.
    """
    found: dict[str, Any] = {"client": {"version": __version__, "api": names.API_VERSION}}
    try:
        if not client:
            found |= cluster_versions(KubeconfigClient(context))
    finally:
        show(PrintedKind.VERSIONS, found, output, lambda: picture(found))


def cluster_versions(cluster: ClusterClient) -> dict[str, Any]:
    """Return the versions of Kubernetes, the operators and the CRD in a cluster, for programs.

    Raises:
        CommandError: the API server does not report its version.
    """
    kubernetes = cluster.read("/version")
    if not isinstance(kubernetes, Mapping):
        raise CommandError("The API server does not report its version.")
    found, crd = attempted(lambda: operator_deployments(cluster)), definition(cluster)
    unknown = isinstance(found, Unavailable)
    operators = () if isinstance(found, Unavailable) else found
    return {
        "kubernetes": kubernetes.get("gitVersion", ""),
        "operators": None if unknown else [_operator(deployment) for deployment in operators],
        "crd": {"result": str(crd.result), "message": crd.message},
        "unknown": [found.why] if isinstance(found, Unavailable) else [],
        "skew": list(_skew(operators, crd)),
    }


def picture(found: Mapping[str, Any]) -> RenderableType:
    """Render the versions as text."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("plugin", Text(f"{found['client']['version']} ({found['client']['api']})"))
    if "kubernetes" in found:
        table.add_row("kubernetes", Text(found["kubernetes"]))
        for operator in found["operators"] or ():
            where = f"{operator['namespace']}/{operator['name']}, image {operator['image']}"
            table.add_row("operator", Text(f"{operator['version'] or 'unknown'} ({where})"))
        if found["operators"] == []:
            table.add_row("operator", "none is installed")
        for why in found["unknown"]:
            table.add_row("operator", Text(f"unknown: {why}"))
        table.add_row("crd", Text(found["crd"]["message"]))
        for skew in found["skew"]:
            table.add_row("skew", Text(f"{skew['message']}\n-> {skew['todo']}", style="yellow"))
    return table


def _operator(deployment: Object) -> dict[str, Any]:
    return {
        "namespace": deployment["metadata"]["namespace"],
        "name": deployment["metadata"]["name"],
        "version": operator_version(deployment),
        "image": deployment["spec"]["template"]["spec"]["containers"][0].get("image", ""),
    }


def _skew(operators: Iterable[Object], crd: Check) -> Iterator[dict[str, str]]:
    """Yield the differences between the versions, with the action to take."""
    for deployment in operators:
        theirs = operator_version(deployment)
        if theirs and theirs != __version__:
            where = f"{deployment['metadata']['namespace']}/{deployment['metadata']['name']}"
            yield {
                "message": f"operator {where} has version {theirs}, the plugin has {__version__}",
                "todo": "Upgrade the older one.",
            }
    if crd.result is CheckResult.WARN and crd.todo:
        yield {"message": f"the CRD {crd.message}", "todo": crd.todo}
