"""Options that several commands share."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import typer

from pstraining.cli.client import quoted
from pstraining.cli.connection.overrides import Overrides
from pstraining.cli.errors import ArgumentError
from pstraining.cli.formatting import bounded, seconds
from pstraining.cli.jobs import name_of
from pstraining.cli.output import Output
from pstraining.cli.tasks import TaskRole

Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace of the job. Default: the context's namespace.")
]
Context = Annotated[Overrides | None, "the options of CONNECTION"]
"""Cluster and identity of requests. `with_connection` replaces this parameter by kubectl's options."""
Format = Annotated[
    Output, typer.Option("--output", "-o", help="Output format: text to read, json or yaml for programs.")
]


_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")


def job_argument(text: str) -> str:
    """Parse NAME or TYPE/NAME into the job's name.

    Raises:
        typer.BadParameter: the text is neither, or it has no name of an object.
    """
    try:
        name = name_of(text)
        quoted(name)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from None
    except ArgumentError as error:
        raise typer.BadParameter(str(error)) from None
    if not name:
        raise typer.BadParameter("the job's name is empty.")
    return name


Job = Annotated[str, typer.Argument(parser=job_argument, metavar="JOB", help="Name of the job, or pstj/NAME.")]
OptionalJobs = Annotated[
    list[str] | None,
    typer.Argument(
        parser=job_argument,
        metavar="JOB",
        help="Names of jobs, or pstj/NAME. For a single job, every pod is shown. Default: all jobs.",
    ),
]
Jobs = Annotated[list[str], typer.Argument(parser=job_argument, metavar="JOB", help="Names of jobs, or pstj/NAME.")]
Files = Annotated[
    list[str],
    typer.Option(
        "--filename",
        "-f",
        help="File, folder, pattern or URL of manifests, YAML or JSON; - reads standard input. Can be repeated.",
        metavar="FILE",
    ),
]
Recursive = Annotated[bool, typer.Option("--recursive", "-R", help="Also read the subfolders of the folders of -f.")]
RoleOption = Annotated[
    TaskRole | None, typer.Option("--role", help="Show only tasks with this role. Standbys have the role ps.")
]
IndexOption = Annotated[
    int | None, typer.Option("--index", min=0, help="Show only the task with this index. Requires --role.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the result. The exit status reports it.")]


def duration_option(text: str | float) -> float:
    """Parse a duration into seconds. A number without a unit is in seconds.

    Raises:
        typer.BadParameter: the text is not a duration, or it is too long.
    """
    if isinstance(text, (int, float)):
        return float(text)
    try:
        return bounded(float(text), text) if _NUMBER.fullmatch(text) else seconds(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from None


def interval_option(text: str | float) -> float:
    """Parse a duration of at least SHORTEST into seconds.

    Raises:
        typer.BadParameter: the text is not a duration, or it is too short.
    """
    found = duration_option(text)
    if found < SHORTEST:
        raise typer.BadParameter(f"{text} is shorter than {SHORTEST:g} s.")
    return found


SHORTEST: Final = 0.1
"""Minimum of `--interval`, in seconds."""
Interval = Annotated[
    float,
    typer.Option(parser=interval_option, metavar="DURATION", help="Time between the two scrapes. A number: seconds."),
]
_TIMEOUT: Final = "Maximum time to wait, such as 90s or 5m. A number: seconds."
Timeout = Annotated[float, typer.Option(parser=duration_option, metavar="DURATION", help=_TIMEOUT)]
OptionalTimeout = Annotated[
    float, typer.Option(parser=duration_option, metavar="DURATION", help=_TIMEOUT, show_default="no limit")
]
"""A timeout that is infinite by default."""


def _text(*names: str, help: str, hidden: bool = True) -> Any:
    return Annotated[str, typer.Option(*names, help=help, show_default=False, hidden=hidden)]


def _texts(*names: str, help: str) -> Any:
    return Annotated[list[str], typer.Option(*names, help=help, show_default=False, hidden=True)]


_CONTEXT: Final = (
    "Context of the kubeconfig. Default: the current context. kubectl's other connection options also work"
)
CONNECTION: Final[dict[str, Any]] = {
    "kubeconfig": _text("--kubeconfig", help="The only kubeconfig to read. Default: KUBECONFIG, ~/.kube/config."),
    "context": _text("--context", help=f"{_CONTEXT}, such as --kubeconfig and --as.", hidden=False),
    "cluster": _text("--cluster", help="Cluster of the kubeconfig."),
    "user": _text("--user", help="User of the kubeconfig."),
    "server": _text("--server", "-s", help="URL of the API server."),
    "token": _text("--token", help="Bearer token."),
    "impersonate": _text("--as", help="User to act as."),
    "impersonate_groups": _texts("--as-group", help="Group to act as. Can be repeated."),
    "impersonate_uid": _text("--as-uid", help="UID to act as."),
    "impersonate_user_extra": _texts("--as-user-extra", help="KEY=VALUE of the user to act as. Can be repeated."),
    "certificate_authority": _text("--certificate-authority", help="File of the server's certificate authority."),
    "client_certificate": _text("--client-certificate", help="File of a client certificate."),
    "client_key": _text("--client-key", help="File of the client certificate's key."),
    "insecure_skip_tls_verify": Annotated[
        bool, typer.Option("--insecure-skip-tls-verify", help="Do not check the server's certificate.", hidden=True)
    ],
    "tls_server_name": _text("--tls-server-name", help="Name to expect in the server's certificate."),
    "request_timeout": _text("--request-timeout", help="Maximum time of one request: 5, 5s, 1m. 0: no limit."),
}
"""An option for each field of Overrides. Most are hidden, as in the help of kubectl's commands."""


def overrides(values: Mapping[str, Any]) -> Overrides:
    """Return the connection's part of the values of a command's options."""
    given: dict[str, Any] = {field: values[field] for field in CONNECTION if values.get(field)}
    lists = {field: tuple(value) for field, value in given.items() if isinstance(value, list)}
    return Overrides(**given | lists)


def with_connection(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameter of type Context by the options of CONNECTION; without one, return it unchanged."""
    signature = inspect.signature(command, eval_str=True)
    name = next((n for n, p in signature.parameters.items() if p.annotation == Context), None)
    if name is None:
        return command

    @functools.wraps(command)
    def run(**values: Any) -> None:
        others = {field: value for field, value in values.items() if field not in CONNECTION}
        command(**others, **{name: overrides(values)})

    own = [p for n, p in signature.parameters.items() if n != name]
    added = [
        inspect.Parameter(field, inspect.Parameter.KEYWORD_ONLY, default=getattr(Overrides(), field), annotation=option)
        for field, option in CONNECTION.items()
    ]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + added
    # typer reads both.
    run.__dict__["__signature__"] = signature.replace(parameters=parameters)
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run
