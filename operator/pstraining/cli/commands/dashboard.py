"""`dashboard`: a page that shows jobs, served on this machine until Ctrl-C, with the user's own rights."""

import webbrowser
from typing import Annotated
from urllib.parse import quote

import typer

from pstraining.cli.client import ClusterClient, KubeconfigClient
from pstraining.cli.commands.status import AllNamespaces
from pstraining.cli.dashboard.content import Content
from pstraining.cli.dashboard.sampling import Sampler
from pstraining.cli.dashboard.server import LOOPBACK, DashboardServer
from pstraining.cli.errors import ArgumentError, CommandError, DeniedError
from pstraining.cli.history.folder import From, history_in
from pstraining.cli.jobs import job_named
from pstraining.cli.options import Context, Namespace, job_argument

Port = Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1. Default: any free port.")]
ShownJob = Annotated[
    str | None,
    typer.Argument(parser=job_argument, metavar="JOB", help="Job to show first, or pstj/NAME. Default: the list."),
]
Open = Annotated[bool, typer.Option("--open", help="Also open the page in a browser.")]


def dashboard(
    job: ShownJob = None,
    all_namespaces: AllNamespaces = False,
    port: Port = 0,
    open_page: Open = False,
    folder: From = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Serve a page with jobs, their progress, tasks, speed and logs on this machine until Ctrl-C.

    The page changes nothing, and shows what you may read. Its address contains a secret: do not share it.
    """
    if all_namespaces and (job or namespace is not None):
        raise ArgumentError("--all-namespaces shows all jobs: remove the job's name and --namespace.")
    if all_namespaces and folder is not None:
        raise ArgumentError("--from reads the history of one job: remove --all-namespaces.")
    cluster = history_in(folder, context, namespace) if folder else KubeconfigClient(context)
    if folder is not None and not job:
        job = cluster.jobs(cluster.namespace)[0]["metadata"]["name"]
    where = None if all_namespaces else namespace or cluster.namespace
    check_access(cluster, where, job)
    server = create_server(cluster, where, port)
    url = server.url + (f"#{quote(where or '', safe='')}/{quote(job, safe='')}" if job else "")
    typer.echo(f"Dashboard: {url}\nPress Ctrl-C to end it.")
    if open_page and not webbrowser.open(url):
        typer.echo("No browser was found: open the address yourself.", err=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        typer.echo()
    finally:
        server.server_close()


def create_server(cluster: ClusterClient, namespace: str | None, port: int = 0) -> DashboardServer:
    """Create the server of a dashboard.

    Args:
        cluster: the jobs' cluster.
        namespace: the jobs' namespace; None for all namespaces.
        port: the port on loopback; 0 for any free one.

    Raises:
        CommandError: the port cannot be used.
    """
    try:
        return DashboardServer(Content(cluster, namespace, Sampler(cluster)), port)
    except OSError as error:
        raise CommandError(f"--port: {LOOPBACK}:{port} cannot be used: {error.strerror}.") from error


def check_access(cluster: ClusterClient, namespace: str | None, job: str | None) -> None:
    """Send one request, so that an unusable cluster is reported by the command and not in the page.

    Raises:
        CommandError: the cluster does not respond, does not serve PSTrainingJobs, or has no such job.
    """
    if job:
        job_named(cluster, namespace or "", job)
        return
    try:
        cluster.jobs(namespace)
    except DeniedError as error:
        typer.echo(f"{error} The page shows single jobs: name one.", err=True)
