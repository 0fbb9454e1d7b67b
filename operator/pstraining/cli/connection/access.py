"""Selects the cluster, namespace and identity of a command. Sends no requests.

Source of the rules: k8s.io/client-go tools/clientcmd, client_config.go and merged_client_builder.go, and
k8s.io/cli-runtime's config_flags.go. One rule differs: in a pod without a kubeconfig, with --as or --request-timeout,
kubectl uses http://localhost:8080, but these commands use the pod's own cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from pstraining.cli.connection import proxies
from pstraining.cli.connection.kubeconfig import Kubeconfig
from pstraining.cli.connection.models import Context, KubeconfigCluster, User
from pstraining.cli.connection.overrides import Overrides
from pstraining.cli.errors import ArgumentError, CommandError
from pstraining.cli.formatting import request_seconds

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of a pod's token."""
DEFAULT_SERVER: Final = "http://localhost:8080"
"""kubectl's default server."""
LONGEST: Final = 2**31 // 1000
"""Maximum time of one request, in seconds: the operating system counts milliseconds in 31 bits."""


@dataclass(frozen=True)
class Surroundings:
    """The environment variables and the service account of the process."""

    environ: Mapping[str, str]
    service_account: Path

    @property
    def in_pod(self) -> bool:
        """Whether the process runs in a pod with a usable service account."""
        service = self.environ.get("KUBERNETES_SERVICE_HOST") and self.environ.get("KUBERNETES_SERVICE_PORT")
        return bool(service) and (self.service_account / "token").is_file()


@dataclass(frozen=True)
class Access:
    """A cluster, a namespace and an identity."""

    host: str
    """The API server's URL, without a trailing slash."""
    namespace: str
    cluster: KubeconfigCluster
    user: User
    context: str = ""
    user_name: str = ""
    proxy: str = ""
    """The URL of a proxy; empty without one."""
    seconds: float | None = None
    """Maximum time of one request: 0 without a limit, None without --request-timeout."""
    unnamed: str = ""
    """The reason for the use of kubectl's default address; empty if a server is named."""
    origin: str = ""
    """Path of the kubeconfig with the user."""
    place: str = ""
    """The source of the cluster, such as `context dev`, for messages."""

    @property
    def login(self) -> tuple[str, str]:
        """Name and password in the server's URL, which kubectl sends if there are no others; empty without them."""
        parts = urlsplit(self.cluster.server)
        return unquote(parts.username or ""), unquote(parts.password or "")

    @property
    def secure(self) -> bool:
        """Whether TLS is used. kubectl sends credentials only over TLS."""
        return self.host.startswith("https://")

    def __str__(self) -> str:
        """Return the server and its source, for messages."""
        return f"{self.host} ({self.place})" if self.place else self.host


def chosen(config: Kubeconfig, overrides: Overrides, surroundings: Surroundings) -> Access:
    """Select the cluster, namespace and identity.

    Args:
        config: the merged kubeconfigs.
        overrides: the values of the connection's options.
        surroundings: the process's environment and service account.

    Raises:
        CommandError: a selected entry is missing or invalid.
    """
    name = overrides.context or config.current_context
    context = _context(config, overrides, name)
    user = _user(config, overrides, context)
    _check_options(overrides, user)
    default = surroundings.environ.get("KUBERNETES_MASTER") or DEFAULT_SERVER
    cluster = _cluster(config, overrides, context, default)
    seconds = _seconds(overrides)
    in_pod = surroundings.in_pod
    namespace = context.namespace or (_pod_namespace(surroundings) if in_pod else "default")
    if cluster == KubeconfigCluster(server=default):
        if in_pod:
            return _of_pod(overrides, user, surroundings, namespace, seconds)
        return Access(
            default, namespace, cluster, user, name, context.user, seconds=seconds, unnamed=_unnamed(config, name)
        )
    check_cluster(context.cluster, cluster)
    check_user(context.user, user)
    host = _host(cluster.server)
    return Access(
        host,
        namespace,
        cluster,
        user,
        name,
        context.user,
        cluster.proxy_url or proxies.from_environment(host, surroundings.environ),
        seconds,
        origin=config.origins.get(context.user, ""),
        place="--server" if overrides.server else f"context {name}" if name else "",
    )


