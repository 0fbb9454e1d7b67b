"""What kubectl's options say about a connection; they win over the kubeconfig."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Overrides:
    """The values of the options; an empty one says nothing."""

    kubeconfig: str = ""
    """The only file that is read."""
    context: str = ""
    cluster: str = ""
    user: str = ""
    server: str = ""
    token: str = ""
    impersonate: str = ""
    """The user to act as."""
    impersonate_groups: tuple[str, ...] = ()
    impersonate_uid: str = ""
    impersonate_user_extra: tuple[str, ...] = ()
    """Each KEY=VALUE."""
    certificate_authority: str = ""
    client_certificate: str = ""
    client_key: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    request_timeout: str = ""
    """As kubectl writes it: 5, 5s, 1m; 0 for no limit."""