def _check_options(overrides: Overrides, user: User) -> None:
    """Check that the options do not contradict each other. In a pod, the user's entry is not checked otherwise.

    Raises:
        ArgumentError: they do.
    """
    if overrides.insecure_skip_tls_verify and overrides.certificate_authority:
        raise ArgumentError("--insecure-skip-tls-verify ignores a --certificate-authority: remove one of them.")
    if not user.impersonate and (
        overrides.impersonate_uid or overrides.impersonate_groups or overrides.impersonate_user_extra
    ):
        raise ArgumentError("--as-group, --as-uid and --as-user-extra change a user: name that user with as or --as.")


def check_cluster(name: str, cluster: KubeconfigCluster) -> None:
    """Check a cluster's entry by kubectl's rules.

    Raises:
        CommandError: fields of the cluster contradict each other.
    """
    if cluster.certificate_authority and cluster.certificate_authority_data:
        _refuse("cluster", name, "has certificate-authority and certificate-authority-data: remove one of them")
    if cluster.insecure_skip_tls_verify and (cluster.certificate_authority or cluster.certificate_authority_data):
        _refuse("cluster", name, "has a certificate authority and insecure-skip-tls-verify: remove one of them")
    if cluster.proxy_url and not proxies.is_usable(cluster.proxy_url):
        _refuse("cluster", name, f"has the proxy-url {proxies.without_login(cluster.proxy_url)}: {proxies.RULE}")


def check_user(name: str, user: User) -> None:
    """Check a user's entry by kubectl's rules.

    Raises:
        CommandError: fields of the user contradict each other, or a field is missing.
    """
    basic = user.username or user.password
    if basic and (user.token or user.token_file):
        _refuse("user", name, "has a token and a password: only one is allowed")
    if user.client_certificate and user.client_certificate_data:
        _refuse("user", name, "has client-certificate and client-certificate-data: remove one of them")
    if (user.client_certificate or user.client_certificate_data) and bool(user.client_key) == bool(
        user.client_key_data
    ):
        _refuse("user", name, "needs one of client-key and client-key-data beside its client certificate")
    if (user.impersonate_uid or user.impersonate_groups or user.impersonate_user_extra) and not user.impersonate:
        _refuse("user", name, "acts with groups, a UID or extra fields of another user: name that user with as or --as")
    if (plugin := user.exec) is None:
        return
    if user.auth_provider is not None:
        _refuse("user", name, "has exec and auth-provider: remove one of them")
    for field_name, value in (("command", plugin.command), ("apiVersion", plugin.api_version)):
        if not value:
            _refuse("user", name, f"has exec without {field_name}")
    if not plugin.interactive_mode and plugin.api_version.endswith("/v1"):
        _refuse("user", name, "has exec without interactiveMode, which client.authentication.k8s.io/v1 requires")
    if plugin.interactive_mode not in ("", "Never", "IfAvailable", "Always"):
        _refuse("user", name, f"has exec with interactiveMode {plugin.interactive_mode}: Never, IfAvailable or Always")
    if any(not variable.name for variable in plugin.env):
        _refuse("user", name, "has exec with an environment variable without a name")


def _refuse(kind: str, name: str, why: str) -> None:
    raise CommandError(f"The kubeconfig's {kind} {name or 'without a name'} {why}.")


def _context(config: Kubeconfig, overrides: Overrides, name: str) -> Context:
    context = config.contexts.get(name)
    if context is None and name:
        if config.missing and not config.contexts:
            raise CommandError(f"There is no kubeconfig at {', '.join(config.missing)}, so there is no context {name}.")
        there = f"Contexts: {', '.join(sorted(config.contexts))}." if config.contexts else "There are no contexts."
        source = "--context" if overrides.context else "current-context"
        raise CommandError(f"The kubeconfig has no context {name}, which {source} names. {there}")
    changes = {"cluster": overrides.cluster, "user": overrides.user}
    return (context or Context()).model_copy(update={k: v for k, v in changes.items() if v})


def _user(config: Kubeconfig, overrides: Overrides, context: Context) -> User:
    if overrides.user and overrides.user not in config.users:
        raise CommandError(f"--user: the kubeconfig has no user {overrides.user}.")
    found = config.users.get(context.user, User())
    extra: dict[str, list[str]] = {}
    for entry in overrides.impersonate_user_extra:
        key, equals, value = entry.partition("=")
        if not key or not equals:
            raise ArgumentError(f"--as-user-extra {entry}: write KEY=VALUE.")
        extra.setdefault(key, []).append(value)
    changes = {
        "token": overrides.token,
        "client_certificate": overrides.client_certificate,
        "client_key": overrides.client_key,
        "impersonate": overrides.impersonate,
        "impersonate_uid": overrides.impersonate_uid,
        "impersonate_groups": list(overrides.impersonate_groups),
        "impersonate_user_extra": found.impersonate_user_extra | extra if extra else {},
    }
    return found.model_copy(update={k: v for k, v in changes.items() if v})


def _cluster(config: Kubeconfig, overrides: Overrides, context: Context, default: str) -> KubeconfigCluster:
    if overrides.cluster and overrides.cluster not in config.clusters:
        raise CommandError(f"--cluster: the kubeconfig has no cluster {overrides.cluster}.")
    found = config.clusters.get(context.cluster, KubeconfigCluster())
    changes: dict[str, object] = {"server": overrides.server or found.server or default}
    if overrides.insecure_skip_tls_verify or overrides.certificate_authority:
        changes |= {
            "insecure_skip_tls_verify": overrides.insecure_skip_tls_verify,
            "certificate_authority": overrides.certificate_authority,
            "certificate_authority_data": b"",
        }
    # The kubeconfig's tls-server-name does not apply to another server.
    if overrides.tls_server_name or overrides.server:
        changes["tls_server_name"] = overrides.tls_server_name
    return found.model_copy(update=changes)


def _of_pod(
    overrides: Overrides, user: User, surroundings: Surroundings, namespace: str, seconds: float | None
) -> Access:
    """Return the pod's own cluster and service account, with the user's identity to impersonate."""
    host, port = (surroundings.environ[f"KUBERNETES_SERVICE_{part}"] for part in ("HOST", "PORT"))
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    folder = surroundings.service_account
    authority = overrides.certificate_authority or str(folder / "ca.crt")
    own = User(token=overrides.token) if overrides.token else User(token_file=str(folder / "token"))
    changes = {f: v for f, v in user if f.startswith("impersonate")}
    return Access(
        url,
        namespace,
        KubeconfigCluster(server=url, certificate_authority=authority),
        own.model_copy(update=changes),
        proxy=proxies.from_environment(url, surroundings.environ),
        seconds=seconds,
        place="the service account of this pod",
    )


def _pod_namespace(surroundings: Surroundings) -> str:
    if given := surroundings.environ.get("POD_NAMESPACE"):
        return given
    try:
        return (surroundings.service_account / "namespace").read_text().strip() or "default"
    except OSError:
        return "default"


def _seconds(overrides: Overrides) -> float | None:
    if not overrides.request_timeout:
        return None
    try:
        return min(request_seconds(overrides.request_timeout), LONGEST)
    except ValueError as error:
        raise ArgumentError(f"--request-timeout: {error}.") from error


def _unnamed(config: Kubeconfig, context: str) -> str:
    if config.missing:
        return f"No cluster is configured: there is no kubeconfig at {', '.join(config.missing)}"
    if not context:
        return "No cluster is configured: the kubeconfig has no current-context. Select one with --context"
    return f"No cluster is configured: context {context} names no cluster of the kubeconfig"


def _host(server: str) -> str:
    """Return the server's URL. Without a scheme, it is http, as in kubectl."""
    parts = _parts_of(server)
    if not parts.scheme or not parts.netloc:
        server = f"http://{server}"
        parts = _parts_of(server)
        if parts.path.strip("/"):
            raise CommandError(f"The server {server.removeprefix('http://')} is neither a URL nor HOST:PORT.")
    if parts.scheme not in ("http", "https"):
        raise CommandError(f"The server {server} has the unsupported scheme {parts.scheme}: use https.")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def _parts_of(server: str) -> SplitResult:
    try:
        parts = urlsplit(server)
        is_url = parts.port is None or parts.port > 0
    except ValueError:
        is_url = False
    if not is_url or server != "".join(server.split()):
        raise CommandError(f"The server {server!r} is neither a URL nor HOST:PORT.")
    return parts
